//! Operations of operators: dry runs, and access to single counters.

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation},
    descriptor::Key,
    store::{
        Checks, Decisions, decide_set::decide_set, held_counter::Room, memory::Memory,
        operation::CounterOperation,
    },
    time::Timestamp,
};

/// The decisions that a check set would get, with the state of its counters.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// The states of the counters, in the order of the checks.
    pub before: SmallVec<[CounterState; 2]>,
}

/// The state of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The instant from which the counter may be evicted; `None` if there is no counter, or an idle one.
    pub idle_at: Option<Timestamp>,
    /// The answer to a peek.
    pub peek: Decision,
}

/// A counter before and after its replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Before.
    pub before: CounterState,
    /// After.
    pub after: CounterState,
}

impl Memory {
    /// The decisions that [`Memory::apply`] would return now. Changes nothing, and does not predict a lack of memory
    /// for a new key.
    pub fn dry_run(
        &self,
        checks: &Checks<'_>,
        now: Timestamp,
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> DryRun {
        let mut copies = self.copies(checks, now);
        let before = checks
            .iter()
            .map(|check| {
                let copy = copies.iter().find(|(key, _)| *key == check.key);
                CounterState::of(copy.map(|(_, counter)| counter), check.limit, now)
            })
            .collect();
        let decisions = decide_set(checks, refused, |index, operation| {
            let check = &checks[index];
            let position = copies.iter().position(|(key, _)| *key == check.key).unwrap_or_else(|| {
                copies.push((check.key, check.limit.fresh()));
                copies.len() - 1
            });
            (operation.apply(check.limit, &mut copies[position].1, now), true)
        });
        DryRun { decisions, before }
    }

    /// Consistent copies of the stored counters of the checks.
    fn copies(&self, checks: &Checks<'_>, now: Timestamp) -> Vec<(Key, Counter)> {
        let mut locked = self.lock(checks, now);
        let mut copies: Vec<(Key, Counter)> = Vec::new();
        for check in checks {
            if let Some(packed) = locked.table(check.key).get(check.key)
                && copies.iter().all(|(key, _)| *key != check.key)
            {
                copies.push((check.key, packed.corrected(check.limit, self.at(now))));
            }
        }
        copies
    }

    /// The state of the counter of `key`, of the kind of `limit`.
    pub fn peek(&self, key: Key, limit: &Limit, now: Timestamp) -> CounterState {
        self.lock_key(key, now).state(key, limit)
    }

    /// Replaces the counter of `key` by a fresh one with `hits` charged. Hits above the limit become a debt if the
    /// algorithm can hold one. Does nothing if this replica does not own the slot.
    pub fn replace(&self, key: Key, limit: &Limit, now: Timestamp, hits: u64) -> Replacement {
        let mut locked = self.lock_key(key, now);
        let before = locked.state(key, limit);
        if locked.are_owned() {
            let set = CounterOperation::Set(hits);
            locked.with_held(key, |counter| counter.apply(limit, &set, self.at(now), Room::NONE));
            locked.record_change(key);
        }
        Replacement { before, after: locked.state(key, limit) }
    }
}

impl CounterState {
    /// The state of a counter elsewhere whose peek was answered like this at `now`.
    pub(crate) fn of_peek(limit: &Limit, peek: Decision, now: Timestamp) -> Self {
        let is_used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        Self { idle_at: is_used.then(|| now.after(peek.reset_after)), peek }
    }

    pub(super) fn of(counter: Option<&Counter>, limit: &Limit, now: Timestamp) -> Self {
        let idle_at = counter.map(|counter| limit.idle_at(counter)).filter(|idle_at| now < *idle_at);
        let mut copy = counter.cloned().unwrap_or_else(|| limit.fresh());
        Self { idle_at, peek: limit.decide(&mut copy, now, Operation::Peek) }
    }
}
