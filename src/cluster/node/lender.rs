//! What a holder lends of a hot key's limit: slices, to those who keep asking.
//!
//! A slice that is out counts as taken until it is back, used or expired, so what all replicas admit together never
//! passes the limit.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Verdict},
    cluster::{
        MemberId,
        message::{End, Grant, Message, Question, Settlement, Slice},
        node::Node,
    },
    descriptor::Key,
    store::{Memory, Slot, Used},
    time::Timestamp,
};

/// How long a slice or a refusal lasts.
pub(super) const LIFE: Duration = Duration::from_millis(500);
/// The most keys with slices, lent or borrowed.
pub(super) const KEYS_MAX: usize = 10_000;
/// How long a slice is remembered after its end, so that what is told late is not counted twice.
const EXPIRED_KEPT: Duration = Duration::from_secs(10);
/// No slice is smaller.
const HITS_MIN: u64 = 2;

/// What this replica, as a holder, has lent.
#[derive(Debug, Default)]
pub(super) struct Lender {
    lent: BTreeMap<Key, Lent>,
    number: u64,
}

/// What is lent of one key.
#[derive(Clone, Debug, Default)]
struct Lent {
    slices: Vec<Out>,
    /// Who was told that everything is refused, and until when.
    refused: Vec<(MemberId, Timestamp)>,
    /// Whether the slices were called back.
    recalled: bool,
}

/// A slice that is out.
#[derive(Clone, Debug)]
struct Out {
    limit: Limit,
    lessee: MemberId,
    number: u64,
    /// Hits that are not accounted for.
    left: u64,
    until: Timestamp,
    /// What became of it was told; or nobody told in time, and all of it counts as used.
    over: bool,
}

impl Lender {
    /// The slices out of `slot`, as others need them.
    pub(super) fn slices_of(&self, slot: Slot, slots: usize, now: Timestamp) -> Vec<Slice> {
        let of_slot = self.lent.range(slot.keys(slots));
        let slice = |key: &Key, out: &Out| Slice {
            key: *key,
            limit: out.limit.clone(),
            lessee: out.lessee,
            number: out.number,
            left: out.left,
            life: out.until.since(now),
        };
        of_slot.flat_map(|(key, lent)| lent.slices.iter().map(move |out| slice(key, out))).collect()
    }

    /// The same, no longer kept here.
    pub(super) fn take_out(&mut self, slot: Slot, slots: usize, now: Timestamp) -> Vec<Slice> {
        let slices = self.slices_of(slot, slots, now);
        let keys: Vec<Key> = self.lent.range(slot.keys(slots)).map(|(key, _)| *key).collect();
        for key in keys {
            self.lent.remove(&key);
        }
        slices
    }

    /// Slices that came with a slot.
    pub(super) fn take_in(&mut self, slices: Vec<Slice>, memory: &Memory, now: Timestamp) {
        for Slice { key, limit, lessee, number, left, life } in slices {
            self.number = self.number.max(number);
            let until = now.after(life);
            memory.set_reserved(key, memory.reserved(key) + left);
            self.lent.entry(key).or_default().slices.push(Out {
                limit,
                lessee,
                number,
                left,
                until,
                over: false,
            });
        }
    }
}

