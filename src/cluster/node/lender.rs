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
        message::{Charged, End, Grant, Message, Question, Settlement, Slice},
        node::{Node, members::How},
    },
    descriptor::Key,
    store::{Memory, Slot, UsedHits},
    time::Timestamp,
};

/// How long a slice or a refusal lasts.
pub(super) const LIFE: Duration = Duration::from_millis(500);
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
    fate: Fate,
}

/// What is known of the unaccounted hits of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
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

impl Out {
    fn as_told(&self, key: Key, moment: Moment) -> Slice {
        let charged = match self.fate {
            Fate::Open | Fate::Settled => None,
            Fate::Charged { hits, at } => Some(Charged { hits, age: moment.wall.since(at) }),
        };
        Slice {
            key,
            limit: self.limit.clone(),
            lessee: self.lessee,
            number: self.number,
            left: self.left,
            life: self.until.since(moment.now),
            charged,
        }
    }

    /// For how long after its end it is remembered.
    fn kept(&self) -> Duration {
        match self.fate {
            Fate::Open | Fate::Settled => EXPIRED_KEPT,
            Fate::Charged { .. } => CHARGED_KEPT,
        }
    }
}

impl Lender {
    /// The slices out of `slot`, as others need them.
    pub(super) fn slices_of(&self, slot: Slot, slots: usize, moment: Moment) -> Vec<Slice> {
        let of_slot = self.lent.range(slot.keys(slots));
        of_slot.flat_map(|(key, lent)| lent.slices.iter().map(|out| out.as_told(*key, moment))).collect()
    }

    /// The same, no longer kept here.
    pub(super) fn take_out(&mut self, slot: Slot, slots: usize, moment: Moment) -> Vec<Slice> {
        let slices = self.slices_of(slot, slots, moment);
        let keys: Vec<Key> = self.lent.range(slot.keys(slots)).map(|(key, _)| *key).collect();
        for key in keys {
            self.lent.remove(&key);
        }
        slices
    }

    /// Slices that came with a slot.
    pub(super) fn take_in(&mut self, slices: Vec<Slice>, memory: &Memory, moment: Moment) {
        for Slice { key, limit, lessee, number, left, life, charged } in slices {
            self.number = self.number.max(number);
            let fate = match charged {
                Some(Charged { hits, age }) => Fate::Charged { hits, at: moment.wall.before(age) },
                None if left == 0 => Fate::Settled,
                None => Fate::Open,
            };
            memory.set_reserved(key, memory.reserved(key) + left);
            let until = moment.now.after(life);
            self.lent.entry(key).or_default().slices.push(Out { limit, lessee, number, left, until, fate });
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
        if !limit.is_leasable() || KEYS_MAX <= self.lender.lent.len() && !self.lender.lent.contains_key(key) {
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
        let out = Out { limit: limit.clone(), lessee: peer, number, left: hits, until, fate: Fate::Open };
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
            match out.fate {
                // All of it is accounted for.
                Fate::Settled => return,
                Fate::Charged { hits, at } => {
                    // What was used is charged. How much was not is known when nothing more can be used.
                    if *end == End::Closed {
                        out.fate = Fate::Settled;
                        let unused = UsedHits { hits: hits.get().min(*left), at };
                        self.give_back_unused(key, limit, unused);
                    }
                    return;
                }
                Fate::Open => {}
            }
            // What was told before may come later, or was told to a former holder and is forgotten.
            hits = out.left.saturating_sub(*left);
            out.left -= hits;
            if *end == End::Closed {
                rest = std::mem::take(&mut out.left);
                out.fate = Fate::Settled;
            }
        }
        if 0 < hits {
            let at = self.wall.before(*age);
            self.memory.charge_lent(key, limit, UsedHits { hits, at }, self.wall);
        }
        self.memory.reclaim(key, rest);
        if *end == End::Closed {
            self.lent_changed(key);
            self.tidy(key, now);
        }
    }

    fn give_back_unused(&mut self, key: Key, limit: &Limit, unused: UsedHits) {
        if 0 < unused.hits {
            self.memory.refund_lent(key, limit, unused, self.wall);
            self.revoke(key);
        }
        self.lent_changed(key);
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
        self.charge_where(|out| out.until <= now, now);
        for lent in self.lender.lent.values_mut() {
            lent.slices.retain(|out| now < out.until.after(out.kept()));
            lent.refused.retain(|(_, until)| now < *until);
        }
        self.lender.lent.retain(|_, lent| !lent.slices.is_empty() || !lent.refused.is_empty());
    }

    /// Nothing is heard of a lessee for now, so all that it may have used counts; for good where it is dead.
    pub(super) fn lessee_gone(&mut self, member: MemberId, how: How, now: Timestamp) {
        self.charge_where(|out| out.lessee == member, now);
        if how == How::Proven {
            let slices = self.lender.lent.values_mut().flat_map(|lent| &mut lent.slices);
            slices.filter(|out| out.lessee == member).for_each(|out| out.fate = Fate::Settled);
        }
    }

    /// What is charged of `key` stays so, whatever its borrowers tell: other hits were put in its place.
    pub(super) fn forget_charged(&mut self, key: Key) {
        for out in self.lender.lent.get_mut(&key).into_iter().flat_map(|lent| &mut lent.slices) {
            if let Fate::Charged { .. } = out.fate {
                out.fate = Fate::Settled;
            }
        }
    }

    fn charge_where(&mut self, over: impl Fn(&Out) -> bool, now: Timestamp) {
        let (mut ended, mut charged) = (Vec::new(), Vec::new());
        for (key, lent) in &mut self.lender.lent {
            for out in lent.slices.iter_mut().filter(|out| out.fate == Fate::Open && over(out)) {
                out.fate = Fate::Settled;
                if let Some(hits) = NonZeroU64::new(std::mem::take(&mut out.left)) {
                    // Hits that were lent in a window were used in it.
                    let at = self.wall.before(now.since(out.until)).before(JUST_BEFORE);
                    out.fate = Fate::Charged { hits, at };
                    charged.push((*key, out.limit.clone(), UsedHits { hits: hits.get(), at }));
                }
                ended.push(*key);
            }
        }
        for (key, limit, used) in charged {
            self.figures.slices_lost += 1;
            self.memory.charge_lent(key, &limit, used, self.wall);
        }
        for key in ended {
            self.lent_changed(key);
            self.tidy(key, now);
        }
    }
}
