//! Hot keys: the holder lends slices of a limit to those who keep asking.
//!
//! A slice that is out counts as taken until it is back, used or expired, so what all replicas admit together never
//! passes the limit. A lessee stops using a slice before its holder counts it as used up: its time runs from when it
//! asked, the holder's from when it lent.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    algorithm::{Ask, Decision, Limit, Verdict},
    cluster::{
        MemberId,
        message::{Deed, End, Grant, Message, Question, Settlement, Slice},
        node::Node,
    },
    descriptor::Key,
    store::{Memory, Slot, Used},
    time::Timestamp,
};

/// How long a slice or a refusal lasts.
const LIFE: Duration = Duration::from_millis(500);
/// Over which time forwards are counted to find hot keys.
const HEAT_WINDOW: Duration = Duration::from_millis(100);
/// The most keys whose forwards are counted in one such time.
const HEAT_KEYS_MAX: usize = 4_096;
/// The most keys with slices, lent or borrowed.
const KEYS_MAX: usize = 10_000;
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

/// What this replica has borrowed, and which keys it forwards often.
#[derive(Debug, Default)]
pub(super) struct Lessee {
    borrowed: BTreeMap<Key, Borrowed>,
    heat: BTreeMap<Key, u64>,
    heat_since: Timestamp,
    told_at: Timestamp,
}

/// What is known of one hot key.
#[derive(Clone, Debug)]
struct Borrowed {
    limit: Limit,
    kind: Kind,
    until: Timestamp,
}

#[derive(Clone, Debug)]
enum Kind {
    Slice {
        number: u64,
        left: u64,
        /// What the holder had left besides, when it lent.
        beside: u64,
        reset_at: Timestamp,
        /// Hits that were used and not told yet, and when the last of them was.
        used: u64,
        used_at: Timestamp,
    },
    Nothing {
        retry_at: Timestamp,
    },
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

impl Lessee {
    /// Decides out of what was lent or told; `None` where the holder has to be asked.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        ask: Ask,
        now: Timestamp,
    ) -> Option<(Decision, u64)> {
        let borrowed = self.borrowed.get_mut(&key)?;
        let Ask::Charge(hits) = ask else { return None };
        if borrowed.until <= now || borrowed.limit != *limit {
            return None;
        }
        match &mut borrowed.kind {
            Kind::Slice { left, beside, reset_at, used, used_at, .. } => {
                *left = left.checked_sub(hits)?;
                (*used, *used_at) = (*used + hits, now);
                let decision = Decision {
                    verdict: Verdict::Pass,
                    remaining: *left + *beside,
                    reset_after: reset_at.since(now),
                    receipt: None,
                };
                Some((decision, hits))
            }
            // For more than one hit it would take longer, and only the holder knows how much.
            Kind::Nothing { retry_at } if hits == 1 => {
                let retry_after = retry_at.since(now);
                let verdict = Verdict::Refuse { retry_after: Some(retry_after) };
                Some((Decision { verdict, remaining: 0, reset_after: retry_after, receipt: None }, 0))
            }
            Kind::Nothing { .. } => None,
        }
    }

    /// How many hits to wish for with this forward: none, unless there were many.
    pub(super) fn wish(&mut self, key: Key, lease_from: Option<u64>, now: Timestamp) -> u64 {
        let Some(lease_from) = lease_from else { return 0 };
        if HEAT_WINDOW <= now.since(self.heat_since) {
            self.heat.clear();
            self.heat_since = now;
        }
        if HEAT_KEYS_MAX <= self.heat.len() && !self.heat.contains_key(&key) {
            return 0;
        }
        let forwards = self.heat.entry(key).or_default();
        *forwards += 1;
        let window = HEAT_WINDOW.as_millis() as u64;
        let many = (lease_from * window).div_ceil(1000).max(1);
        // Enough for as long as a slice lasts.
        if many <= *forwards { *forwards * LIFE.as_millis() as u64 / window } else { 0 }
    }

    /// The holder has lent something, or refuses everything, in answer to `question`, which was asked at `asked_at`.
    fn granted(
        &mut self,
        question: &Question,
        decision: &Decision,
        grant: Grant,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        let (kind, life) = match grant {
            Grant::Nothing { life } => {
                let Verdict::Refuse { retry_after: Some(retry_after) } = decision.verdict else { return };
                (Kind::Nothing { retry_at: now.after(retry_after) }, life)
            }
            Grant::Slice { number, hits, life } => {
                let kind = Kind::Slice {
                    number,
                    left: hits,
                    beside: decision.remaining.saturating_sub(hits),
                    reset_at: now.after(decision.reset_after),
                    used: 0,
                    used_at: now,
                };
                (kind, life)
            }
        };
        // The holder's time runs from later on, and what is left of a slice has to be back by its end.
        let until = asked_at.after(life * 3 / 4);
        let borrowed = Borrowed { limit: question.limit.clone(), kind, until };
        self.borrowed.insert(question.key, borrowed);
    }

