//! What a holder lends of a hot key's limit: slices, to those who keep asking.
//!
//! A slice that is out counts as taken until it is back, used or expired, so what all replicas admit together never
//! passes the limit. The unaccounted hits of a slice whose borrower is not heard in time are charged; when the borrower
//! is heard again, those that it did not use are given back.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Verdict},
    cluster::{
        MemberId,
        message::{ChargedHits, Grant, LeaseReply, LeaseState, Message, RemoteCheck, Settlement},
        node::{Node, membership::Departure},
    },
    descriptor::Key,
    store::{Memory, Slot, Used},
    time::Timestamp,
};

/// How long a slice or a refusal lasts.
pub(super) const LEASE_TTL: Duration = Duration::from_millis(500);
/// The most keys with slices, lent or borrowed.
pub(super) const KEYS_MAX: usize = 10_000;
/// How long a slice is remembered after its end, so that what is told late is not counted twice.
const EXPIRED_KEPT: Duration = Duration::from_secs(10);
/// How long a slice whose borrower was not heard in time is remembered, so that unused hits can be given back.
pub(super) const CHARGED_KEPT: Duration = Duration::from_secs(60 * 60);
/// Before the instant at which a slice ends, which may be the first one of the next window.
const JUST_BEFORE: Duration = Duration::from_nanos(1);
/// No slice is smaller.
const HITS_MIN: u64 = 2;

/// What this replica, as a holder, has lent.
#[derive(Debug, Default)]
pub(super) struct LeaseOwner {
    lent: BTreeMap<Key, KeyLeases>,
    number: u64,
}

/// What is lent of one key.
#[derive(Clone, Debug, Default)]
struct KeyLeases {
    grants: Vec<OpenGrant>,
    /// Who was told that everything is refused, and until when.
    refused: Vec<(MemberId, Timestamp)>,
    /// Whether the slices were called back.
    recalled: bool,
}

/// A slice that is out.
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

/// What is known of the unaccounted hits of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantState {
    /// The borrower may use them.
    Open,
    /// The borrower has told what became of them.
    Settled,
    /// The borrower was not heard in time: they are charged as if they were used at `at` by the wall's clock.
    Charged { hits: NonZeroU64, at: Timestamp },
}

/// One instant, by the clock that goes on evenly and by the wall's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) wall: Timestamp,
}

impl OpenGrant {
    fn to_grant(&self, key: Key, moment: Moment) -> Grant {
        let charged = match self.state {
            GrantState::Open | GrantState::Settled => None,
            GrantState::Charged { hits, at } => Some(ChargedHits { hits, age: moment.wall.since(at) }),
        };
        Grant {
            key,
            limit: self.limit.clone(),
            borrower: self.borrower,
            number: self.number,
            left: self.left,
            ttl: self.expires_at.since(moment.now),
            charged,
        }
    }

    /// For how long after its end it is remembered.
    fn retention(&self) -> Duration {
        match self.state {
            GrantState::Open | GrantState::Settled => EXPIRED_KEPT,
            GrantState::Charged { .. } => CHARGED_KEPT,
        }
    }
}

impl LeaseOwner {
    /// The slices out of `slot`, as others need them.
    pub(super) fn grants_of_slot(&self, slot: Slot, slots: usize, moment: Moment) -> Vec<Grant> {
        let of_slot = self.lent.range(slot.keys(slots));
        of_slot.flat_map(|(key, lent)| lent.grants.iter().map(|out| out.to_grant(*key, moment))).collect()
    }

    /// The same, no longer kept here.
    pub(super) fn remove_slot(&mut self, slot: Slot, slots: usize, moment: Moment) -> Vec<Grant> {
        let grants = self.grants_of_slot(slot, slots, moment);
        let keys: Vec<Key> = self.lent.range(slot.keys(slots)).map(|(key, _)| *key).collect();
        for key in keys {
            self.lent.remove(&key);
        }
        grants
    }

