//! Calls at random, and what their callers are told.

use rand::RngExt;
use tollgate_counter::{
    algorithm::{Operation, laws::every_limit},
    time::SECOND,
};
use tollgate_remote::{DecidedBy, RemoteOutcome};
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};

use crate::{
    message::{MemberState, check::RemoteCheck},
    node::output::Ticket,
    sim::{
        calls::{self, OpenCall, Progress, Purpose, TestCheck},
        keys::{self, TestKey},
        record::Effect,
        world::{BUDGET, Process, STEP, Traffic, World},
    },
};

impl World {
    pub(super) fn set_traffic(&mut self, calls_per_second: u32, keys: usize, is_mixed: bool) {
        // No traffic at all has no reservations either.
        let unless_quiet = |calls| if calls_per_second > 0 { calls } else { 0 };
        let holds_per_second = unless_quiet(self.traffic.holds_per_second);
        let own_per_second = unless_quiet(self.traffic.own_per_second);
        self.traffic = Traffic { calls_per_second, keys, is_mixed, holds_per_second, own_per_second };
        self.record.is_mixed |= is_mixed;
    }

    pub(super) fn call_at_random(&mut self) {
        let mut calls = f64::from(self.traffic.calls_per_second) * STEP as f64 / SECOND as f64;
        while calls > 0.0 {
            if calls < 1.0 && !self.rng.random_bool(calls) {
                return;
            }
            calls -= 1.0;
            let Some(number) = self.random_replica() else { return };
            let checks = if self.traffic.is_mixed {
                self.mixed_checks(number)
            } else {
                let key = self.rng.random_range(0..self.keys.len().min(self.traffic.keys));
                vec![self.check(number, key, Operation::Charge(1))]
            };
            self.call(number, checks);
        }
    }

    /// A replica that takes calls.
    pub(super) fn random_replica(&mut self) -> Option<usize> {
        let answers = |process: &Process| process.node.state() != MemberState::Joining && !process.is_leaving;
        let able: Vec<usize> = self
            .processes
            .iter()
            .filter(|(number, process)| answers(process) && !self.frozen.contains_key(number))
            .map(|(number, _)| *number)
            .collect();
        (!able.is_empty()).then(|| able[self.rng.random_range(0..able.len())])
    }

