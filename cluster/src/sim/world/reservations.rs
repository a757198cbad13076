//! Reservations at random, and what their callers are told.

use rand::RngExt;
use tollgate_counter::{
    algorithm::{Excess, Operation},
    time::SECOND,
};
use tollgate_remote::{
    COUNTER_ONLY, RemoteHoldError, RemoteOutcome, answered, reserve_operations, settle_operations, settled,
    withdrawals,
};
use tollgate_store::{CheckDecision, CounterOutcomes, HoldTerms, Settled, UnknownId};

use crate::{
    message::check::RemoteCheck,
    sim::{
        calls::{self, OpenCall, Purpose, TestCheck},
        holds::Part,
        record::Effect,
        world::{STEP, World},
    },
};

impl World {
    pub(super) fn hold_at_random(&mut self) {
        self.reservations.expire(self.now, &mut self.record);
        let chance = f64::from(self.traffic.holds_per_second) * STEP as f64 / SECOND as f64;
        if chance <= 0.0 || !self.rng.random_bool(chance.min(1.0)) {
            return;
        }
        let Some(number) = self.random_replica() else { return };
        let to_settle = self.reservations.any_to_settle(self.now, &self.record, &mut self.rng);
        match to_settle.filter(|_| self.rng.random_bool(0.3)) {
            Some(hold) => {
                self.reservations.begin_settling(hold, &mut self.record);
                self.settle(number, hold, Purpose::Settle(hold));
            }
            None => {
                let mut checks: Vec<TestCheck> = Vec::new();
                for _ in 0..self.rng.random_range(1..=3) {
                    let key = self.rng.random_range(0..self.keys.len());
                    let is_new = checks.iter().all(|check| check.number != Some(key));
                    if is_new && !matches!(self.keys[key].limit.excess(), Excess::Overdraft(_)) {
                        let hits = self.rng.random_range(1..=4);
                        checks.push(self.hold_check(number, key, hits));
                    }
                }
                let terms = self.reservations.terms(&mut self.rng);
                self.reserve(number, checks, Purpose::Reserve(terms));
            }
        }
    }

    /// A check that only the owner decides.
    fn hold_check(&self, number: usize, key: usize, hits: u64) -> TestCheck {
        TestCheck { policy: COUNTER_ONLY, ..self.check(number, key, Operation::Charge(hits)) }
    }

    /// Reserves as the limiter does: here if this replica owns all counters, otherwise at the owners.
    fn reserve(&mut self, number: usize, checks: Vec<TestCheck>, purpose: Purpose) {
        let (Purpose::Reserve(terms) | Purpose::ReserveAgain(_, terms)) = &purpose else { return };
        let wall = self.wall_of(number);
        let memory = &self.processes[&number].memory;
        if let Ok(Some(CounterOutcomes { is_held, decisions, .. })) =
            memory.reserve(&calls::of_store(&checks), terms, wall, calls::refused)
        {
            let answer = is_held.then(|| decisions.as_ref());
            return self.finish_reservation(purpose, &checks, self.now, answer, |_| Effect::Refused, false);
        }
        let operations = reserve_operations(&calls::of_store(&checks), terms);
        self.submit_holds(number, OpenCall::for_holds(purpose, checks, operations, self.now));
    }

    /// Settles a reservation at random hits, at the owners.
    fn settle(&mut self, number: usize, hold: usize, purpose: Purpose) {
        let parts = self.reservations.get(hold).parts.clone();
        let mut check = |Part { key, hits, .. }: &Part| {
            let actual = self.rng.random_range(0..=hits + 1);
            self.hold_check(number, *key, actual)
        };
        let checks: Vec<TestCheck> = parts.iter().map(&mut check).collect();
        let id = self.reservations.get(hold).terms.id.clone();
        let operations = settle_operations(&calls::of_store(&checks), &id, UnknownId::Remember);
        self.submit_holds(number, OpenCall::for_holds(purpose, checks, operations, self.now));
    }

    pub(super) fn submit_holds(&mut self, number: usize, call: OpenCall) {
        self.calls_started += 1;
        let ticket = self.calls_started;
        self.open.insert((number, ticket), call);
        self.advance(number, ticket);
    }

    /// The owners have answered, or not.
    pub(super) fn finish_holds(&mut self, number: usize, call: OpenCall, outcomes: &[RemoteOutcome]) {
        let OpenCall { purpose, checks, called_at, waits_since, .. } = call;
        self.totals.answers += 1;
        self.totals.slowest = self.totals.slowest.max(self.now - waits_since);
        let is_unanswered = matches!(answered(outcomes), Err(RemoteHoldError::OwnerUnreachable));
        self.totals.unanswered += u64::from(is_unanswered);
        match &purpose {
            Purpose::Decide => {}
            Purpose::SetLimit(key, change) => self.finish_set_limit(*key, *change, outcomes),
            Purpose::Settle(hold) | Purpose::SettleAgain(hold) => {
                let is_first = matches!(purpose, Purpose::Settle(_));
                let answer = settled(outcomes).ok();
                self.finish_settlement(*hold, is_first, &checks, called_at, answer.as_deref());
                if is_first
                    && answer.is_some()
                    && self.rng.random_bool(0.3)
                    && let Some(other) = self.random_replica()
                {
                    self.settle(other, *hold, Purpose::SettleAgain(*hold));
                }
            }
            Purpose::Reserve(terms) | Purpose::ReserveAgain(_, terms) => {
                let answer = answered(outcomes).ok();
                let held = answer.as_deref().filter(|decisions| !calls::refused(decisions));
                if held.is_none() {
                    self.withdraw(number, &checks, terms);
                }
                let passes = |index: usize| answer.as_ref().is_some_and(|all| all[index].verdict.passes());
                let effect = |index| if passes(index) { Effect::TakenBack } else { Effect::Refused };
                let is_unanswered = answer.is_none();
                self.finish_reservation(purpose.clone(), &checks, called_at, held, effect, is_unanswered);
            }
        }
    }

