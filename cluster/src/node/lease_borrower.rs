//! Leases, borrower side: the grants that this replica has borrowed, and the rate of forwards that makes it ask for
//! one.
//!
//! A borrower stops using a grant before the owner counts it as used: the borrower's time starts when it asked, the
//! owner's when it lent.

use std::{collections::BTreeMap, time::Duration};

use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, Verdict},
    descriptor::Key,
    time::Timestamp,
};
use tollgate_store::{LimitOrigin, OperationOutcome, OwnTerms};

use crate::{
    member::MemberId,
    message::check::{LeaseReply, LeaseState, RemoteCheck, RemoteOperation, Settlement},
    node::lease_owner::{KEYS_MAX, LEASE_TTL},
    tuning::NodeSettings,
};

/// The window in which forwards are counted to find hot keys.
const COUNT_WINDOW: Duration = Duration::from_millis(100);
/// The most keys whose forwards are counted in one window.
const FORWARD_COUNTS_MAX: usize = 4_096;

/// The borrowed grants, and the number of forwards of each key.
#[derive(Debug)]
pub(super) struct LeaseBorrower {
    local_id: MemberId,
    /// A key that is forwarded this many times a second asks for a lease; `None` for never.
    lease_from: Option<u64>,
    /// How often used hits are reported.
    report_interval: Duration,
    /// The grants to settle and the refusals to forget.
    pub(super) borrowed: BTreeMap<Key, Borrowed>,
    forward_counts: BTreeMap<Key, u64>,
    window_started_at: Timestamp,
    reported_at: Timestamp,
}

/// What this replica may decide about one hot key.
#[derive(Clone, Debug)]
pub(super) struct Borrowed {
    limit: Limit,
    borrowing: Borrowing,
    // The limit of its own that has decided in place of `limit`.
    own: Option<Box<OwnTerms>>,
    expires_at: Timestamp,
}

#[derive(Clone, Debug)]
enum Borrowing {
    Granted {
        number: u64,
        left: u64,
        /// What remained at the owner in addition to the grant, when it lent.
        owner_remaining: u64,
        reset_at: Timestamp,
        /// Hits that were used and are not reported yet, and when the last of them was used.
        used: u64,
        used_at: Timestamp,
    },
    Refused {
        retry_at: Timestamp,
    },
}

impl LeaseBorrower {
    pub(super) fn new(local_id: MemberId, settings: NodeSettings) -> Self {
        Self {
            local_id,
            lease_from: settings.tuning.lease_from,
            report_interval: settings.tuning.backup_interval.unwrap_or(COUNT_WINDOW),
            borrowed: BTreeMap::new(),
            forward_counts: BTreeMap::new(),
            window_started_at: Timestamp::EPOCH,
            reported_at: Timestamp::EPOCH,
        }
    }

    /// Forgets all grants and refusals.
    pub(super) fn discard(&mut self) {
        self.borrowed.clear();
        self.forward_counts.clear();
    }

