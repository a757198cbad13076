//! What operators do: try a call without charging it, look at one counter, replace one.

use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Counter, Decision, Limit},
    descriptor::Key,
    store::{
        Check, Decisions, Slot,
        cell::Cell,
        memory::{Deed, Memory, settle},
        table::Table,
    },
    time::Timestamp,
};

/// What a call would be answered, and what it would find.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// The answers to its checks, in their order.
    pub decisions: Decisions,
    /// Their counters as they are.
    pub before: SmallVec<[Kept; 2]>,
}

/// What is kept under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// From when on the counter may be forgotten; `None` where there is none, which is the same as an unused one.
    pub idle_at: Option<Timestamp>,
    /// The answer to a look.
    pub look: Decision,
}

/// A counter before and after it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Before.
    pub before: Kept,
    /// After.
    pub after: Kept,
}

impl Memory {
    /// What [`Memory::apply`] would answer now, without changing anything. It does not foresee that there would be
    /// no memory for a new key.
    pub fn rehearse(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> Rehearsal {
        let mut copies = self.copies(checks, now);
        let before = checks
            .iter()
            .map(|check| {
                let copy = copies.iter().find(|(key, _)| *key == check.key);
                Kept::of(copy.map(|(_, counter)| counter), check.limit, now)
            })
            .collect();
        let mut each = |index: usize, deed: Deed| {
            let check = &checks[index];
            let place = copies.iter().position(|(key, _)| *key == check.key).unwrap_or_else(|| {
                copies.push((check.key, check.limit.fresh()));
                copies.len() - 1
            });
            (deed.done(check, &mut copies[place].1, now), true)
        };
        Rehearsal { decisions: settle(checks, refused, &mut each), before }
    }

    /// Copies of the counters that there are, all of one moment.
    fn copies(&self, checks: &[Check<'_>], now: Timestamp) -> Vec<(Key, Counter)> {
        let mut slots: SmallVec<[Slot; 2]> = checks.iter().map(|check| self.slot(check.key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let tables: SmallVec<[_; 2]> = slots.iter().map(|slot| self.table(*slot)).collect();
        let mut copies: Vec<(Key, Counter)> = Vec::new();
        for check in checks {
            let slot = self.slot(check.key);
            // Every slot is among the locked ones.
            let table = &*tables[slots.partition_point(|other| *other < slot)];
            if let Some(cell) = table.get(check.key)
                && copies.iter().all(|(key, _)| *key != check.key)
            {
                copies.push((check.key, self.copy(cell, check.limit, now)));
            }
        }
        copies
    }

    /// What is kept under a key of `limit`'s kind.
    pub fn look(&self, key: Key, limit: &Limit, now: Timestamp) -> Kept {
        self.kept(&self.table(self.slot(key)), key, limit, now)
    }

    /// Forgets what is kept under a key of `limit`'s kind, and charges `hits` to a fresh counter instead. What is
    /// more than the limit lets pass is kept as a debt where the limit can hold one. Where its slot is not held,
    /// nothing is done.
    pub fn replace(&self, key: Key, limit: &Limit, now: Timestamp, hits: u64) -> Replaced {
        let slot = self.slot(key);
        let table = &mut *self.table(slot);
        let before = self.kept(table, key, limit, now);
        let mut tenure = self.tenures.as_ref().map(|tenures| tenures.lock(slot));
        if tenure.as_ref().is_some_and(|tenure| !tenure.is_held()) {
            return Replaced { before, after: before };
        }
        table.remove(key, &self.means);
        let mut counter = filled(limit, hits, now);
        if now < limit.idle_at(&counter) {
            let look = limit.decide(&mut counter, now, Ask::Look);
            let cell = Cell::new(limit, counter, &look);
            self.insert(table, key, cell, now);
        }
        if let (Some(tenures), Some(tenure)) = (&self.tenures, &mut tenure) {
            tenures.note(slot, tenure, key, table.len());
        }
        Replaced { before, after: self.kept(table, key, limit, now) }
    }

    fn kept(&self, table: &Table, key: Key, limit: &Limit, now: Timestamp) -> Kept {
        Kept::of(table.get(key).map(|cell| self.copy(cell, limit, now)).as_ref(), limit, now)
    }
}

impl Kept {
    fn of(counter: Option<&Counter>, limit: &Limit, now: Timestamp) -> Self {
        let idle_at = counter.map(|counter| limit.idle_at(counter)).filter(|idle_at| now < *idle_at);
        let mut copy = counter.cloned().unwrap_or_else(|| limit.fresh());
        Self { idle_at, look: limit.decide(&mut copy, now, Ask::Look) }
    }
}

/// A fresh counter to which `hits` are charged, beyond the limit too where it can hold a debt.
pub(super) fn filled(limit: &Limit, hits: u64, now: Timestamp) -> Counter {
    let mut counter = limit.fresh();
    if 0 < hits {
        // A queue takes as many as it holds.
        let most = limit.allowance();
        let hits = if matches!(limit, Limit::LeakyQueue(_)) { hits.min(most) } else { hits };
        limit.with_debt(hits).decide(&mut counter, now, Ask::Charge(hits));
    }
    counter
}
