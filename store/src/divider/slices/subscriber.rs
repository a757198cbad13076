//! A subscriber of hits: what it has used of its slices, and what it may still use.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{algorithm::QuotaTerms, time::Timestamp};

use crate::divider::{
    assignment::{Assignment, REPORT_EVERY, SubscriberUsage, end_of_assignment},
    demand::SubscriberDemand,
    roster::Subscribed,
};

/// A slice is for the demand of this many seconds.
pub(super) const SLICE_SECONDS: f64 = 10.0;
/// A further slice is granted when the last one can be used up within so many seconds.
const REST_SECONDS: f64 = 6.0;
/// A report that comes this long after a slice was sent was written after the slice arrived.
const DELIVERED: Duration = Duration::from_secs(1);
/// A report comes so much earlier or later at most.
const REPORT_JITTER: Duration = Duration::from_millis(700);
/// A slice larger than this many times the demand is replaced by a smaller one, if other subscribers lack hits.
const SPARE_FACTOR: u64 = 4;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::divider) struct SliceSubscriber {
    pub(super) terms: QuotaTerms,
    pub(super) demand: SubscriberDemand,
    // Hits that it has let pass, by its last report, and the instant of that.
    pub(super) reported: u64,
    pub(super) reported_at: Timestamp,
    // Invariant: `used` is at most `bound`.
    pub(super) used: u64,
    pub(super) bound: u64,
    pub(super) slice: Option<Slice>,
    // Whether it has reported over its stream since it has one. Only read without a slice.
    pub(super) has_reported: bool,
    // Whether a report of it was lost when its stream ended: all that is left may be used already. Then it has no slice.
    pub(super) has_lost_report: bool,
    // Whether its last report says that it refuses, or it has never had a slice.
    pub(super) is_refusing: bool,
    // The instant of the last slice; at first that of its first report.
    pub(super) since: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) has_ended: bool,
    // Whether the next division assigns something to it, because it has reported.
    #[serde(skip)]
    pub(super) is_owed: bool,
}

/// What a report has come to, beside the hits that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledHits {
    /// Of the reported hits, those that were not granted.
    pub(super) beyond: u64,
    /// Hits that were used before, and of which the report was lost.
    pub(super) lost: u64,
}

/// The last slice of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice {
    pub(super) hits: u64,
    // The bound before it.
    pub(super) before: u64,
    pub(super) given_at: Timestamp,
    // Whether a report has come that was written after it had arrived.
    pub(super) has_arrived: bool,
}

impl SliceSubscriber {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            terms: QuotaTerms::default(),
            demand: SubscriberDemand::new(now),
            reported: 0,
            reported_at: now,
            used: 0,
            bound: 0,
            slice: None,
            has_reported: false,
            has_lost_report: false,
            is_refusing: true,
            since: now,
            expires_at: end_of_assignment(now),
            has_ended: false,
            is_owed: false,
        }
    }

    /// The state of this subscriber over another stream, with at most `left` hits left. The slice that it has is not
    /// known.
    pub(super) fn resumed(self, left: u64, reported: u64) -> Self {
        let bound = self.used.saturating_add(left);
        Self { bound, reported, slice: None, has_reported: false, has_ended: false, ..self }
    }

    /// Whether the subscriber is silent for so many reports, of which it has lost all but the next one.
    pub(super) fn reports_after(&self, reports: u32, now: Timestamp) -> bool {
        now.since(self.reported_at).abs_diff(REPORT_EVERY * reports) <= REPORT_JITTER
    }

    /// Hits that the subscriber may still let pass.
    pub(super) fn left(&self) -> u64 {
        self.bound.saturating_sub(self.used)
    }

    /// Counts what the subscriber has used, and takes what it cannot use any more from the bound.
    pub(super) fn settle(&mut self, usage: SubscriberUsage, now: Timestamp) -> SettledHits {
        let mut lost = 0;
        self.used = self.used.saturating_add(usage.allowed);
        let beyond = self.used.saturating_sub(self.bound);
        self.bound = self.bound.max(self.used);
        if let Some(slice) = &mut self.slice
            && now >= slice.given_at.after(DELIVERED)
        {
            if slice.has_arrived && usage.denied > 0 {
                // A bucket that is not refilled has refused, so it is empty.
                self.bound = self.used;
            } else {
                // When the slice arrived, what was left of earlier ones ended.
                let most = slice.before.min(self.used).saturating_add(slice.hits);
                self.bound = self.bound.min(most).max(self.used);
            }
            slice.has_arrived = true;
        }
        if self.slice.is_none() {
            // So does one of an earlier stream, but in the first report over another one.
            if self.has_reported && usage.denied > 0 {
                lost = self.take_lost();
                self.bound = self.used;
            }
            self.has_reported = true;
        }
        self.is_refusing = usage.denied > 0 || self.slice.is_none();
        SettledHits { beyond, lost }
    }

    /// Counts what is left as used, if a report of that may have been lost. Returns it.
    fn take_lost(&mut self) -> u64 {
        if !std::mem::take(&mut self.has_lost_report) {
            return 0;
        }
        let left = self.left();
        self.used = self.bound;
        left
    }

    /// Grants a slice, which replaces what is left. Returns what may have been used and was not reported.
    pub(super) fn grant(&mut self, hits: u64, now: Timestamp) -> u64 {
        let lost = self.take_lost();
        let before = self.bound;
        self.bound = self.bound.saturating_add(hits);
        self.slice = Some(Slice { hits, before, given_at: now, has_arrived: false });
        (self.since, self.is_refusing, self.expires_at) = (now, false, end_of_assignment(now));
        self.is_owed = false;
        lost
    }

    /// The hits of the next slice.
    pub(super) fn claimed(&self, newcomer: u64) -> u64 {
        let claimed = if self.demand.is_measured() {
            (self.demand.per_second() * SLICE_SECONDS).ceil().max(1.0) as u64
        } else {
            newcomer
        };
        claimed.max(self.terms.floor)
    }

    pub(super) fn lacks_floor(&self) -> bool {
        self.left() < self.terms.floor
    }

    /// Whether the subscriber is to get a slice now.
    pub(super) fn is_due(&self) -> bool {
        let has_arrived = self.slice.is_none_or(|slice| slice.has_arrived);
        let rest = self.demand.per_second() * REST_SECONDS;
        let is_used_up = self.left() == 0 && self.is_refusing;
        let is_unknown = self.left() > 0 && self.slice.is_none() && !self.has_lost_report;
        !self.has_ended
            && has_arrived
            && (is_used_up || is_unknown || self.lacks_floor() || (self.left() as f64) < rest)
    }

    /// Whether the subscriber is to get a slice now, and refuses hits until then.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_due() && self.is_refusing
    }

    /// Whether so much more than a slice of this size is left that a smaller one is to replace it.
    pub(super) fn has_spare(&self, size: u64, now: Timestamp) -> bool {
        let has_arrived =
            self.slice.is_some_and(|slice| slice.has_arrived && slice.given_at.after(DELIVERED) <= now);
        has_arrived && !self.is_due() && self.left() > size.saturating_mul(SPARE_FACTOR)
    }

    pub(super) fn renewal(&self) -> Assignment {
        match self.slice.map_or(0, |slice| slice.hits) {
            0 => Assignment::Deny,
            hits => Assignment::Renewal(hits),
        }
    }
}

impl Subscribed for SliceSubscriber {
    fn end(&mut self) {
        self.has_ended = true;
    }
}