    /// Decides from a grant or a refusal. `None` if the owner has to be asked.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        origin: LimitOrigin,
        operation: Operation,
        now: Timestamp,
    ) -> Option<OperationOutcome> {
        let borrowed = self.borrowed.get_mut(&key)?;
        let own = borrowed.own.as_deref();
        let Operation::Charge(hits) = operation else { return None };
        if borrowed.expires_at <= now || borrowed.limit != *limit || origin.replaced_by(own) != own {
            return None;
        }
        let outcome = |decision, charged| Some(OperationOutcome::new(decision, charged).by_own(own));
        match &mut borrowed.borrowing {
            Borrowing::Granted { left, owner_remaining, reset_at, used, used_at, .. } => {
                *left = left.checked_sub(hits)?;
                (*used, *used_at) = (*used + hits, now);
                let decision = Decision {
                    verdict: Verdict::Pass,
                    remaining: *left + *owner_remaining,
                    reset_after: reset_at.since(now),
                    receipt: None,
                };
                outcome(decision, hits)
            }
            // Several hits would have to wait longer, and only the owner knows how long.
            Borrowing::Refused { retry_at } if hits == 1 => {
                let retry_after = retry_at.since(now);
                let verdict = Verdict::Refuse { retry_after: Some(retry_after) };
                outcome(Decision { verdict, remaining: 0, reset_after: retry_after, receipt: None }, 0)
            }
            Borrowing::Refused { .. } => None,
        }
    }

    /// How many hits this forward asks for: none unless the key is hot.
    pub(super) fn hits_to_request(&mut self, key: Key, now: Timestamp) -> u64 {
        let Some(lease_from) = self.lease_from else { return 0 };
        if now.since(self.window_started_at) >= COUNT_WINDOW {
            self.forward_counts.clear();
            self.window_started_at = now;
        }
        if self.forward_counts.len() >= FORWARD_COUNTS_MAX && !self.forward_counts.contains_key(&key) {
            return 0;
        }
        let forwards = self.forward_counts.entry(key).or_default();
        *forwards += 1;
        let window = COUNT_WINDOW.as_millis() as u64;
        let hot_from = (lease_from * window).div_ceil(1000).max(1);
        // Enough for the lifetime of a grant.
        if *forwards >= hot_from { *forwards * LEASE_TTL.as_millis() as u64 / window } else { 0 }
    }

    /// Stores a grant or a refusal that came in the reply to `check`, which was sent at `sent_at`. Returns what to send
    /// to the owner if there is no room for the grant.
    pub(super) fn record(
        &mut self,
        check: &RemoteCheck,
        outcome: &OperationOutcome,
        lease: LeaseReply,
        sent_at: Timestamp,
        now: Timestamp,
    ) -> Option<RemoteCheck> {
        let decision = &outcome.decision;
        let (borrowing, ttl) = match lease {
            LeaseReply::Refused { ttl } => {
                let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else {
                    return None;
                };
                (Borrowing::Refused { retry_at: now.after(retry_after) }, ttl)
            }
            LeaseReply::Granted { number, hits, ttl } => {
                let borrowing = Borrowing::Granted {
                    number,
                    left: hits,
                    owner_remaining: decision.remaining.saturating_sub(hits),
                    reset_at: now.after(decision.reset_after),
                    used: 0,
                    used_at: now,
                };
                (borrowing, ttl)
            }
        };
        // The owner's time starts later, and unused hits have to be back before it ends.
        let expires_at = sent_at.after(ttl * 3 / 4);
        let mut borrowed =
            Borrowed { limit: check.limit.clone(), borrowing, own: outcome.own.clone(), expires_at };
        if self.borrowed.len() >= KEYS_MAX {
            return borrowed.settlement(check.key, self.local_id, LeaseState::Closed, now);
        }
        self.borrowed.insert(check.key, borrowed);
        None
    }

    pub(super) fn revoke_refusal(&mut self, key: Key) {
        if self
            .borrowed
            .get(&key)
            .is_some_and(|borrowed| matches!(borrowed.borrowing, Borrowing::Refused { .. }))
        {
            self.borrowed.remove(&key);
        }
    }

    /// Takes back hits that this replica charged to a grant.
    pub(super) fn undo(&mut self, key: Key, limit: &Limit, hits: u64) {
        if let Some(borrowed) = self.borrowed.get_mut(&key)
            && borrowed.limit == *limit
            && let Borrowing::Granted { left, used, .. } = &mut borrowed.borrowing
            && hits <= *used
        {
            (*left, *used) = (*left + hits, *used - hits);
        }
    }

    /// The keys with grants or refusals.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.borrowed.keys().copied().collect()
    }

    /// Forgets the grant or refusal of `key`. Returns what to send to the owner.
    pub(super) fn take(&mut self, key: Key, now: Timestamp) -> Option<RemoteCheck> {
        let mut borrowed = self.borrowed.remove(&key)?;
        borrowed.settlement(key, self.local_id, LeaseState::Closed, now)
    }

    /// Ends grants that have expired, and reports what was used of the others. Returns what to send to the owners.
    pub(super) fn tick(&mut self, now: Timestamp) -> Vec<RemoteCheck> {
        let report_due = now.since(self.reported_at) >= self.report_interval;
        if report_due {
            self.reported_at = now;
        }
        let mut reports = Vec::new();
        for (key, borrowed) in &mut self.borrowed {
            let is_over = borrowed.expires_at <= now;
            let used = matches!(borrowed.borrowing, Borrowing::Granted { used, .. } if used > 0);
            if is_over || (report_due && used) {
                let state = if is_over { LeaseState::Closed } else { LeaseState::Open };
                reports.extend(borrowed.settlement(*key, self.local_id, state, now));
            }
        }
        self.borrowed.retain(|_, borrowed| now < borrowed.expires_at);
        reports
    }
}