impl Node {
    /// What `peer` gets beside its answer, for it asks often.
    pub(super) fn grant(
        &mut self,
        peer: MemberId,
        question: &Question,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<Grant> {
        let Question { key, limit, wish, .. } = question;
        if !limit.can_be_lent() || KEYS_MAX <= self.lender.lent.len() && !self.lender.lent.contains_key(key) {
            return None;
        }
        if !decision.verdict.passes() {
            let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else { return None };
            if decision.remaining != 0 {
                return None;
            }
            let life = LIFE.min(retry_after);
            let lent = self.lender.lent.entry(*key).or_default();
            lent.refused.retain(|(member, until)| *member != peer && now < *until);
            lent.refused.push((peer, now.after(life)));
            return Some(Grant::Nothing { life });
        }
        // Half of what is left, divided among all who may ask.
        let members = self.wanted.members().len().max(1) as u64;
        let hits = (*wish).min(decision.remaining / (2 * members));
        // What is lent in a window must be used in it.
        let life = if limit.period().is_some() { LIFE.min(decision.reset_after) } else { LIFE };
        let has_one = self.lender.lent.get(key).is_some_and(|lent| {
            lent.recalled || lent.slices.iter().any(|out| out.lessee == peer && 0 < out.left)
        });
        if hits < HITS_MIN || life.is_zero() || has_one {
            return None;
        }
        self.memory.lend(*key, limit, hits, self.wall)?;
        self.lender.number += 1;
        let number = self.lender.number;
        let until = now.after(life);
        let out = Out { limit: limit.clone(), lessee: peer, number, left: hits, until, over: false };
        self.lender.lent.entry(*key).or_default().slices.push(out);
        self.lent_changed(*key);
        self.figures.slices_lent += 1;
        Some(Grant::Slice { number, hits, life })
    }

    fn lent_changed(&mut self, key: Key) {
        let slot = Slot::of(key, self.slots.len());
        self.slot_mut(slot).lent_changed = true;
    }

    /// A lessee tells what it has used.
    pub(super) fn settle(&mut self, key: Key, limit: &Limit, settlement: &Settlement, now: Timestamp) {
        let Settlement { lessee, number, hits, left, age, end } = settlement;
        let same = |out: &&mut Out| out.lessee == *lessee && out.number == *number;
        let out = self.lender.lent.get_mut(&key).and_then(|lent| lent.slices.iter_mut().find(same));
        let (mut hits, mut rest) = (*hits, 0);
        if let Some(out) = out {
            if out.over {
                // All of it is accounted for.
                return;
            }
            // What was told before may come later, or was told to a former holder and is forgotten.
            hits = out.left.saturating_sub(*left);
            out.left -= hits;
            if *end == End::Closed {
                rest = std::mem::take(&mut out.left);
                out.over = true;
            }
        }
        if 0 < hits {
            let at = self.wall.before(*age);
            self.memory.charge_lent(key, limit, Used { hits, at }, self.wall);
        }
        self.memory.unlend(key, rest);
        if *end == End::Closed {
            self.lent_changed(key);
            self.tidy(key, now);
        }
    }

    /// Forgets a key of which nothing is lent any more, and asks what waited for that.
    fn tidy(&mut self, key: Key, now: Timestamp) {
        let Some(lent) = self.lender.lent.get_mut(&key) else { return };
        if lent.slices.iter().all(|out| out.left == 0) {
            lent.recalled = false;
            if lent.slices.is_empty() && lent.refused.is_empty() {
                self.lender.lent.remove(&key);
            }
            self.ask_lent(key, now);
        }
    }

    /// Calls the slices of `key` back.
    pub(super) fn recall(&mut self, key: Key) {
        let Some(lent) = self.lender.lent.get_mut(&key) else {
            // Nothing is lent, so nothing is reserved.
            self.memory.set_reserved(key, 0);
            return;
        };
        let lessees: Vec<MemberId> =
            lent.slices.iter().filter(|out| 0 < out.left).map(|out| out.lessee).collect();
        if lessees.is_empty() {
            self.memory.set_reserved(key, 0);
        } else if !std::mem::replace(&mut lent.recalled, true) {
            self.figures.recalls += 1;
            for lessee in lessees {
                self.send(lessee, Message::Recall { key });
            }
        }
    }

    /// Refusals of `key` that were told are no longer true.
    pub(super) fn revoke(&mut self, key: Key) {
        let Some(lent) = self.lender.lent.get_mut(&key) else { return };
        for (member, _) in std::mem::take(&mut lent.refused) {
            self.send(member, Message::Revoke { key });
        }
    }

    /// What was not accounted for in time counts as used.
    pub(super) fn end_lent(&mut self, now: Timestamp) {
        self.use_up_where(|out| out.until <= now, now);
        for lent in self.lender.lent.values_mut() {
            lent.slices.retain(|out| now < out.until.after(EXPIRED_KEPT));
            lent.refused.retain(|(_, until)| now < *until);
        }
        self.lender.lent.retain(|_, lent| !lent.slices.is_empty() || !lent.refused.is_empty());
    }

    /// A lessee is gone: nobody knows what it has used, so all of it counts.
    pub(super) fn lessee_gone(&mut self, member: MemberId, now: Timestamp) {
        self.use_up_where(|out| out.lessee == member, now);
    }

    fn use_up_where(&mut self, over: impl Fn(&Out) -> bool, now: Timestamp) {
        let mut used_up = Vec::new();
        for (key, lent) in &mut self.lender.lent {
            for out in lent.slices.iter_mut().filter(|out| !out.over && over(out)) {
                out.over = true;
                used_up.push((*key, out.limit.clone(), std::mem::take(&mut out.left)));
            }
        }
        for (key, limit, hits) in used_up {
            self.figures.slices_lost += 1;
            self.memory.charge_lent(key, &limit, Used { hits, at: self.wall }, self.wall);
            self.lent_changed(key);
            self.tidy(key, now);
        }
    }
}
