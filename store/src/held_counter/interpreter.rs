//! The interpreter of the operations on a counter and its holds.

use std::sync::Arc;

use tollgate_counter::{
    algorithm::{Decision, Limit, Operation},
    packed_counter::Now,
    time::Timestamp,
};

use crate::{
    HoldTerms, OwnLimitChange, OwnLimitOutcome, OwnLimitRefusal, UnknownId,
    held_counter::{
        HeldCounter, Room,
        draft::{Exhausted, Reserve, reserve},
        peek,
    },
    holds::Holds,
    operation::{CounterDetails, CounterOperation, HoldOutcome, OperationOutcome},
    side_data::OwnLimit,
};

impl HeldCounter {
    /// Applies an operation on one counter, after its holds that are due have ended. Returns whether it has changed the
    /// counter. If the counter has a limit of its own, that decides in place of `limit`.
    pub fn apply(
        &mut self,
        limit: &Limit,
        operation: &CounterOperation,
        now: Now,
        room: Room,
    ) -> (OperationOutcome, bool) {
        let refusal = match operation {
            CounterOperation::SetOwnLimit(change) => self.set_own_limit(change, now.now, room),
            _ => None,
        };
        let (mut outcome, mut is_changed) = match self.own_terms(now.now).cloned() {
            None => self.apply_by(limit, operation, now, room),
            Some(own) => {
                let (outcome, is_changed) = self.apply_by(&own.limit, operation, now, room);
                let decision = own.allowed(outcome.decision);
                (OperationOutcome { decision, own: Some(own.requests_per_unit), ..outcome }, is_changed)
            }
        };
        if let CounterOperation::SetOwnLimit(_) = operation {
            let state = self.own_limit_state(now.now);
            is_changed = refusal.is_none();
            outcome.hold = HoldOutcome::OwnLimit(Box::new(OwnLimitOutcome { refusal, state }));
        }
        (outcome, is_changed)
    }

    /// Sets or removes the limit of its own. Returns why not, if it does not.
    fn set_own_limit(
        &mut self,
        change: &OwnLimitChange,
        now: Timestamp,
        room: Room,
    ) -> Option<OwnLimitRefusal> {
        let before = self.side_data().and_then(|side_data| side_data.own.as_deref());
        let applies = before.filter(|before| before.terms(now).is_some());
        let version = applies.map_or(0, OwnLimit::version);
        if change.replaces.is_some_and(|replaced| replaced != version) {
            return Some(OwnLimitRefusal::OtherVersion);
        }
        let own = OwnLimit::changed(before, change, now);
        if change.terms.is_some()
            && room.own_bytes < own.bytes().saturating_sub(before.map_or(0, OwnLimit::bytes))
        {
            return Some(OwnLimitRefusal::NoMemory);
        }
        self.side_data.get_or_insert_default().own = Some(Box::new(own));
        None
    }

    /// Applies an operation by `limit`.
    fn apply_by(
        &mut self,
        limit: &Limit,
        operation: &CounterOperation,
        now: Now,
        room: Room,
    ) -> (OperationOutcome, bool) {
        match operation {
            CounterOperation::Decide(operation) => {
                let decision = match *operation {
                    Operation::Refund(hits) => self.refund(limit, hits, now),
                    Operation::Peek | Operation::Charge(_) => {
                        self.update(limit, now, |limit, counter| limit.decide(counter, now.now, *operation))
                    }
                };
                let passes = decision.verdict.passes();
                let outcome = OperationOutcome::new(decision, limit.charged(*operation, passes));
                (outcome, limit.is_changed_by(*operation, passes))
            }
            CounterOperation::Set(_) => {
                self.reset();
                (
                    OperationOutcome::new(
                        self.update(limit, now, |limit, counter| operation.apply(limit, counter, now.now)),
                        0,
                    ),
                    true,
                )
            }
            CounterOperation::Undo(_) | CounterOperation::Absorb(_) | CounterOperation::SetOwnLimit(_) => (
                OperationOutcome::new(
                    self.update(limit, now, |limit, counter| operation.apply(limit, counter, now.now)),
                    0,
                ),
                true,
            ),
            CounterOperation::Reserve { terms, hits } => {
                let terms = HoldTerms::clone(terms);
                let each = [Reserve { counter: 0, limit, terms, hits: *hits, leased: 0 }];
                let counters = std::slice::from_mut(self);
                match reserve(&each, counters, now, room, |decisions| !decisions[0].verdict.passes()) {
                    Ok(reserved) => (OperationOutcome::reserved(&reserved)[0].clone(), reserved.is_held),
                    Err(Exhausted) => (OperationOutcome::exhausted(), false),
                }
            }
            CounterOperation::Settle { id, actual, unknown } => {
                let room = if *unknown == UnknownId::Remember { room } else { Room::NONE };
                (OperationOutcome::settled(self.settle(limit, id, *actual, now, room)), true)
            }
            CounterOperation::RefundOnce { terms, hits } => self.refund_once(limit, terms, *hits, now, room),
            CounterOperation::Show => {
                let holds = self.holds().map(|holds| holds.list(now.now)).unwrap_or_default();
                let penalty = limit.penalty_state(&self.counter(limit, now), now.now);
                let shown = CounterDetails {
                    holds: Arc::new(holds),
                    penalty,
                    subscribers: None,
                    own_limit: self.own_limit_state(now.now),
                };
                let peek = self.update(limit, now, |limit, counter| peek(limit, counter, now));
                (
                    OperationOutcome {
                        hold: HoldOutcome::Shown(Arc::new(shown)),
                        ..OperationOutcome::new(peek, 0)
                    },
                    false,
                )
            }
            CounterOperation::Withdraw { id, attempt } => {
                let was_held = self.withdraw(limit, id, *attempt, now);
                (
                    OperationOutcome::new(
                        self.update(limit, now, |limit, counter| peek(limit, counter, now)),
                        0,
                    ),
                    was_held,
                )
            }
        }
    }

    /// Refunds hits, unless the id is known, and remembers the id.
    fn refund_once(
        &mut self,
        limit: &Limit,
        terms: &HoldTerms,
        hits: u64,
        now: Now,
        room: Room,
    ) -> (OperationOutcome, bool) {
        self.forget_side_data(now.now);
        if let Some(known) = self.holds().and_then(|holds| holds.answer(&terms.id)) {
            return (OperationOutcome::new(known.decision, 0), false);
        }
        if !room.has(self.holds(), &terms.id, 1, Holds::bytes_of_one(&terms.id)) {
            return (OperationOutcome::exhausted(), false);
        }
        let decision = Decision { receipt: None, ..self.refund(limit, hits, now) };
        let mut holds = self.take_holds().unwrap_or_else(|| Box::new(Holds::new(limit)));
        holds.remember_refund(terms, &decision, now.now);
        self.put_holds(holds);
        (OperationOutcome::new(decision, 0), true)
    }
}
