//! Leases, owner side: grants of a hot key's limit to replicas that forward it often.
//!
//! A grant counts as charged until it is returned, used or expired, so all replicas together never admit more than the
//! limit. If the borrower is not heard in time, the unaccounted hits are charged. When the borrower is heard again, the
//! hits that it did not use are refunded.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use tollgate_counter::{
    algorithm::{Limit, Verdict},
    descriptor::Key,
    time::Timestamp,
};
use tollgate_store::{Memory, OperationOutcome, Slot, UsedHits};

use crate::{
    member::{Departure, MemberId},
    message::{
        Message,
        check::{LeaseReply, LeaseState, RemoteCheck, Settlement},
        slot::{ChargedHits, LeaseGrant},
    },
    node::{context::Context, output::NodeOutput},
};

/// How long a grant or a refusal lasts.
pub(super) const LEASE_TTL: Duration = Duration::from_millis(500);
/// The most keys with grants, given or borrowed.
pub(super) const KEYS_MAX: usize = 10_000;
/// How long a grant is retained after its end, so that late settlements are not counted twice.
const EXPIRED_RETENTION: Duration = Duration::from_secs(10);
/// How long a grant whose borrower was not heard in time is retained, so that unused hits can be refunded.
pub(super) const CHARGED_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Subtracted from the end of a grant, which may be the first instant of the next window.
const JUST_BEFORE: Duration = Duration::from_nanos(1);
/// The smallest grant.
const HITS_MIN: u64 = 2;

/// The grants and refusals that this replica has sent as an owner.
#[derive(Debug)]
pub(super) struct LeaseOwner {
    memory: Arc<Memory>,
    // By slot, because the grants of a slot go with it.
    keys: BTreeMap<(Slot, Key), KeyLeases>,
    last_number: u64,
    /// Slots whose grants were lent or returned since their last backup.
    pub(super) changed: BTreeSet<Slot>,
    /// Keys whose grants were all returned, so that checks that waited for them can be retried.
    pub(super) returned: Vec<Key>,
}

/// The grants and refusals of one key.
#[derive(Clone, Debug, Default)]
struct KeyLeases {
    grants: Vec<OpenGrant>,
    /// The members that were refused every charge, and until when.
    refused: Vec<(MemberId, Timestamp)>,
    /// Whether the grants were recalled.
    recalled: bool,
}

/// A grant that is lent.
#[derive(Clone, Debug)]
struct OpenGrant {
    limit: Limit,
    borrower: MemberId,
    number: u64,
    /// Hits that are not accounted for.
    left: u64,
    expires_at: Timestamp,
    state: GrantState,
}

/// The state of the unaccounted hits of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantState {
    /// The borrower may use the hits.
    Open,
    /// The borrower has reported all hits.
    Settled,
    /// The borrower was not heard in time. The hits are charged as if they were used at `at`, by the wall clock.
    Charged { hits: NonZeroU64, at: Timestamp },
}

impl OpenGrant {
    fn to_grant(&self, key: Key, cx: &Context<'_>) -> LeaseGrant {
        let charged = match self.state {
            GrantState::Open | GrantState::Settled => None,
            GrantState::Charged { hits, at } => Some(ChargedHits { hits, age: cx.wall.since(at) }),
        };
        LeaseGrant {
            key,
            limit: self.limit.clone(),
            borrower: self.borrower,
            number: self.number,
            left: self.left,
            ttl: self.expires_at.since(cx.now),
            charged,
        }
    }

    /// How long the grant is retained after its end.
    fn retention(&self) -> Duration {
        match self.state {
            GrantState::Open | GrantState::Settled => EXPIRED_RETENTION,
            GrantState::Charged { .. } => CHARGED_RETENTION,
        }
    }
}

