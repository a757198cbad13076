//! Leases, borrower side: the grants that this replica has borrowed, and the rate of forwards that makes it ask for
//! one.
//!
//! A borrower stops using a grant before the owner counts it as used: the borrower's time starts when it asked, the
//! owner's when it lent.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Operation, Verdict},
    cluster::{
        MemberId,
        message::{LeaseReply, LeaseState, RemoteCheck, RemoteOperation, Settlement},
        node::{
            Node,
            lease_owner::{KEYS_MAX, LEASE_TTL},
        },
    },
    descriptor::Key,
    store::Slot,
    time::Timestamp,
};

/// The window in which forwards are counted to find hot keys.
const COUNT_WINDOW: Duration = Duration::from_millis(100);
/// The most keys whose forwards are counted in one window.
const COUNTED_KEYS_MAX: usize = 4_096;

/// The borrowed grants, and the number of forwards of each key.
#[derive(Debug, Default)]
pub(super) struct LeaseBorrower {
    borrowed: BTreeMap<Key, Borrowed>,
    forward_counts: BTreeMap<Key, u64>,
    counted_since: Timestamp,
    reported_at: Timestamp,
}

/// What this replica may decide about one hot key.
#[derive(Clone, Debug)]
struct Borrowed {
    limit: Limit,
    borrowing: Borrowing,
    expires_at: Timestamp,
}