    pub(in crate::sim) fn check(&self, number: usize, key: usize, operation: Operation) -> TestCheck {
        let TestKey { key: its_key, limit, .. } = &self.keys[key];
        let divided_by = self.processes[&number].divided_by;
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: true };
        TestCheck { number: Some(key), key: *its_key, limit: limit.share(divided_by), operation, policy }
    }

    /// The checks of a call with any operation.
    fn mixed_checks(&mut self, number: usize) -> Vec<TestCheck> {
        let descriptors = if self.rng.random_bool(0.3) { self.rng.random_range(2..=4) } else { 1 };
        let mut checks: Vec<TestCheck> = Vec::new();
        for _ in 0..descriptors {
            let key = self.rng.random_range(0..self.keys.len());
            if checks.iter().any(|check| check.number == Some(key)) {
                continue;
            }
            let hits = self.rng.random_range(1..=4);
            let operation = match self.rng.random_range(0..10) {
                0 => Operation::Peek,
                // What was admitted, and was not refunded yet.
                1 | 2 if self.refundable[key] >= hits => {
                    self.refundable[key] -= hits;
                    Operation::Refund(hits)
                }
                3 | 4 => Operation::Charge(hits),
                _ => Operation::Charge(1),
            };
            let mut check = self.check(number, key, operation);
            check.policy.lease = self.rng.random_bool(0.7);
            if check.limit.is_classic() && self.rng.random_bool(0.3) {
                // An override uses the counter of the classic limit with the same window.
                check.limit = check.limit.share(2);
            }
            checks.push(check);
        }
        checks
    }

    /// Charges this many new keys, at any replica.
    pub(super) fn flood(&mut self, keys: usize) {
        let limit = every_limit(1_000, 100 * 86_400 * SECOND).remove(1);
        for _ in 0..keys {
            let Some(number) = self.random_replica() else { return };
            self.flooded += 1;
            let key = keys::key(1_000_000 + self.flooded);
            let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
            let limit = limit.clone();
            let operation = Operation::Charge(1);
            self.call(number, vec![TestCheck { number: None, key, limit, operation, policy }]);
            if self.flooded.is_multiple_of(50) {
                self.pass(STEP);
            }
        }
    }

    pub(in crate::sim) fn call(&mut self, number: usize, checks: Vec<TestCheck>) {
        let wall = self.wall_of(number);
        self.calls_started += 1;
        let ticket = self.calls_started;
        let call = OpenCall::new(checks, self.now);
        let has_refund = call.checks.iter().any(|check| matches!(check.operation, Operation::Refund(_)));
        if !has_refund {
            let applied =
                self.processes[&number].memory.apply(&calls::of_store(&call.checks), wall, calls::refused);
            if let Ok(decisions) = applied {
                let decided = |check: usize| (DecidedBy::Counter, decisions[check].own);
                return self.finish_call(call, !calls::refused(&decisions), decided);
            }
        }
        self.open.insert((number, ticket), call);
        self.advance(number, ticket);
    }

    /// Submits the next round of a call, or ends it.
    pub(super) fn advance(&mut self, number: usize, ticket: u64) {
        let now = self.time_of(number);
        let Some(call) = self.open.get_mut(&(number, ticket)) else { return };
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (taken_back_here, progress) = call.advance();
        let mut kept = Vec::new();
        for (index, mut outcome) in taken_back_here {
            let TestCheck { number, key, limit, .. } = &call.checks[index];
            let before = process.node.borrowed(*key, now);
            let charged = outcome.outcome.charged;
            match outcome.decided_by {
                DecidedBy::Lease => process.node.undo_leased(*key, limit, charged),
                DecidedBy::Degraded => {
                    let standing = process.node.local_share_basis();
                    process.local_share.take_back(*key, limit, &mut outcome, standing);
                }
                DecidedBy::Counter | DecidedBy::Nothing => {}
            }
            // Hits of a lease stay charged if they were reported to the owner before.
            let is_kept =
                outcome.decided_by == DecidedBy::Lease && process.node.borrowed(*key, now) == before;
            kept.extend(number.filter(|_| is_kept).map(|number| (number, charged, call.called_at)));
        }
        self.advance_to(number, ticket, progress);
        for (key, hits, called_at) in kept {
            self.note(key, Effect::Lost(hits), called_at, false);
        }
    }

    fn advance_to(&mut self, number: usize, ticket: u64, progress: Progress) {
        let now = self.time_of(number);
        let Some(call) = self.open.get_mut(&(number, ticket)) else { return };
        let Some(process) = self.processes.get_mut(&number) else { return };
        match progress {
            Progress::Submitted(checks) => {
                let deadline = now.plus(BUDGET - (self.now - call.called_at).min(BUDGET));
                for (number, check) in (0..).zip(checks) {
                    let ticket = Ticket { call: ticket, check: number };
                    let policy = check.policy;
                    process.node.submit(ticket, RemoteCheck::from_check(&check), policy, deadline, now);
                }
                self.act(number);
            }
            Progress::Finished(outcomes) => {
                let call = self.open.remove(&(number, ticket)).expect("it was looked up");
                if !matches!(call.purpose, Purpose::Decide) {
                    return self.finish_holds(number, call, &outcomes);
                }
                let passes = outcomes.iter().all(|outcome| outcome.outcome.decision.verdict.passes());
                let decided = |check| {
                    let RemoteOutcome { outcome, decided_by } = &outcomes[check];
                    (*decided_by, outcome.displayed())
                };
                self.finish_call(call, passes, decided);
            }
        }
    }

    /// Ends a call. `decided` says what has decided each check, and what the limit of its own displays that has.
    fn finish_call(
        &mut self,
        call: OpenCall,
        passes: bool,
        decided: impl Fn(usize) -> (DecidedBy, Option<u64>),
    ) {
        let is_degraded = |check| decided(check).0 == DecidedBy::Degraded;
        let OpenCall { checks, called_at, waits_since, taken_back, .. } = call;
        self.totals.answers += 1;
        self.totals.slowest = self.totals.slowest.max(self.now - waits_since);
        for (index, check) in checks.iter().enumerate() {
            let Some(key) = check.number else {
                self.note_own(check.key, decided(index), passes, called_at);
                continue;
            };
            let effect = match check.operation {
                Operation::Peek => continue,
                Operation::Charge(hits) if passes => Effect::Passed(hits),
                Operation::Charge(hits) if taken_back.contains(&index) => Effect::TakenBack(hits),
                Operation::Charge(hits) => Effect::Refused(hits),
                Operation::Refund(hits) => Effect::Refunded(hits),
            };
            if let Effect::Passed(hits) = effect
                && !is_degraded(index)
            {
                self.refundable[key] += hits;
            }
            self.note(key, effect, called_at, is_degraded(index));
        }
    }
}