    pub(super) fn revoke(&mut self, key: Key) {
        if self.borrowed.get(&key).is_some_and(|borrowed| matches!(borrowed.kind, Kind::Nothing { .. })) {
            self.borrowed.remove(&key);
        }
    }
}

impl Borrowed {
    /// What is to be told of it, if it is a slice; from then on it counts as told.
    fn settlement(&mut self, me: MemberId, end: End, now: Timestamp) -> Option<Settlement> {
        match &mut self.kind {
            Kind::Nothing { .. } => None,
            Kind::Slice { number, left, used, used_at, .. } => {
                let (hits, left) = (std::mem::take(used), *left);
                Some(Settlement { lessee: me, number: *number, hits, left, age: now.since(*used_at), end })
            }
        }
    }
}

impl Node {
    /// The holder has lent something, or refuses everything. What it had lent before is settled.
    pub(super) fn granted(
        &mut self,
        question: &Question,
        decision: &Decision,
        grant: Grant,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        self.recalled(question.key, now);
        if self.lessee.borrowed.len() < KEYS_MAX {
            self.lessee.granted(question, decision, grant, asked_at, now);
        }
        if self.draining_since.is_some() {
            self.give_back(now);
        }
    }

    /// Takes back hits that this replica gave out of what it was lent.
    pub(crate) fn undo_lease(&mut self, key: Key, limit: &Limit, hits: u64) {
        if let Some(borrowed) = self.lessee.borrowed.get_mut(&key)
            && borrowed.limit == *limit
            && let Kind::Slice { left, used, .. } = &mut borrowed.kind
            && hits <= *used
        {
            (*left, *used) = (*left + hits, *used - hits);
        }
    }

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

    /// Gives everything back that was lent.
    pub(super) fn give_back(&mut self, now: Timestamp) {
        for key in self.lessee.borrowed.keys().copied().collect::<Vec<_>>() {
            self.recalled(key, now);
        }
    }

    /// The holder wants back what it lent.
    pub(super) fn recalled(&mut self, key: Key, now: Timestamp) {
        if let Some(mut borrowed) = self.lessee.borrowed.remove(&key)
            && let Some(settlement) = borrowed.settlement(self.me, End::Closed, now)
        {
            self.tell(Question { key, limit: borrowed.limit, deed: Deed::Settle(settlement), wish: 0 }, now);
        }
    }

    /// Refusals of `key` that were told are no longer true.
    pub(super) fn revoke(&mut self, key: Key) {
        let Some(lent) = self.lender.lent.get_mut(&key) else { return };
        for (member, _) in std::mem::take(&mut lent.refused) {
            self.send(member, Message::Revoke { key });
        }
    }

    /// Slices that are over, on both sides, and what is to be told of the others.
    pub(super) fn end_leases(&mut self, now: Timestamp) {
        self.end_lent(now);
        let tell = self.tuning.backup_interval.unwrap_or(HEAT_WINDOW) <= now.since(self.lessee.told_at);
        if tell {
            self.lessee.told_at = now;
        }
        let mut told = Vec::new();
        for (key, borrowed) in &mut self.lessee.borrowed {
            let over = borrowed.until <= now;
            let used = matches!(borrowed.kind, Kind::Slice { used, .. } if 0 < used);
            if over || (tell && used) {
                let end = if over { End::Closed } else { End::Open };
                told.extend(
                    borrowed.settlement(self.me, end, now).map(|told| (*key, borrowed.limit.clone(), told)),
                );
            }
        }
        self.lessee.borrowed.retain(|_, borrowed| now < borrowed.until);
        for (key, limit, settlement) in told {
            self.tell(Question { key, limit, deed: Deed::Settle(settlement), wish: 0 }, now);
        }
    }

    /// What was not accounted for in time counts as used.
    fn end_lent(&mut self, now: Timestamp) {
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

    /// A holder is gone: nothing more of its slices is used, and its successor is told what was.
    pub(super) fn lessor_gone(&mut self, member: MemberId, now: Timestamp) {
        let slots = self.slots.len();
        let holder = |key: &Key| self.slots[Slot::of(*key, slots).index()].holder.map(|holder| holder.member);
        let theirs: Vec<Key> =
            self.lessee.borrowed.keys().filter(|key| holder(key) == Some(member)).copied().collect();
        for key in theirs {
            self.recalled(key, now);
        }
    }
}