#[derive(Clone, Debug)]
enum Borrowing {
    Granted {
        number: u64,
        left: u64,
        /// What remained at the owner besides the grant, when it lent.
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
    /// Decides from a grant or a refusal. `None` if the owner has to be asked.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        now: Timestamp,
    ) -> Option<(Decision, u64)> {
        let borrowed = self.borrowed.get_mut(&key)?;
        let Operation::Charge(hits) = operation else { return None };
        if borrowed.expires_at <= now || borrowed.limit != *limit {
            return None;
        }
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
                Some((decision, hits))
            }
            // Several hits would have to wait longer, and only the owner knows how long.
            Borrowing::Refused { retry_at } if hits == 1 => {
                let retry_after = retry_at.since(now);
                let verdict = Verdict::Refuse { retry_after: Some(retry_after) };
                Some((Decision { verdict, remaining: 0, reset_after: retry_after, receipt: None }, 0))
            }
            Borrowing::Refused { .. } => None,
        }
    }

    /// How many hits this forward asks for: none unless the key is hot.
    pub(super) fn hits_to_request(&mut self, key: Key, lease_from: Option<u64>, now: Timestamp) -> u64 {
        let Some(lease_from) = lease_from else { return 0 };
        if now.since(self.counted_since) >= COUNT_WINDOW {
            self.forward_counts.clear();
            self.counted_since = now;
        }
        if self.forward_counts.len() >= COUNTED_KEYS_MAX && !self.forward_counts.contains_key(&key) {
            return 0;
        }
        let forwards = self.forward_counts.entry(key).or_default();
        *forwards += 1;
        let window = COUNT_WINDOW.as_millis() as u64;
        let hot_from = (lease_from * window).div_ceil(1000).max(1);
        // Enough for the lifetime of a grant.
        if *forwards >= hot_from { *forwards * LEASE_TTL.as_millis() as u64 / window } else { 0 }
    }

    /// Stores a grant or a refusal that came in the reply to `check`, which was sent at `sent_at`.
    fn record_lease(
        &mut self,
        check: &RemoteCheck,
        decision: &Decision,
        lease: LeaseReply,
        sent_at: Timestamp,
        now: Timestamp,
    ) {
        let (borrowing, ttl) = match lease {
            LeaseReply::Refused { ttl } => {
                let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else { return };
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
        let borrowed = Borrowed { limit: check.limit.clone(), borrowing, expires_at };
        self.borrowed.insert(check.key, borrowed);
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
}

impl Borrowed {
    /// The settlement to send if this is a grant. The used hits count as reported from then on.
    fn settlement(&mut self, local_id: MemberId, state: LeaseState, now: Timestamp) -> Option<Settlement> {
        match &mut self.borrowing {
            Borrowing::Refused { .. } => None,
            Borrowing::Granted { number, left, used, used_at, .. } => {
                let (hits, left) = (std::mem::take(used), *left);
                Some(Settlement {
                    borrower: local_id,
                    number: *number,
                    hits,
                    left,
                    age: now.since(*used_at),
                    state,
                })
            }
        }
    }
}

impl Node {
    /// Handles a lease or a refusal from the owner. The previous grant of the key is settled.
    pub(super) fn receive_lease_reply(
        &mut self,
        check: &RemoteCheck,
        decision: &Decision,
        lease: LeaseReply,
        sent_at: Timestamp,
        now: Timestamp,
    ) {
        self.return_grant(check.key, now);
        if self.lease_borrower.borrowed.len() < KEYS_MAX {
            self.lease_borrower.record_lease(check, decision, lease, sent_at, now);
        }
        if self.draining_since.is_some() {
            self.return_grants(now);
        }
    }

    /// Takes back hits that this replica charged to a grant.
    pub(crate) fn undo_lease(&mut self, key: Key, limit: &Limit, hits: u64) {
        if let Some(borrowed) = self.lease_borrower.borrowed.get_mut(&key)
            && borrowed.limit == *limit
            && let Borrowing::Granted { left, used, .. } = &mut borrowed.borrowing
            && hits <= *used
        {
            (*left, *used) = (*left + hits, *used - hits);
        }
    }

    /// Hits of `key` that this replica has borrowed and may still use.
    #[cfg(test)]
    pub(crate) fn borrowed(&self, key: Key, now: Timestamp) -> u64 {
        match self.lease_borrower.borrowed.get(&key) {
            Some(Borrowed { borrowing: Borrowing::Granted { left, .. }, expires_at, .. })
                if now < *expires_at =>
            {
                *left
            }
            Some(_) | None => 0,
        }
    }

    /// Returns all grants.
    pub(super) fn return_grants(&mut self, now: Timestamp) {
        for key in self.lease_borrower.borrowed.keys().copied().collect::<Vec<_>>() {
            self.return_grant(key, now);
        }
    }

    /// Returns the grant of `key` to the owner.
    pub(super) fn return_grant(&mut self, key: Key, now: Timestamp) {
        if let Some(mut borrowed) = self.lease_borrower.borrowed.remove(&key)
            && let Some(settlement) = borrowed.settlement(self.local_id, LeaseState::Closed, now)
        {
            self.send_to_owner(
                RemoteCheck {
                    key,
                    limit: borrowed.limit,
                    operation: RemoteOperation::Settle(settlement),
                    lease_hits: 0,
                },
                now,
            );
        }
    }

    /// Expires grants of both sides, and reports what was used of the others.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        self.expire_grants(now);
        let report_interval = self.settings.backup_interval.unwrap_or(COUNT_WINDOW);
        let report_due = now.since(self.lease_borrower.reported_at) >= report_interval;
        if report_due {
            self.lease_borrower.reported_at = now;
        }
        let mut reports = Vec::new();
        for (key, borrowed) in &mut self.lease_borrower.borrowed {
            let is_over = borrowed.expires_at <= now;
            let used = matches!(borrowed.borrowing, Borrowing::Granted { used, .. } if used > 0);
            if is_over || (report_due && used) {
                let state = if is_over { LeaseState::Closed } else { LeaseState::Open };
                reports.extend(
                    borrowed
                        .settlement(self.local_id, state, now)
                        .map(|settlement| (*key, borrowed.limit.clone(), settlement)),
                );
            }
        }
        self.lease_borrower.borrowed.retain(|_, borrowed| now < borrowed.expires_at);
        for (key, limit, settlement) in reports {
            self.send_to_owner(
                RemoteCheck { key, limit, operation: RemoteOperation::Settle(settlement), lease_hits: 0 },
                now,
            );
        }
    }

    /// Returns the grants of a departed owner: no more of their hits are used, and the next owner learns how many were.
    pub(super) fn owner_departed(&mut self, member: MemberId, now: Timestamp) {
        let slots = self.slots.len();
        let owner = |key: &Key| self.slots[Slot::of(*key, slots).index()].owner.map(|owner| owner.member);
        let keys: Vec<Key> =
            self.lease_borrower.borrowed.keys().filter(|key| owner(key) == Some(member)).copied().collect();
        for key in keys {
            self.return_grant(key, now);
        }
    }
}