impl Borrowed {
    /// The settlement to send if this is a grant. The used hits count as reported from then on.
    fn settlement(
        &mut self,
        key: Key,
        local_id: MemberId,
        state: LeaseState,
        now: Timestamp,
    ) -> Option<RemoteCheck> {
        let Borrowing::Granted { number, left, used, used_at, .. } = &mut self.borrowing else { return None };
        let settlement = Settlement {
            borrower: local_id,
            number: *number,
            hits: std::mem::take(used),
            left: *left,
            age: now.since(*used_at),
            state,
        };
        let operation = RemoteOperation::Settle(settlement);
        Some(RemoteCheck { key, limit: self.limit.clone(), operation, lease_hits: 0 })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_counter::{algorithm::laws::every_limit, time::SECOND};
    use tollgate_store::CounterOperation;

    use super::*;

    impl LeaseBorrower {
        /// Hits of `key` that this replica has borrowed and may still use.
        pub(in crate::node) fn borrowed(&self, key: Key, now: Timestamp) -> u64 {
            match self.borrowed.get(&key) {
                Some(Borrowed { borrowing: Borrowing::Granted { left, .. }, expires_at, .. })
                    if now < *expires_at =>
                {
                    *left
                }
                Some(_) | None => 0,
            }
        }
    }

    #[test]
    fn grant_without_room_is_returned_unused() {
        let settings = NodeSettings {
            silence: Duration::from_secs(1),
            bootstrap_timeout: Duration::from_secs(1),
            hand_offs_max: 1,
            data_bytes_max: 1_000,
            claimed_counters_max: 3,
            tuning: crate::Tuning { lease_from: Some(50), ..crate::Tuning::FOR_TESTS },
        };
        let borrower = MemberId::from_number(1);
        let mut leases = LeaseBorrower::new(borrower, settings);
        let now = Timestamp::from_nanos(SECOND);
        let ttl = LEASE_TTL;
        let limit = every_limit(60, SECOND).remove(0);
        let verdict = Verdict::Pass;
        let reset_after = Duration::from_secs(1);
        let decision = Decision { verdict, remaining: 59, reset_after, receipt: None };
        let mut record = |number| {
            let key = Key::from_halves(number, number);
            let limit = limit.clone();
            let operation = RemoteOperation::Counter(CounterOperation::Decide(Operation::Charge(1)));
            let check = RemoteCheck { key, limit, operation, lease_hits: 10 };
            leases.record(
                &check,
                &OperationOutcome::new(decision, 1),
                LeaseReply::Granted { number, hits: 10, ttl },
                now,
                now,
            )
        };

        let number = KEYS_MAX as u64;
        assert!((0..number).all(|number| record(number).is_none()));
        let left = 10;
        let state = LeaseState::Closed;
        let unused = Settlement { borrower, number, hits: 0, left, age: Duration::ZERO, state };
        assert_eq!(record(number).map(|check| check.operation), Some(RemoteOperation::Settle(unused)));
    }
}