    /// Slices that came with a slot.
    pub(super) fn insert_grants(&mut self, grants: Vec<Grant>, memory: &Memory, moment: Moment) {
        for Grant { key, limit, borrower, number, left, ttl, charged } in grants {
            self.number = self.number.max(number);
            let state = match charged {
                Some(ChargedHits { hits, age }) => GrantState::Charged { hits, at: moment.wall.before(age) },
                None if left == 0 => GrantState::Settled,
                None => GrantState::Open,
            };
            memory.set_reserved(key, memory.reserved(key) + left);
            let expires_at = moment.now.after(ttl);
            self.lent.entry(key).or_default().grants.push(OpenGrant {
                limit,
                borrower,
                number,
                left,
                expires_at,
                state,
            });
        }
    }
}

impl Node {
    /// What `peer` gets beside its answer, for it asks often.
    pub(super) fn lease_hits(
        &mut self,
        peer: MemberId,
        check: &RemoteCheck,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<LeaseReply> {
        let RemoteCheck { key, limit, lease_hits, .. } = check;
        if !limit.can_be_lent()
            || KEYS_MAX <= self.lease_owner.lent.len() && !self.lease_owner.lent.contains_key(key)
        {
            return None;
        }
        if !decision.verdict.passes() {
            let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else { return None };
            if decision.remaining != 0 {
                return None;
            }
            let ttl = LEASE_TTL.min(retry_after);
            let lent = self.lease_owner.lent.entry(*key).or_default();
            lent.refused.retain(|(member, expires_at)| *member != peer && now < *expires_at);
            lent.refused.push((peer, now.after(ttl)));
            return Some(LeaseReply::Refused { ttl });
        }
        // Half of what is left, divided among all who may ask.
        let members = self.placement.members().len().max(1) as u64;
        let hits = (*lease_hits).min(decision.remaining / (2 * members));
        // What is lent in a window must be used in it.
        let ttl = if limit.period().is_some() { LEASE_TTL.min(decision.reset_after) } else { LEASE_TTL };
        let has_one = self.lease_owner.lent.get(key).is_some_and(|lent| {
            lent.recalled || lent.grants.iter().any(|out| out.borrower == peer && 0 < out.left)
        });
        if hits < HITS_MIN || ttl.is_zero() || has_one {
            return None;
        }
        self.memory.lend(*key, limit, hits, self.wall)?;
        self.lease_owner.number += 1;
        let number = self.lease_owner.number;
        let expires_at = now.after(ttl);
        let out = OpenGrant {
            limit: limit.clone(),
            borrower: peer,
            number,
            left: hits,
            expires_at,
            state: GrantState::Open,
        };
        self.lease_owner.lent.entry(*key).or_default().grants.push(out);
        self.mark_leases_changed(*key);
        self.stats.grants_lent += 1;
        Some(LeaseReply::Granted { number, hits, ttl })
    }

    fn mark_leases_changed(&mut self, key: Key) {
        let slot = Slot::of(key, self.slots.len());
        self.slot_mut(slot).leases_changed = true;
    }

    /// A lessee tells what it has used.
    pub(super) fn settle(&mut self, key: Key, limit: &Limit, settlement: &Settlement, now: Timestamp) {
        let Settlement { borrower, number, hits, left, age, state } = settlement;
        let same = |out: &&mut OpenGrant| out.borrower == *borrower && out.number == *number;
        let out = self.lease_owner.lent.get_mut(&key).and_then(|lent| lent.grants.iter_mut().find(same));
        let (mut hits, mut rest) = (*hits, 0);
        if let Some(out) = out {
            match out.state {
                // All of it is accounted for.
                GrantState::Settled => return,
                GrantState::Charged { hits, at } => {
                    // What was used is charged. How much was not is known when nothing more can be used.
                    if *state == LeaseState::Closed {
                        out.state = GrantState::Settled;
                        let unused = Used { hits: hits.get().min(*left), at };
                        self.refund_unused(key, limit, unused);
                    }
                    return;
                }
                GrantState::Open => {}
            }
            // What was told before may come later, or was told to a former holder and is forgotten.
            hits = out.left.saturating_sub(*left);
            out.left -= hits;
            if *state == LeaseState::Closed {
                rest = std::mem::take(&mut out.left);
                out.state = GrantState::Settled;
            }
        }
        if 0 < hits {
            let at = self.wall.before(*age);
            self.memory.charge_lent(key, limit, Used { hits, at }, self.wall);
        }
        self.memory.unlend(key, rest);
        if *state == LeaseState::Closed {
            self.mark_leases_changed(key);
            self.prune_key(key, now);
        }
    }

    fn refund_unused(&mut self, key: Key, limit: &Limit, unused: Used) {
        if 0 < unused.hits {
            self.memory.return_lent(key, limit, unused, self.wall);
            self.revoke_refusals(key);
        }
        self.mark_leases_changed(key);
    }

    /// Forgets a key of which nothing is lent any more, and asks what waited for that.
    fn prune_key(&mut self, key: Key, now: Timestamp) {
        let Some(lent) = self.lease_owner.lent.get_mut(&key) else { return };
        if lent.grants.iter().all(|out| out.left == 0) {
            lent.recalled = false;
            if lent.grants.is_empty() && lent.refused.is_empty() {
                self.lease_owner.lent.remove(&key);
            }
            self.retry_parked_of_key(key, now);
        }
    }

    /// Calls the slices of `key` back.
    pub(super) fn recall_grants(&mut self, key: Key) {
        let Some(lent) = self.lease_owner.lent.get_mut(&key) else {
            // Nothing is lent, so nothing is reserved.
            self.memory.set_reserved(key, 0);
            return;
        };
        let borrowers: Vec<MemberId> =
            lent.grants.iter().filter(|out| 0 < out.left).map(|out| out.borrower).collect();
        if borrowers.is_empty() {
            self.memory.set_reserved(key, 0);
        } else if !std::mem::replace(&mut lent.recalled, true) {
            self.stats.grants_recalled += 1;
            for borrower in borrowers {
                self.send(borrower, Message::Recall { key });
            }
        }
    }

    /// Refusals of `key` that were told are no longer true.
    pub(super) fn revoke_refusals(&mut self, key: Key) {
        let Some(lent) = self.lease_owner.lent.get_mut(&key) else { return };
        for (member, _) in std::mem::take(&mut lent.refused) {
            self.send(member, Message::Revoke { key });
        }
    }

    /// What was not accounted for in time counts as used.
    pub(super) fn expire_grants(&mut self, now: Timestamp) {
        self.charge_where(|out| out.expires_at <= now, now);
        for lent in self.lease_owner.lent.values_mut() {
            lent.grants.retain(|out| now < out.expires_at.after(out.retention()));
            lent.refused.retain(|(_, expires_at)| now < *expires_at);
        }
        self.lease_owner.lent.retain(|_, lent| !lent.grants.is_empty() || !lent.refused.is_empty());
    }

    /// Nothing is heard of a lessee for now, so all that it may have used counts; for good where it is dead.
    pub(super) fn borrower_departed(&mut self, member: MemberId, departure: Departure, now: Timestamp) {
        self.charge_where(|out| out.borrower == member, now);
        if departure == Departure::Proven {
            let grants = self.lease_owner.lent.values_mut().flat_map(|lent| &mut lent.grants);
            grants.filter(|out| out.borrower == member).for_each(|out| out.state = GrantState::Settled);
        }
    }

    /// What is charged of `key` stays so, whatever its borrowers tell: other hits were put in its place.
    pub(super) fn fix_charged_hits(&mut self, key: Key) {
        for out in self.lease_owner.lent.get_mut(&key).into_iter().flat_map(|lent| &mut lent.grants) {
            if let GrantState::Charged { .. } = out.state {
                out.state = GrantState::Settled;
            }
        }
    }

    fn charge_where(&mut self, is_over: impl Fn(&OpenGrant) -> bool, now: Timestamp) {
        let (mut ended, mut charged) = (Vec::new(), Vec::new());
        for (key, lent) in &mut self.lease_owner.lent {
            for out in lent.grants.iter_mut().filter(|out| out.state == GrantState::Open && is_over(out)) {
                out.state = GrantState::Settled;
                if let Some(hits) = NonZeroU64::new(std::mem::take(&mut out.left)) {
                    // Hits that were lent in a window were used in it.
                    let at = self.wall.before(now.since(out.expires_at)).before(JUST_BEFORE);
                    out.state = GrantState::Charged { hits, at };
                    charged.push((*key, out.limit.clone(), Used { hits: hits.get(), at }));
                }
                ended.push(*key);
            }
        }
        for (key, limit, used) in charged {
            self.stats.grants_lost += 1;
            self.memory.charge_lent(key, &limit, used, self.wall);
        }
        for key in ended {
            self.mark_leases_changed(key);
            self.prune_key(key, now);
        }
    }
}
