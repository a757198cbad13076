//! The interpreter of the operations on a counter and its holds.

use std::{borrow::Cow, sync::Arc};

use smallvec::smallvec;
use tollgate_counter::{
    algorithm::{Counter, Decision, Granted, Limit, Operation},
    packed_counter::{Now, PackedCounter},
    time::Timestamp,
};

use crate::{
    check::LimitOrigin,
    decisions::CheckDecision,
    held_counter::{
        HeldCounter, Room, TakenBack,
        draft::{Reserve, reserve},
        peek,
    },
    holds::Holds,
    operation::{
        CounterOperation, HoldOutcome, OperationOutcome, UnknownId, charged_counter, decide_leased,
        depends_on_leases,
    },
    reservation::HoldTerms,
    side_data::own::{OwnLimit, OwnLimitChange, OwnLimitOutcome, OwnLimitRefusal},
};

impl HeldCounter {
    /// Applies an operation on one counter, after its holds that are due have ended. Returns whether it has changed the
    /// counter. If the counter has a limit of its own, that decides in place of a rule's `limit`.
    pub fn apply(
        &mut self,
        limit: &Limit,
        origin: LimitOrigin,
        operation: &CounterOperation,
        now: Now,
        room: Room,
    ) -> (OperationOutcome, bool) {
        let refusal = match operation {
            CounterOperation::SetOwnLimit(change) => self.set_own_limit(change, now.now, room),
            _ => None,
        };
        let (mut outcome, mut is_changed) = match origin.replaced_by(self.own_terms(now.now)).cloned() {
            None => self.apply_by(limit, operation, now, room),
            Some(own) => {
                let (outcome, is_changed) = self.apply_by(&own.limit, operation, now, room);
                let decision = own.allowed(outcome.decision);
                (OperationOutcome { decision, ..outcome.by_own(Some(&own)) }, is_changed)
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
        let version = applies.map_or(0, |applies| applies.version);
        if change.replaces.is_some_and(|replaced| replaced != version) {
            return Some(OwnLimitRefusal::OtherVersion);
        }
        if applies.is_some_and(|applies| applies.is_repeated_by(change)) {
            return None;
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
        let decided = |decision| OperationOutcome::new(decision, 0);
        match operation {
            CounterOperation::Decide(operation) => {
                let decision = self.decide(limit, *operation, now);
                let passes = decision.verdict.passes();
                let outcome = OperationOutcome::new(decision, limit.charged(*operation, passes));
                (outcome, limit.is_changed_by(*operation, passes))
            }
            CounterOperation::Undo(receipt) => {
                self.change(&self.reduced(limit).0, now, |limit, counter| {
                    limit.undo(counter, *receipt, now.now);
                });
                (decided(self.decide(limit, Operation::Peek, now)), true)
            }
            CounterOperation::Set(hits) => {
                self.reset();
                let set = |limit: &Limit, counter: &mut Counter| {
                    *counter = charged_counter(limit, *hits, now.now);
                };
                (decided(self.change(limit, now, set)), true)
            }
            CounterOperation::Absorb(consumed) => {
                let absorb = |limit: &Limit, counter: &mut Counter| limit.absorb(counter, consumed, now.now);
                (decided(self.change(limit, now, absorb)), true)
            }
            CounterOperation::Reserve { terms, hits } => {
                let terms = HoldTerms::clone(terms);
                let each = [Reserve { counter: 0, limit, terms, hits: *hits }];
                let counters = std::slice::from_mut(self);
                let refused = |decisions: &[CheckDecision]| !decisions[0].verdict.passes();
                match reserve(&each, counters, now, room, refused, |_| smallvec![None]) {
                    Some(reserved) => (OperationOutcome::reserved(&reserved)[0].clone(), reserved.is_held),
                    None => (OperationOutcome::exhausted(), false),
                }
            }
            CounterOperation::Settle { id, actual, unknown } => {
                let room = if *unknown == UnknownId::Remember { room } else { Room::NONE };
                (OperationOutcome::settled(self.settle(limit, id, *actual, now, room)), true)
            }
            CounterOperation::Withdraw { id, attempt } => {
                let was_held = self.withdraw(limit, id, *attempt, now);
                (decided(self.decide(limit, Operation::Peek, now)), was_held)
            }
            CounterOperation::RefundOnce { terms, hits } => self.refund_once(limit, terms, *hits, now, room),
            CounterOperation::Show => {
                let shown = self.details(limit, &self.counter(limit, now), now.now);
                let hold = HoldOutcome::Shown(Arc::new(shown));
                let peek = self.change(limit, now, |_, _| ());
                (OperationOutcome { hold, ..decided(peek) }, false)
            }
            CounterOperation::SetOwnLimit(_) => (decided(self.change(limit, now, |_, _| ())), true),
            // It concerns no single counter: the memory of its slot answers it.
            CounterOperation::ListOwnLimits(_) => (decided(self.change(limit, now, |_, _| ())), false),
        }
    }

    /// Whether the outcome of an operation would differ if the leased hits were returned: whether it would be refused only
    /// because of them, or is a refund that may be for hits that a borrower has used and not reported.
    pub(crate) fn depends_on_leases(
        &self,
        limit: &Limit,
        origin: LimitOrigin,
        operation: &CounterOperation,
        now: Now,
    ) -> bool {
        let leased = self.leased();
        if leased == 0 {
            return false;
        }
        let limit = origin.replaced_by(self.own_terms(now.now)).map_or(limit, |own| &own.limit);
        let depends =
            |operation| depends_on_leases(limit, &self.counter(limit, now), operation, leased, now.now);
        match operation {
            CounterOperation::Decide(operation) => depends(*operation),
            CounterOperation::Reserve { hits, .. } => depends(Operation::Charge(*hits)),
            CounterOperation::RefundOnce { hits, .. } => depends(Operation::Refund(*hits)),
            CounterOperation::Settle { id, actual, .. } => {
                let missing = self.holds().map_or(*actual, |holds| holds.charges(id, *actual));
                let mut bare = self.counter(limit, now);
                let mut full = bare.clone();
                limit.charge_at(&mut full, leased, now.now, now.now);
                let [(charged, _), (possible, _)] =
                    [&mut full, &mut bare].map(|counter| limit.charge_used(counter, missing, now.now));
                charged < possible
            }
            // No decision after the answer is by the earlier limit.
            CounterOperation::SetOwnLimit(_) => true,
            CounterOperation::Undo(_)
            | CounterOperation::Set(_)
            | CounterOperation::Absorb(_)
            | CounterOperation::Withdraw { .. }
            | CounterOperation::Show
            | CounterOperation::ListOwnLimits(_) => false,
        }
    }

    /// Takes back what `operation` has added to the memory of the counter, and decides as without it.
    pub(crate) fn take_growth_back(
        &mut self,
        (limit, origin): (&Limit, LimitOrigin),
        operation: &CounterOperation,
        decision: &mut Decision,
        now: Now,
        had_record: bool,
    ) -> TakenBack {
        let own = origin.replaced_by(self.own_terms(now.now)).cloned();
        let limit = own.as_ref().map_or(limit, |own| &own.limit);
        if !had_record && self.has_record() {
            self.packed = self.packed.take().map(PackedCounter::without_record);
            let plain = self.clone().apply_by(limit.plain(), operation, now, Room::NONE).0.decision;
            *decision = Decision { receipt: None, ..own.as_ref().map_or(plain, |own| own.allowed(plain)) };
            return TakenBack::Record;
        }
        let Some(receipt) = decision.receipt.take() else { return TakenBack::Nothing };
        self.apply_by(limit, &CounterOperation::Undo(receipt), now, Room::NONE);
        if let Some(packed) = &mut self.packed {
            packed.release_spare();
        }
        TakenBack::Charge
    }

    /// Decides an operation of a call. What is leased or granted counts as charged.
    fn decide(&mut self, limit: &Limit, operation: Operation, now: Now) -> Decision {
        let (reduced, taken) = self.reduced(limit);
        let grant = self.side_data.as_mut().and_then(|side_data| side_data.grant.as_mut());
        if let (Some(grant), Operation::Charge(hits)) = (grant, operation) {
            grant.requested = grant.requested.saturating_add(hits);
        }
        match operation {
            Operation::Refund(hits) if taken == 0 => self.refund(&reduced, hits, now),
            Operation::Peek | Operation::Charge(_) | Operation::Refund(_) => {
                self.update(&reduced, now, |limit, counter| {
                    decide_leased(limit, counter, operation, taken, now.now)
                })
            }
        }
    }

    /// The limit without the rate that is granted, and the hits that are leased or granted.
    fn reduced<'l>(&self, limit: &'l Limit) -> (Cow<'l, Limit>, u64) {
        let leased = self.leased();
        match self.side_data().and_then(|side_data| side_data.grant.as_ref()) {
            None => (Cow::Borrowed(limit), leased),
            Some(grant) => {
                let Granted { rate, hits } = grant.granted;
                (Cow::Owned(limit.without_rate(rate)), leased.saturating_add(hits))
            }
        }
    }

    /// Changes the counter, and returns a peek.
    fn change(&mut self, limit: &Limit, now: Now, change: impl FnOnce(&Limit, &mut Counter)) -> Decision {
        self.update(limit, now, |limit, counter| {
            change(limit, counter);
            peek(limit, counter, now)
        })
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
            return (OperationOutcome::new(known, 0), false);
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
