//! Operations of operators: dry runs, and access to single counters.

use std::{collections::BTreeMap, sync::Arc};

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, PenaltyState},
    descriptor::Key,
    time::Timestamp,
};

use crate::{
    Check, Checks, Decisions, LimitOrigin, OnRefusal, OpenHolds, OwnLimitState, OwnTerms, Subscribers,
    held_counter::{HeldCounter, Room},
    memory::{LockedSlots, Memory},
    operation::{CounterDetails, CounterOperation, HoldOutcome, OperationOutcome, decide_set},
};

/// What operators do with counters in memory.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'m> {
    pub(super) memory: &'m Memory,
}

/// The decisions that a check set would get, with the state of its counters.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// The states of the counters, in the order of the checks.
    pub before: SmallVec<[CounterState; 2]>,
}

/// The state of one counter.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterState {
    /// The instant from which the counter may be evicted; `None` if there is no counter, or an idle one.
    pub idle_at: Option<Timestamp>,
    /// The answer to a peek.
    pub peek: Decision,
    /// The open holds, if the caller requests them.
    pub holds: Arc<OpenHolds>,
    /// The record of refusals, if the caller requests it.
    pub penalty: Option<PenaltyState>,
    /// Clients with parts of the limit, if a replica of a cluster divides it.
    pub subscribers: Option<Arc<Subscribers>>,
    /// The limit of its own.
    pub own_limit: Option<OwnLimitState>,
}

/// A counter before and after its replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The counter before its replacement.
    pub before: CounterState,
    /// The counter after its replacement.
    pub after: CounterState,
}

impl Admin<'_> {
    /// The decisions that [`Memory::apply`] would return now. Changes nothing, and does not predict a lack of memory
    /// for a new key.
    pub fn dry_run(
        &self,
        checks: &Checks<'_>,
        now: Timestamp,
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> DryRun {
        let locked = LockedSlots::new(self.memory, checks, now);
        let before = checks.iter().map(|check| locked.state_of(check)).collect();
        let own = locked.each_own_terms(checks);
        let copies = checks.iter().map(|check| (check.key, locked.held(check.key)));
        let mut copies: BTreeMap<Key, HeldCounter> = copies.collect();
        drop(locked);
        let at = self.memory.at(now);
        let decisions = decide_set(checks, refused, |index, operation| {
            let Check { key, limit, origin, .. } = checks[index];
            let copy = copies.entry(key).or_default();
            (copy.apply(limit, origin, operation, at, Room::NONE).0.decision, true)
        });
        let displayed = own.iter().map(|own| own.as_ref().map(|own| own.requests_per_unit));
        DryRun { decisions: decisions.with_own(displayed), before }
    }

    /// The state of the counter of `key`, of the kind of `limit`.
    pub fn peek(&self, key: Key, limit: &Limit, now: Timestamp) -> CounterState {
        LockedSlots::for_key(self.memory, key, now).state(key, limit)
    }

    /// Replaces the counter of `key` by a fresh one with `hits` charged. Hits above the limit become a debt if the
    /// algorithm can hold one. Does nothing if this replica does not own the slot.
    pub fn replace(&self, key: Key, limit: &Limit, now: Timestamp, hits: u64) -> Replacement {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        let before = locked.state(key, limit);
        if locked.are_owned() {
            let operation = Operation::Peek;
            let origin = LimitOrigin::Rule;
            let check = Check { key, limit, operation, on_refusal: OnRefusal::Keep, origin };
            locked.apply(&check, &CounterOperation::Set(hits));
            locked.record_change(key);
        }
        Replacement { before, after: locked.state(key, limit) }
    }
}

impl CounterState {
    /// The state of a counter elsewhere from the outcome of a peek at `now`.
    pub fn from_outcome(limit: &Limit, outcome: &OperationOutcome, now: Timestamp) -> Self {
        let peek = outcome.decision;
        let shown = if let HoldOutcome::Shown(shown) = &outcome.hold { Some(&**shown) } else { None };
        let details = shown.cloned().unwrap_or_default();
        let own = details.own_limit.as_ref().filter(|_| outcome.own.is_some());
        let limit = own.and_then(|own| own.terms.as_ref()).map_or(limit, |own| &own.limit);
        let is_used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        let idle_at = is_used.then(|| now.after(peek.reset_after));
        let remembered = details.penalty.map(|penalty| now.after(penalty.forgotten_after));
        Self::new(idle_at.max(remembered), peek, details)
    }

    pub(super) fn new(idle_at: Option<Timestamp>, peek: Decision, details: CounterDetails) -> Self {
        let CounterDetails { holds, penalty, subscribers, own_limit } = details;
        Self { idle_at, peek, holds, penalty, subscribers, own_limit }
    }

    /// The limit of its own that decides.
    pub fn own_terms(&self) -> Option<&OwnTerms> {
        self.own_limit.as_ref()?.terms.as_ref()
    }
}
