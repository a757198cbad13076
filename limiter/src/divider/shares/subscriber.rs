//! A subscriber of a rate: what it asks for, and the share that it has.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::HitRate,
    divider::{
        Assignment,
        assignment::{HEADROOM, end_of_assignment},
        demand::Demand,
        roster::Subscribed,
    },
    rules::QuotaTerms,
    time::Timestamp,
};

/// The time after which a smaller share is in force. Greater ones wait for it.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// A share changes only by more than this part of it: one of so many.
pub(super) const HYSTERESIS_DIVISOR: u64 = 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::divider) struct Subscriber {
    pub(super) terms: QuotaTerms,
    pub(super) demand: Demand,
    // Of it, what passes.
    pub(super) allowed: Demand,
    // The last assignment.
    pub(super) given: HitRate,
    // The greatest that may be in force, until `settles_at`.
    pub(super) held: HitRate,
    pub(super) settles_at: Timestamp,
    pub(super) expires_at: Timestamp,
    // Since when it waits for a share, or has one.
    pub(super) since: Timestamp,
    pub(super) has_ended: bool,
    // Whether it has hits that no assignment allows.
    pub(super) was_assigned: bool,
    pub(super) beyond_grant: u64,
    // Whether the next division assigns something to it: it has reported, or its share has changed.
    #[serde(skip)]
    pub(super) is_owed: bool,
}

/// How the share of a subscriber compares with its demand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The share covers the demand.
    Covered,
    /// The demand is above the share by so much that only less demand of others makes the share larger.
    Capped,
    /// The share may change with the demand.
    Open,
}

impl Subscriber {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            terms: QuotaTerms::default(),
            demand: Demand::new(now),
            allowed: Demand::new(now),
            given: HitRate::default(),
            held: HitRate::default(),
            settles_at: now,
            expires_at: end_of_assignment(now),
            since: now,
            has_ended: false,
            was_assigned: false,
            beyond_grant: 0,
            is_owed: false,
        }
    }

    pub(super) fn give(&mut self, share: HitRate, now: Timestamp) {
        if (self.given.per_second == 0) != (share.per_second == 0) {
            self.since = now;
        }
        self.held = self.held.max_of(share);
        self.given = share;
        self.settles_at = now.after(SETTLE);
        (self.was_assigned, self.is_owed) = (true, true);
    }

    pub(super) fn needs(&self) -> f64 {
        let given = self.given.per_second as f64;
        if !self.demand.is_measured() {
            return given;
        }
        given.min((HEADROOM * self.demand.per_second()).max(self.floor()))
    }

    pub(super) fn floor(&self) -> f64 {
        self.terms.floor as f64
    }

    pub(super) fn is_idle(&self) -> bool {
        self.demand.is_measured() && self.demand.per_second() == 0.0
    }

    pub(super) fn standing(&self) -> Standing {
        let (given, claimed) = (self.given.per_second as f64, HEADROOM * self.demand.per_second());
        // A share that is kept may be a little less than what the limit allows.
        let most = given + given / HYSTERESIS_DIVISOR as f64;
        if self.has_ended || !self.demand.is_measured() {
            Standing::Open
        } else if claimed <= given {
            Standing::Covered
        } else if given > 0.0 && claimed >= most + 1.0 {
            Standing::Capped
        } else {
            Standing::Open
        }
    }

    pub(super) fn assignment(&self) -> Assignment {
        if self.given.per_second == 0 { Assignment::Deny } else { Assignment::Share(self.given) }
    }
}

impl Subscribed for Subscriber {
    fn end(&mut self) {
        self.has_ended = true;
    }
}