impl LeaseOwner {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, keys: BTreeMap::new(), last_number: 0, changed: BTreeSet::new(), returned: Vec::new() }
    }

    /// The grants of `slot`, as they are sent with the slot data.
    pub(super) fn grants_of_slot(&self, slot: Slot, cx: &Context<'_>) -> Vec<LeaseGrant> {
        let of_slot = self.keys.range(slot.places());
        let grants =
            of_slot.flat_map(|((_, key), leases)| leases.grants.iter().map(|grant| grant.to_grant(*key, cx)));
        grants.collect()
    }

    /// Removes and returns the grants of `slot`.
    pub(super) fn remove_slot(&mut self, slot: Slot, cx: &Context<'_>) -> Vec<LeaseGrant> {
        let grants = self.grants_of_slot(slot, cx);
        self.keys.extract_if(slot.places(), |_, _| true).for_each(drop);
        grants
    }

    /// Adds grants that arrived with a slot.
    pub(super) fn insert_grants(&mut self, grants: Vec<LeaseGrant>, cx: &Context<'_>) {
        for LeaseGrant { key, limit, borrower, number, left, ttl, charged } in grants {
            self.last_number = self.last_number.max(number);
            let state = match charged {
                Some(ChargedHits { hits, age }) => GrantState::Charged { hits, at: cx.wall.before(age) },
                None if left == 0 => GrantState::Settled,
                None => GrantState::Open,
            };
            self.memory.leases().set_leased(key, self.memory.leases().leased(key) + left);
            let expires_at = cx.now.after(ttl);
            let grant = OpenGrant { limit, borrower, number, left, expires_at, state };
            self.keys.entry(self.place(key)).or_default().grants.push(grant);
        }
    }

    fn mark_changed(&mut self, key: Key) {
        self.changed.insert(self.memory.slot(key));
    }

    fn place(&self, key: Key) -> (Slot, Key) {
        (self.memory.slot(key), key)
    }

    /// Forgets all grants.
    pub(super) fn discard(&mut self) {
        *self = Self::new(self.memory.clone());
    }

    /// The lease for `peer`, which forwards the key often.
    pub(super) fn grant_lease(
        &mut self,
        peer: MemberId,
        check: &RemoteCheck,
        outcome: &OperationOutcome,
        cx: &mut Context<'_>,
    ) -> Option<LeaseReply> {
        let RemoteCheck { key, limit, lease_hits, .. } = check;
        let decision = &outcome.decision;
        if !limit.is_leasable() || self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&self.place(*key)) {
            return None;
        }
        if !decision.verdict.passes() {
            let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else { return None };
            // A refusal by the limit of a request says nothing about a limit of its own.
            let is_of_counter = outcome.own.is_some() || self.memory.own_terms(*key, cx.wall).is_none();
            if decision.remaining != 0 || !is_of_counter {
                return None;
            }
            let ttl = LEASE_TTL.min(retry_after);
            let leases = self.keys.entry(self.place(*key)).or_default();
            leases.refused.retain(|(member, expires_at)| *member != peer && cx.now < *expires_at);
            leases.refused.push((peer, cx.now.after(ttl)));
            return Some(LeaseReply::Refused { ttl });
        }
        // Half of the remaining hits, divided among all members.
        let members = cx.members.placement.members().len().max(1) as u64;
        let hits = (*lease_hits).min(decision.remaining / (2 * members));
        // Hits that are lent in a window must be used in that window.
        let ttl = if limit.period().is_some() { LEASE_TTL.min(decision.reset_after) } else { LEASE_TTL };
        let has_grant = self.keys.get(&self.place(*key)).is_some_and(|leases| {
            leases.recalled || leases.grants.iter().any(|grant| grant.borrower == peer && grant.left > 0)
        });
        if hits < HITS_MIN || ttl.is_zero() || has_grant {
            return None;
        }
        self.memory.leases().lease(*key, limit, hits, cx.wall)?;
        self.last_number += 1;
        let number = self.last_number;
        let expires_at = cx.now.after(ttl);
        let grant = OpenGrant {
            limit: limit.clone(),
            borrower: peer,
            number,
            left: hits,
            expires_at,
            state: GrantState::Open,
        };
        self.keys.entry(self.place(*key)).or_default().grants.push(grant);
        self.mark_changed(*key);
        cx.out.stats.grants_lent += 1;
        Some(LeaseReply::Granted { number, hits, ttl })
    }

    /// Applies a borrower's report.
    pub(super) fn settle(&mut self, key: Key, limit: &Limit, settlement: &Settlement, cx: &mut Context<'_>) {
        let Settlement { borrower, number, hits, left, age, state } = settlement;
        let same = |grant: &&mut OpenGrant| grant.borrower == *borrower && grant.number == *number;
        let grant =
            self.keys.get_mut(&self.place(key)).and_then(|leases| leases.grants.iter_mut().find(same));
        let mut hits = *hits;
        let mut unused_hits = 0;
        if let Some(grant) = grant {
            match grant.state {
                // Every hit is accounted for.
                GrantState::Settled => return,
                GrantState::Charged { hits, at } => {
                    // The used hits are charged already. The number of unused hits is final once the grant is closed.
                    if *state == LeaseState::Closed {
                        grant.state = GrantState::Settled;
                        let unused = UsedHits { hits: hits.get().min(*left), at };
                        if unused.hits > 0 {
                            self.memory.leases().refund_leased(key, limit, unused, cx.wall);
                            self.revoke_refusals(key, cx.out);
                        }
                        self.mark_changed(key);
                    }
                    return;
                }
                GrantState::Open => {}
            }
            // An earlier report may arrive later, or may have gone to an earlier owner and be lost.
            hits = grant.left.saturating_sub(*left);
            grant.left -= hits;
            if *state == LeaseState::Closed {
                unused_hits = std::mem::take(&mut grant.left);
                grant.state = GrantState::Settled;
            }
        }
        if hits > 0 {
            let at = cx.wall.before(*age);
            self.memory.leases().charge_leased(key, limit, UsedHits { hits, at }, cx.wall);
        }
        self.memory.leases().reclaim(key, unused_hits);
        if *state == LeaseState::Closed {
            self.mark_changed(key);
            self.prune_key(key);
        }
    }

    /// Removes a key without grants. Checks that waited for the grants can be retried.
    fn prune_key(&mut self, key: Key) {
        let Some(leases) = self.keys.get_mut(&self.place(key)) else { return };
        if leases.grants.iter().all(|grant| grant.left == 0) {
            leases.recalled = false;
            if leases.grants.is_empty() && leases.refused.is_empty() {
                self.keys.remove(&self.place(key));
            }
            self.returned.push(key);
        }
    }

    /// Recalls the grants of `key`.
    pub(super) fn recall_grants(&mut self, key: Key, out: &mut NodeOutput) {
        let Some(leases) = self.keys.get_mut(&self.place(key)) else {
            // Without grants nothing is leased.
            self.memory.leases().set_leased(key, 0);
            return;
        };
        let borrowers: Vec<MemberId> =
            leases.grants.iter().filter(|grant| grant.left > 0).map(|grant| grant.borrower).collect();
        if borrowers.is_empty() {
            self.memory.leases().set_leased(key, 0);
        } else if !std::mem::replace(&mut leases.recalled, true) {
            out.stats.grants_recalled += 1;
            for borrower in borrowers {
                out.send(borrower, Message::Recall { key });
            }
        }
    }

    /// Revokes refusals of `key` that are no longer true.
    pub(super) fn revoke_refusals(&mut self, key: Key, out: &mut NodeOutput) {
        let Some(leases) = self.keys.get_mut(&self.place(key)) else { return };
        for (member, _) in std::mem::take(&mut leases.refused) {
            out.send(member, Message::Revoke { key });
        }
    }

    /// Charges grants whose borrower was not heard in time, and forgets old ones.
    pub(super) fn expire_grants(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.charge_where(|grant| grant.expires_at <= now, cx);
        for leases in self.keys.values_mut() {
            leases.grants.retain(|grant| now < grant.expires_at.after(grant.retention()));
            leases.refused.retain(|(_, expires_at)| now < *expires_at);
        }
        self.keys.retain(|_, leases| !leases.grants.is_empty() || !leases.refused.is_empty());
    }

    /// Charges the grants of a member that is not heard; for good if the member is dead.
    pub(super) fn borrower_departed(&mut self, member: MemberId, departure: Departure, cx: &mut Context<'_>) {
        self.charge_where(|grant| grant.borrower == member, cx);
        if departure == Departure::Dead {
            let grants = self.keys.values_mut().flat_map(|leases| &mut leases.grants);
            grants
                .filter(|grant| grant.borrower == member)
                .for_each(|grant| grant.state = GrantState::Settled);
        }
    }

    /// Makes the charged hits of `key` final, because an operator has replaced the counter.
    pub(super) fn fix_charged_hits(&mut self, key: Key) {
        for grant in self.keys.get_mut(&self.place(key)).into_iter().flat_map(|leases| &mut leases.grants) {
            if let GrantState::Charged { .. } = grant.state {
                grant.state = GrantState::Settled;
            }
        }
    }

    fn charge_where(&mut self, is_over: impl Fn(&OpenGrant) -> bool, cx: &mut Context<'_>) {
        let mut expired = Vec::new();
        let mut charged = Vec::new();
        for ((_, key), leases) in &mut self.keys {
            for grant in
                leases.grants.iter_mut().filter(|grant| grant.state == GrantState::Open && is_over(grant))
            {
                grant.state = GrantState::Settled;
                if let Some(hits) = NonZeroU64::new(std::mem::take(&mut grant.left)) {
                    // Hits that were lent in a window count as used in that window.
                    let at = cx.wall.before(cx.now.since(grant.expires_at)).before(JUST_BEFORE);
                    grant.state = GrantState::Charged { hits, at };
                    charged.push((*key, grant.limit.clone(), UsedHits { hits: hits.get(), at }));
                }
                expired.push(*key);
            }
        }
        for (key, limit, used) in charged {
            cx.out.stats.grants_lost += 1;
            self.memory.leases().charge_leased(key, &limit, used, cx.wall);
        }
        for key in expired {
            self.mark_changed(key);
            self.prune_key(key);
        }
    }
}
