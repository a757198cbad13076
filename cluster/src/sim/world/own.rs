//! Limits of their own that are set and cleared at random, and calls for their keys.

use rand::RngExt;
use tollgate_counter::{algorithm::Operation, descriptor::Key, time::SECOND};
use tollgate_remote::{COUNTER_ONLY, CounterCheck, CounterChecks, DecidedBy, RemoteOutcome};
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{CounterOperation, HoldOutcome, OwnLimitChange, Slot};

use crate::sim::{
    calls::{OpenCall, Purpose, TestCheck},
    own_limits::{OwnDecision, OwnKey},
    record::Faults,
    world::{STEP, World},
};

impl World {
    /// The number of each key in the faults, with its slot: those of the record, then those with limits of their own.
    pub(super) fn each_slot_of_key(&self) -> impl Iterator<Item = (usize, Slot)> + use<> {
        let keys = self.keys.iter().map(|test_key| test_key.key);
        let keys: Vec<Key> = keys.chain(self.own_limits.keys.iter().map(|own| own.key)).collect();
        let slots = self.shape.slots;
        keys.into_iter().enumerate().map(move |(number, key)| (number, Slot::for_key(key, slots)))
    }

    pub(super) fn own_at_random(&mut self) {
        let chance = f64::from(self.traffic.own_per_second) * STEP as f64 / SECOND as f64;
        let mut calls = chance;
        while calls > 0.0 {
            if calls < 1.0 && !self.rng.random_bool(calls) {
                return;
            }
            calls -= 1.0;
            let Some(number) = self.random_replica() else { return };
            let index = self.rng.random_range(0..self.own_limits.keys.len());
            let OwnKey { key, limit, .. } = &self.own_limits.keys[index];
            let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: true };
            let (key, limit, operation) = (*key, limit.clone(), Operation::Charge(1));
            let check = TestCheck { number: None, key, limit, operation, policy };
            if self.rng.random_bool(0.85) {
                self.call(number, vec![check]);
                continue;
            }
            let own_number = self.rng.random_bool(0.8).then(|| self.rng.random_range(1..200));
            let (change, operation) = self.own_limits.begin(index, own_number, self.now);
            let operations = CounterChecks::from_iter([CounterCheck::by_counter(
                check.key,
                check.limit.clone(),
                operation,
            )]);
            let checks = vec![TestCheck { policy: COUNTER_ONLY, ..check }];
            let purpose = Purpose::SetLimit(index, change);
            self.submit_holds(number, OpenCall::for_holds(purpose, checks, operations, self.now));
        }
    }

    /// The owner has answered a change, or not.
    pub(super) fn finish_set_limit(&mut self, key: usize, change: usize, outcomes: &[RemoteOutcome]) {
        let answer = outcomes.first().filter(|outcome| outcome.decided_by == DecidedBy::Counter);
        let answer = answer.and_then(|outcome| match &outcome.outcome.hold {
            HoldOutcome::OwnLimit(changed) => Some(&**changed),
            _ => None,
        });
        self.own_limits.finish(key, change, answer, self.now);
    }

    /// Checks a decision on a key with limits of its own. Other keys are of a flood.
    pub(super) fn note_own(
        &mut self,
        key: Key,
        (decided_by, displayed): (DecidedBy, Option<u64>),
        passes: bool,
        called_at: u64,
    ) {
        let Some(index) = self.own_limits.index(key) else { return };
        // A refusal that is known is revoked by a message.
        let is_of_counter = match decided_by {
            DecidedBy::Counter => true,
            DecidedBy::Lease => passes,
            DecidedBy::Degraded | DecidedBy::Nothing => false,
        };
        if is_of_counter {
            let decision = OwnDecision { displayed, passes, called_at, answered_at: self.now };
            let more = u64::from(self.faults == Some(Faults::Lead));
            let number = self.keys.len() + index;
            self.own_limits.decided(index, number, decision, more, &self.record);
        }
    }

    /// Which limit of its own is not the last one after the script, if there is one.
    pub(in crate::sim) fn wrong_own_limit(&self) -> Option<String> {
        (0..self.own_limits.keys.len()).find_map(|index| {
            let key = self.own_limits.keys[index].key;
            let owner = self.owner(key)?;
            let terms = self.processes[&owner].memory.own_terms(key, self.wall_of(owner));
            let displayed = terms.map(|own| own.requests_per_unit);
            let number = self.keys.len() + index;
            let wrong = self.own_limits.wrong_number(index, number, displayed, self.now, &self.record);
            wrong.map(|wrong| format!("own limit {index} at the end: {wrong}"))
        })
    }

    pub(super) fn forget_own_limits(&mut self) {
        for OwnKey { key, limit, .. } in &self.own_limits.keys {
            if let Some(owner) = self.owner(*key) {
                let record = Box::default();
                let change = OwnLimitChange { terms: None, expires_after: None, record, replaces: None };
                let forget = CounterOperation::SetOwnLimit(Box::new(change));
                let memory = &self.processes[&owner].memory;
                memory.operate(*key, limit, &forget, self.wall_of(owner)).expect("nothing of it is leased");
            }
        }
    }
}
