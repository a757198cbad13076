//! A subscriber of a rate: what it requests, and the share that it has.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{HitRate, QuotaTerms},
    time::Timestamp,
};

use crate::divider::{
    assignment::{Assignment, HEADROOM, SubscriberUsage, end_of_assignment},
    demand::SubscriberDemand,
    roster::Subscribed,
    shares::{Turns, tokens::BucketTokens},
};

/// The time after which a smaller share is in force. Greater ones wait for it.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// A client reports within this time, over another stream if need be.
pub(super) const REPORTED: Duration = Duration::from_secs(6);
/// A share changes only by more than this part of it: one of so many.
pub(super) const HYSTERESIS_DIVISOR: u64 = 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::divider) struct ShareSubscriber {
    pub(super) terms: QuotaTerms,
    pub(super) demand: SubscriberDemand,
    // Of it, what passes.
    pub(super) allowed: SubscriberDemand,
    // Hits that it has let pass, by its last report.
    pub(super) reported: u64,
    // Whether its last report has refused hits.
    pub(super) is_refusing: bool,
    // The last assignment.
    pub(super) granted: HitRate,
    // The next one, whose burst is not there yet.
    pub(super) pending: Option<Pending>,
    // The greatest that may be in force, until `settles_at`. With what is pending.
    pub(super) held: HitRate,
    pub(super) tokens: BucketTokens,
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

/// A share that waits until its part of the rate has brought its burst.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) share: HitRate,
    pub(super) at: Timestamp,
}

/// How the share of a subscriber compares with its demand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DemandCoverage {
    /// The share covers the demand.
    Covered,
    /// The demand is above the share by so much that only less demand of others makes the share larger.
    Capped,
    /// The share may change with the demand.
    Open,
}

impl ShareSubscriber {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            terms: QuotaTerms::default(),
            demand: SubscriberDemand::new(now),
            allowed: SubscriberDemand::new(now),
            reported: 0,
            is_refusing: false,
            granted: HitRate::default(),
            pending: None,
            held: HitRate::default(),
            tokens: BucketTokens::none(now),
            settles_at: now,
            expires_at: end_of_assignment(now),
            since: now,
            has_ended: false,
            was_assigned: false,
            beyond_grant: 0,
            is_owed: false,
        }
    }

    /// The state of this subscriber over another stream, with a burst of at most `least`.
    pub(super) fn resumed(self, least: u64, reported: u64, now: Timestamp) -> Self {
        let settles_at = now.after(if least < self.held.burst { REPORTED } else { SETTLE });
        let granted = if least == 0 { HitRate::default() } else { HitRate { burst: least, ..self.granted } };
        Self { granted, reported, settles_at, tokens: BucketTokens::none(now), ..self }
    }

    /// Lets a client that comes back for this one have a burst of at most `least`. What this one may have is held until
    /// then.
    pub(super) fn limit_burst(&mut self, least: u64) {
        if least < self.granted.burst {
            (self.granted.burst, self.settles_at) = (least, self.settles_at.max(self.expires_at));
        }
    }

    /// Whether the client can have let pass what its next report says, over another stream.
    pub(super) fn may_have_passed(&self, usage: SubscriberUsage, now: Timestamp) -> bool {
        let Some(HitRate { per_second, burst }) = self.tokens.greatest(self.granted) else { return true };
        let time = now.since(self.demand.since()).as_secs_f64() + 1.0;
        usage.allowed as f64 <= per_second as f64 * time + burst.max(self.held.burst) as f64
    }

    /// Whether the client may be another one, with a smaller bucket.
    pub(super) fn may_be_another(&self, now: Timestamp) -> bool {
        // A share that was cut is settled earlier.
        now.after(SETTLE) < self.settles_at && self.granted.burst < self.held.burst
    }

    /// Assigns a share, when the counter has been paid so many hits.
    pub(super) fn grant(&mut self, share: HitRate, paid: f64, now: Timestamp) {
        if (self.granted.per_second == 0) != (share.per_second == 0) {
            self.since = now;
        }
        self.tokens.change(self.granted, paid, now);
        self.held = self.held.max_of(share);
        (self.granted, self.pending) = (share, None);
        self.settles_at = self.settles_at.max(now.after(SETTLE));
        (self.was_assigned, self.is_owed) = (true, true);
    }

    /// Keeps a share for the subscriber that is granted at `at`.
    pub(super) fn keep(&mut self, share: HitRate, at: Timestamp) {
        self.held = self.held.max_of(share);
        self.pending = Some(Pending { share, at });
    }

    /// Takes back what is pending. What the subscriber has of the burst is not used again before the next turn.
    pub(super) fn cancel(&mut self, now: Timestamp) {
        if self.pending.take().is_some() {
            self.settles_at = self.settles_at.max(now.plus(1));
        }
    }

    /// Counts what was greater than the last assignment as over. Returns the burst that may have been used.
    pub(super) fn settle(&mut self) -> u64 {
        let held = self.pending.map_or(self.granted, |pending| self.granted.max_of(pending.share));
        let before = std::mem::replace(&mut self.held, held);
        before.burst.saturating_sub(held.burst)
    }

    /// Counts all that the subscriber has as over, so that its bucket begins full. Returns the burst that may have been
    /// used.
    pub(super) fn begin_anew(&mut self, now: Timestamp) -> u64 {
        (self.granted, self.pending, self.tokens) = (HitRate::default(), None, BucketTokens::none(now));
        std::mem::take(&mut self.held).burst
    }

    /// The share that the subscriber has, or that is pending.
    pub(super) fn next_share(&self) -> HitRate {
        self.pending.map_or(self.granted, |pending| pending.share)
    }

    /// The turns of the subscriber, if it has a share at times only.
    pub(super) fn turns(&self) -> Turns {
        Turns { has_share: self.granted.per_second > 0, since: self.since }
    }

    pub(super) fn needs(&self) -> f64 {
        let granted = self.granted.per_second as f64;
        if !self.demand.is_measured() {
            return granted;
        }
        granted.min((HEADROOM * self.demand.per_second()).max(self.floor()))
    }

    pub(super) fn floor(&self) -> f64 {
        self.terms.floor as f64
    }

    pub(super) fn is_idle(&self) -> bool {
        self.demand.is_measured() && self.demand.per_second() == 0.0
    }

    pub(super) fn coverage(&self) -> DemandCoverage {
        let granted = self.granted.per_second as f64;
        let claimed = HEADROOM * self.demand.per_second();
        // A share that is retained may be a little less than what the limit allows.
        let most = granted + granted / HYSTERESIS_DIVISOR as f64;
        if self.has_ended || self.pending.is_some() || !self.demand.is_measured() {
            DemandCoverage::Open
        } else if claimed <= granted {
            DemandCoverage::Covered
        } else if granted > 0.0 && claimed >= most + 1.0 {
            DemandCoverage::Capped
        } else {
            DemandCoverage::Open
        }
    }

    pub(super) fn assignment(&self) -> Assignment {
        if self.granted.per_second == 0 { Assignment::Deny } else { Assignment::Share(self.granted) }
    }
}

impl Subscribed for ShareSubscriber {
    fn end(&mut self) {
        self.has_ended = true;
    }
}