    fn withdraw(&mut self, number: usize, checks: &[TestCheck], terms: &HoldTerms) {
        let now = self.time_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            let checks = withdrawals(&calls::of_store(checks), terms);
            checks.into_iter().for_each(|check| process.node.send(RemoteCheck::from_check(&check), now));
        }
        self.act(number);
    }

    /// `held` has the decisions if everything is held; otherwise `effect` is what became of each check.
    fn finish_reservation(
        &mut self,
        purpose: Purpose,
        checks: &[TestCheck],
        called_at: u64,
        held: Option<&[CheckDecision]>,
        effect: impl Fn(usize) -> fn(u64) -> Effect,
        is_unanswered: bool,
    ) {
        let part = |(index, check): (usize, &TestCheck)| Part {
            key: check.number.expect("a key of the world"),
            limit: check.limit.clone(),
            hits: hits_of(check),
            remaining: held.map_or(0, |decisions| decisions[index].remaining),
        };
        let parts: Vec<Part> = checks.iter().enumerate().map(part).collect();
        match (purpose, held) {
            (Purpose::Reserve(terms), Some(_)) => {
                for Part { key, hits, .. } in &parts {
                    self.note(*key, Effect::Passed(*hits), called_at, false);
                }
                let again = terms.clone().with_attempt(self.rng.random());
                let hold = self.reservations.held(terms, parts, called_at, self.now);
                if self.rng.random_bool(0.2)
                    && let Some(other) = self.random_replica()
                {
                    let parts = self.reservations.get(hold).parts.clone();
                    let check = |Part { key, hits, .. }: &Part| self.hold_check(other, *key, *hits);
                    let checks = parts.iter().map(check).collect();
                    self.reserve(other, checks, Purpose::ReserveAgain(hold, again));
                }
            }
            (Purpose::ReserveAgain(hold, _), _) => {
                let left = |parts: &[Part]| parts.iter().map(|part| part.remaining).collect::<Vec<_>>();
                let first = left(&self.reservations.get(hold).parts);
                if held.is_none() || left(&parts) != first {
                    let problem = format!("a repeated reservation answers {held:?}, not {first:?}");
                    if !is_unanswered {
                        let times = (called_at, self.now);
                        self.reservations.held_otherwise(hold, times, &self.record, problem);
                    }
                    // After a fault it may be a new one.
                    for Part { key, hits, .. } in parts {
                        self.note(key, Effect::Lost(hits), called_at, false);
                    }
                }
            }
            (_, None) => {
                for (index, Part { key, hits, .. }) in parts.into_iter().enumerate() {
                    self.note(key, effect(index)(hits), called_at, is_unanswered);
                }
            }
            (
                Purpose::Decide | Purpose::Settle(_) | Purpose::SettleAgain(_) | Purpose::SetLimit(..),
                Some(_),
            ) => {}
        }
    }

    pub(super) fn finish_settlement(
        &mut self,
        hold: usize,
        is_first: bool,
        checks: &[TestCheck],
        called_at: u64,
        answer: Option<&[Settled]>,
    ) {
        let actual: Vec<u64> = checks.iter().map(hits_of).collect();
        let times = (called_at, self.now);
        if is_first {
            self.reservations.settled(hold, &actual, answer, times, &mut self.record);
        } else {
            self.reservations.settled_again(hold, &actual, answer, times, &mut self.record);
        }
    }

    /// Cancels the open reservations of a key at its owner, without their callers.
    pub(super) fn cancel_holds(&mut self, key: usize) {
        let Some(owner) = self.owner(self.keys[key].key) else { return };
        let check = self.hold_check(owner, key, 0);
        let wall = self.wall_of(owner);
        for id in self.reservations.open_ids(key) {
            let checks = std::slice::from_ref(&check);
            // Without an answer there is nothing to break.
            let _ = self.processes[&owner].memory.settle(
                &calls::of_store(checks),
                &id,
                UnknownId::Remember,
                wall,
            );
        }
    }
}

/// The hits of a charge.
fn hits_of(check: &TestCheck) -> u64 {
    match check.operation {
        Operation::Charge(hits) => hits,
        Operation::Peek | Operation::Refund(_) => 0,
    }
}
