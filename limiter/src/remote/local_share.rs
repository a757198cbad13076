//! Decisions without counters, as the policies of rules say. By the policy `local_share` this replica admits its share of
//! a limit while the counters cannot be reached, and remembers what it admitted until it can be charged.

use std::collections::BTreeMap;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Verdict},
    descriptor::Key,
    remote::{CounterCheck, DecidedBy, RemoteOutcome},
    rules::OnOwnerUnavailable,
    store::{Check, CounterOperation, Lead, Memory, OnFull, OnRefusal},
    time::Timestamp,
};

/// The memory that local shares may use.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Slots of the table of local shares, which has no concurrent users.
const SLOTS: usize = 16;
/// The most keys whose consumption is still to be charged.
const KEYS_MAX: usize = 100_000;

/// The local shares, and the consumption that is still to be charged. It performs no I/O.
#[derive(Debug)]
pub struct LocalShare {
    memory: Memory,
    admitted: BTreeMap<Key, Admitted>,
    decided: u64,
}

/// What decisions without counters depend on, as the store sees it.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The equal replicas that divide each limit.
    pub replicas: u32,
    /// The time by which counters are decided.
    pub now: Timestamp,
}

/// The consumption of one key, as a counter of the whole limit.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// The limit.
    pub limit: Limit,
    /// The counter.
    pub counter: Counter,
}

impl Default for LocalShare {
    fn default() -> Self {
        let memory = Memory::new(BYTES_MAX, OnFull::Deny).with_slots(SLOTS);
        Self { memory, admitted: BTreeMap::new(), decided: 0 }
    }
}

impl LocalShare {
    /// Applies a lead that the clock of the counters gives up.
    pub fn give_up_lead(&mut self, lead: Lead) {
        self.memory.give_up_lead(lead);
        for Admitted { limit, counter } in self.admitted.values_mut() {
            limit.clamp_ahead(counter, lead.at, lead.at);
        }
    }

    /// The number of operations that were decided without their counters, since the start.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Forgets what was admitted.
    pub fn clear(&mut self) {
        *self = Self { decided: self.decided, ..Self::default() };
    }

    /// The keys with consumption that is still to be charged.
    pub fn admitted_keys(&self) -> impl Iterator<Item = Key> {
        self.admitted.keys().copied()
    }

    /// Takes the consumption of `key`, which is about to be charged.
    pub fn take_admitted(&mut self, key: Key) -> Option<Admitted> {
        self.admitted.remove(&key)
    }

    /// Takes the consumption of these keys.
    pub fn take_admitted_where(
        &mut self,
        is_taken: impl Fn(Key) -> bool,
    ) -> impl Iterator<Item = (Key, Admitted)> {
        self.admitted.extract_if(.., move |key, _| is_taken(*key))
    }

    /// Puts consumption back that could not be charged.
    pub fn put_back(&mut self, key: Key, admitted: Admitted, now: Timestamp) {
        match self.admitted.get_mut(&key) {
            Some(later) => later.limit.absorb(&mut later.counter, &admitted.counter, now),
            None => {
                self.admitted.insert(key, admitted);
            }
        }
    }

    /// Decides the operations whose counters could not be reached, as their policies say.
    pub fn decide_unreachable(
        &mut self,
        checks: &[CounterCheck],
        outcomes: &mut [RemoteOutcome],
        standing: Standing,
    ) {
        for (check, outcome) in checks.iter().zip(outcomes) {
            if outcome.decided_by == DecidedBy::Nothing {
                *outcome = self.decide(check, standing);
            }
        }
    }

    fn decide(&mut self, check: &CounterCheck, standing: Standing) -> RemoteOutcome {
        let CounterCheck { key, limit, operation, policy, .. } = check;
        // Without its counter a hold fails, and nothing is decided.
        self.decided += u64::from(!operation.needs_counter());
        match (policy.on_owner_unavailable, operation) {
            (OnOwnerUnavailable::LocalShare, CounterOperation::Decide(operation)) => {
                let (decision, charged) = self.admit(*key, limit, *operation, standing);
                RemoteOutcome::degraded(decision, charged)
            }
            _ => RemoteOutcome::without_counter(*policy),
        }
    }

    /// Decides by the share. Returns the decision and the hits that were charged.
    fn admit(
        &mut self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        Standing { replicas, now }: Standing,
    ) -> (Decision, u64) {
        let full = self.admitted.len() >= KEYS_MAX && !self.admitted.contains_key(&key);
        // Reject what could not be charged later.
        let operation = if full { Operation::Peek } else { operation };
        let share = limit.share(replicas);
        let check = Check { key, limit: &share, operation, on_refusal: OnRefusal::Keep };
        // Not `apply_single`, whose decision has no receipt.
        let decisions =
            self.memory.apply(&[check], now, |_| false).expect("a memory that is not shared owns every slot");
        let (decision, charged) = (decisions[0], decisions.charged()[0]);
        if full {
            let verdict = Verdict::Refuse { retry_after: None };
            return (Decision { verdict, receipt: None, ..decision }, 0);
        }
        if charged > 0 {
            // Refusals are those of this share.
            let limit = limit.plain();
            let fresh = || Admitted { limit: limit.clone(), counter: limit.fresh() };
            let admitted = self.admitted.entry(key).or_insert_with(fresh);
            admitted.limit.decide(&mut admitted.counter, now, Operation::Charge(charged));
        }
        (decision, charged)
    }

    /// Takes back what was charged to a share, and removes it from its outcome.
    pub fn take_back(
        &mut self,
        key: Key,
        limit: &Limit,
        outcome: &mut RemoteOutcome,
        Standing { replicas, now }: Standing,
    ) {
        let Some(receipt) = outcome.outcome.decision.receipt.take() else { return };
        let hits = std::mem::take(&mut outcome.outcome.charged);
        let share = limit.share(replicas);
        if let Some(admitted) = self.admitted.get_mut(&key) {
            admitted.limit.decide(&mut admitted.counter, now, Operation::Refund(hits));
        }
        let undone = self.memory.operate(key, &share, &CounterOperation::Undo(receipt), now);
        debug_assert!(undone.is_ok(), "a memory that is not shared owns every slot");
    }
}
