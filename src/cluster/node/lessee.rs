//! What a replica has borrowed of hot keys, and which keys it forwards so often that it should.
//!
//! A lessee stops using a slice before its holder counts it as used up: its time runs from when it asked, the holder's
//! from when it lent.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Operation, Verdict},
    cluster::{
        MemberId,
        message::{Deed, End, Grant, Question, Settlement},
        node::{
            Node,
            lender::{KEYS_MAX, LIFE},
        },
    },
    descriptor::Key,
    store::Slot,
    time::Timestamp,
};

/// Over which time forwards are counted to find hot keys.
const HEAT_WINDOW: Duration = Duration::from_millis(100);
/// The most keys whose forwards are counted in one such time.
const HEAT_KEYS_MAX: usize = 4_096;

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

impl Lessee {
    /// Decides out of what was lent or told; `None` where the holder has to be asked.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        ask: Operation,
        now: Timestamp,
    ) -> Option<(Decision, u64)> {
        let borrowed = self.borrowed.get_mut(&key)?;
        let Operation::Charge(hits) = ask else { return None };
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

    /// Hits of `key` that this replica has borrowed and may still use.
    #[cfg(test)]
    pub(crate) fn borrowed(&self, key: Key, now: Timestamp) -> u64 {
        match self.lessee.borrowed.get(&key) {
            Some(Borrowed { kind: Kind::Slice { left, .. }, until, .. }) if now < *until => *left,
            Some(_) | None => 0,
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
