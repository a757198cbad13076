//! Encodes responses.

use std::time::Duration;

use tollgate_counter::algorithm::HitRate;
use tollgate_store::divider::{ASSIGNMENT_TTL, Assignment};
use tollgate_wire::protobuf::{FRAME_PREFIX_BYTES, begin, frame_prefix, nested, number};

use crate::bucket::QuotaAction;

/// The most actions of a response: Envoy logs a response as a whole for each action that it cannot apply.
pub(super) const ACTIONS_MAX: usize = 100;
/// The time in which a share is refilled. Envoy does not notice a change of it.
const FILL_SECONDS: u64 = 1;
/// The time in which a slice is refilled. It is long, because a slice must not be refilled while it is used.
const SLICE_FILL_SECONDS: u64 = 86_400;

/// The blanket rules.
const ALLOW_ALL: u8 = 0;
const DENY_ALL: u8 = 1;

/// A response with its frame, to be filled.
pub(super) struct Response {
    frame: Vec<u8>,
    actions: usize,
}

impl Response {
    pub(super) fn new() -> Self {
        Self { frame: vec![0; FRAME_PREFIX_BYTES], actions: 0 }
    }

    /// The number of buckets for which any further action fits: a slice takes two.
    pub(super) fn room(&self) -> usize {
        (ACTIONS_MAX - self.actions) / 2
    }

    /// Whether the response has no action.
    pub(super) fn is_empty(&self) -> bool {
        self.actions == 0
    }

    /// Adds the action for the bucket with this encoded id.
    pub(super) fn add(&mut self, id: &[u8], action: QuotaAction) {
        match action {
            QuotaAction::Allow(time) => self.assign(id, time, |out| blanket(out, ALLOW_ALL)),
            QuotaAction::Assign(Assignment::Deny) => self.deny(id),
            QuotaAction::Assign(Assignment::Share(HitRate { per_second, burst })) => {
                self.assign(id, ASSIGNMENT_TTL, |out| token_bucket(out, burst, per_second, FILL_SECONDS));
            }
            QuotaAction::Assign(Assignment::Slice(hits)) => {
                // After a blanket rule the bucket begins full.
                self.deny(id);
                self.slice(id, hits);
            }
            QuotaAction::Assign(Assignment::Renewal(hits)) => self.slice(id, hits),
            QuotaAction::Abandon => self.action(id, |out| begin(out, 3, 0)),
        }
    }

    fn deny(&mut self, id: &[u8]) {
        self.assign(id, ASSIGNMENT_TTL, |out| blanket(out, DENY_ALL));
    }

    fn slice(&mut self, id: &[u8], hits: u64) {
        self.assign(id, ASSIGNMENT_TTL, |out| token_bucket(out, hits, 1, SLICE_FILL_SECONDS));
    }

    fn assign(&mut self, id: &[u8], time: Duration, strategy: impl FnOnce(&mut Vec<u8>)) {
        self.action(id, |out| {
            nested(out, 2, |out| {
                seconds(out, 2, time.as_secs());
                nested(out, 3, strategy);
            });
        });
    }

    fn action(&mut self, id: &[u8], action: impl FnOnce(&mut Vec<u8>)) {
        self.actions += 1;
        nested(&mut self.frame, 1, |out| {
            begin(out, 1, id.len());
            out.extend_from_slice(id);
            action(out);
        });
    }

    /// The frame.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let prefix = frame_prefix(self.frame.len() - FRAME_PREFIX_BYTES);
        self.frame[..FRAME_PREFIX_BYTES].copy_from_slice(&prefix);
        self.frame
    }
}

fn blanket(out: &mut Vec<u8>, rule: u8) {
    // Written also if it is 0: a strategy that is not set is another one.
    out.extend_from_slice(&[1 << 3, rule]);
}

fn token_bucket(out: &mut Vec<u8>, max: u64, fill: u64, fill_seconds: u64) {
    nested(out, 3, |out| {
        number(out, 1, max);
        nested(out, 2, |out| number(out, 1, fill));
        seconds(out, 3, fill_seconds);
    });
}

fn seconds(out: &mut Vec<u8>, field: u8, seconds: u64) {
    nested(out, field, |out| number(out, 1, seconds));
}
