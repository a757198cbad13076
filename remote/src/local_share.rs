//! Decisions without counters, as the policies of rules say. By the policy `local_share` this replica admits its share
//! of a limit while the counters cannot be reached, and records what it admitted until it can be charged.

use std::{collections::BTreeMap, time::Duration};

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Operation},
    descriptor::Key,
    time::Timestamp,
};
use tollgate_rules::OnOwnerUnavailable;
use tollgate_store::{
    Check, CheckDecision, Checks, CounterOperation, Lead, LimitOrigin, Memory, MemoryReservation, OnFull,
    OnRefusal, OperationOutcome, OwnTerms,
};

use crate::check::{CounterCheck, DecidedBy, RemoteOutcome};

/// Local shares may take one of this many parts of the memory for counters.
pub const MEMORY_DIVISOR: u64 = 8;
/// The memory for counters of a default local share, in bytes.
const MEMORY_LIMIT: u64 = 128 * 1024 * 1024;
/// Slots of the table of local shares, which has no concurrent users.
const SLOTS: usize = 16;
/// The bytes of the consumption of a key, without the heap of its counter: an entry of a tree that is at least two
/// thirds full.
const ENTRY_BYTES: usize = size_of::<(Key, Admitted)>() * 3 / 2;
/// The bytes of a limit of its own that is remembered.
const OWN_BYTES: usize = size_of::<(Key, OwnTerms)>() * 3 / 2;
/// Limits of their own that are remembered take one of this many parts of the memory for shares.
const OWN_DIVISOR: u64 = 2;
/// The pause between two log lines about a lack of memory, and between two sweeps because of it.
const FULL_PAUSE: Duration = Duration::from_secs(10);

/// The local shares, and the consumption that is still to be charged.
#[derive(Debug)]
pub struct LocalShare {
    memory: Memory,
    bytes_max: u64,
    on_full: OnFull,
    admitted: BTreeMap<Key, Admitted>,
    admitted_bytes: usize,
    // The limits of their own that counters were last seen to have, as far as they may be smaller than those of rules.
    own: BTreeMap<Key, OwnTerms>,
    // What counts in the memory for counters.
    reservation: MemoryReservation,
    decided: u64,
    full: u64,
    // The next log line about a lack of memory, and the next sweep because of it, are not before this instant.
    full_again_at: Timestamp,
}

/// What decisions without counters depend on, as the store sees it.
#[derive(Clone, Copy, Debug)]
pub struct LocalShareBasis {
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
        Self::new(MEMORY_LIMIT, OnFull::Deny)
    }
}

impl Admitted {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.counter.heap_bytes()
    }
}

impl LocalShare {
    /// No shares yet, in a part of `memory_limit` bytes. `on_full` decides on keys without memory.
    pub fn new(memory_limit: u64, on_full: OnFull) -> Self {
        let bytes_max = memory_limit / MEMORY_DIVISOR;
        Self {
            memory: Memory::new(bytes_max, on_full).with_slots(SLOTS),
            bytes_max,
            on_full,
            admitted: BTreeMap::new(),
            admitted_bytes: 0,
            own: BTreeMap::new(),
            reservation: MemoryReservation::default(),
            decided: 0,
            full: 0,
            full_again_at: Timestamp::EPOCH,
        }
    }

    /// No shares yet, in a part of the memory of these counters.
    pub fn within(counters: &Memory) -> Self {
        let own = Self::new(counters.bytes_max(), counters.on_full());
        Self { reservation: counters.reservation(), ..own }
    }

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

    /// The number of charges for whose keys there was no memory, since the start.
    pub fn full(&self) -> u64 {
        self.full
    }

    /// Forgets what was admitted.
    pub fn clear(&mut self) {
        self.memory = Memory::new(self.bytes_max, self.on_full).with_slots(SLOTS);
        (self.admitted, self.admitted_bytes) = (BTreeMap::new(), 0);
        self.own.clear();
        self.account();
    }

    /// The keys with consumption that is still to be charged.
    pub fn admitted_keys(&self) -> impl Iterator<Item = Key> {
        self.admitted.keys().copied()
    }

    /// Takes the consumption of `key`, which is about to be charged.
    pub fn take_admitted(&mut self, key: Key) -> Option<Admitted> {
        let admitted = self.admitted.remove(&key)?;
        self.admitted_bytes -= admitted.bytes();
        self.account();
        Some(admitted)
    }

    /// Takes the consumption of these keys.
    pub fn take_admitted_where(
        &mut self,
        is_taken: impl Fn(Key) -> bool,
    ) -> impl Iterator<Item = (Key, Admitted)> {
        self.account();
        let Self { admitted, admitted_bytes, .. } = self;
        let taken = admitted.extract_if(.., move |key, _| is_taken(*key));
        taken.inspect(|(_, admitted)| *admitted_bytes -= admitted.bytes())
    }

    /// Puts consumption back that could not be charged.
    pub fn put_back(&mut self, key: Key, admitted: Admitted, now: Timestamp) {
        self.change(key, &admitted.limit, |later, later_limit| {
            later_limit.absorb(later, &admitted.counter, now);
        });
        self.account();
    }

    /// Changes the consumption of a key, which is retained whether or not there is memory for it.
    fn change(&mut self, key: Key, limit: &Limit, change: impl FnOnce(&mut Counter, &Limit)) {
        let admitted = self.admitted.entry(key).or_insert_with(|| {
            self.admitted_bytes += ENTRY_BYTES;
            Admitted { limit: limit.clone(), counter: limit.fresh() }
        });
        let before = admitted.counter.heap_bytes();
        change(&mut admitted.counter, &admitted.limit);
        self.admitted_bytes = self.admitted_bytes - before + admitted.counter.heap_bytes();
    }

    /// Counts what is used in the memory for counters.
    fn account(&mut self) {
        self.reservation.set(self.bytes());
    }

    fn bytes(&self) -> usize {
        self.memory.bytes() + self.admitted_bytes + self.own.len() * OWN_BYTES
    }

    /// Remembers which limits of their own the counters of these checks have, as far as the counters have decided. Returns
    /// whether any is remembered.
    pub fn remember_own(&mut self, checks: &[CounterCheck], outcomes: &[RemoteOutcome]) -> bool {
        for (check, RemoteOutcome { outcome, decided_by }) in checks.iter().zip(outcomes) {
            let is_decision = check.operation.properties().decided.is_some();
            if !is_decision || (*decided_by, check.origin) != (DecidedBy::Counter, LimitOrigin::Rule) {
                continue;
            }
            match outcome.own.as_deref().filter(|own| own.may_be_smaller_than(&check.limit)) {
                None => drop(self.own.remove(&check.key)),
                Some(own) if self.own.get(&check.key) == Some(own) => {}
                Some(own) => drop(self.own.insert(check.key, own.clone())),
            }
        }
        while self.bytes_max / OWN_DIVISOR < (self.own.len() * OWN_BYTES) as u64 {
            // Keys are hashes, so this is any one.
            self.own.pop_first();
        }
        self.account();
        !self.own.is_empty()
    }

    /// Decides the operations whose counters could not be reached, as their policies say.
    pub fn decide_unreachable(
        &mut self,
        checks: &[CounterCheck],
        outcomes: &mut [RemoteOutcome],
        basis: LocalShareBasis,
    ) {
        for (check, outcome) in checks.iter().zip(outcomes) {
            if outcome.decided_by == DecidedBy::Nothing {
                let known = outcome.outcome.own.take().map(|own| *own);
                *outcome = self.decide(check, known, basis);
            }
        }
        self.account();
    }

    /// Decides a check. `known` is the limit of its own that this replica has of the counter.
    fn decide(
        &mut self,
        check: &CounterCheck,
        known: Option<OwnTerms>,
        basis: LocalShareBasis,
    ) -> RemoteOutcome {
        let CounterCheck { key, limit, operation, policy, .. } = check;
        // Without its counter a hold fails, and nothing is decided.
        let properties = operation.properties();
        self.decided += u64::from(!properties.needs_counter);
        match (policy.on_owner_unavailable, properties.decided) {
            (OnOwnerUnavailable::LocalShare, Some(operation)) => {
                let own = check.origin.replaced_by(known.or_else(|| self.own.get(key).cloned()));
                let own = own.filter(|own| {
                    own.may_be_smaller_than(limit) && self.would_pass(*key, limit, operation, basis)
                });
                let by = own.as_ref().map_or(limit, |own| &own.limit);
                let (decision, charged) = self.admit((*key, by), limit, operation, basis);
                let outcome = OperationOutcome::new(decision, charged).by_own(own.as_ref());
                RemoteOutcome { outcome, decided_by: DecidedBy::Degraded }
            }
            _ => RemoteOutcome::without_counter(*policy),
        }
    }

    /// Whether the share of `limit` lets the operation pass.
    fn would_pass(
        &self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        LocalShareBasis { replicas, now }: LocalShareBasis,
    ) -> bool {
        let share = limit.share(replicas);
        let checks = share_check(key, &share, operation);
        self.memory.dry_run(&checks, now, |_| false).decisions[0].verdict.passes()
    }

    /// Decides by the share of a limit of the key, `by`. Returns the decision and the hits that were charged, which are
    /// reported under `limit`.
    fn admit(
        &mut self,
        (key, by): (Key, &Limit),
        limit: &Limit,
        operation: Operation,
        LocalShareBasis { replicas, now }: LocalShareBasis,
    ) -> (Decision, u64) {
        let share = by.share(replicas);
        let checks = share_check(key, &share, operation);
        // What could not be charged later is not admitted as counted.
        if matches!(operation, Operation::Charge(_)) && !self.has_room(key, now) {
            self.count_full(now);
            let uncharged = self.memory.dry_run(&checks, now, |_| false).decisions[0].decision;
            return (self.on_full.without_memory(uncharged), 0);
        }
        // Not `apply_single`, whose decision has no receipt.
        let decisions =
            self.memory.apply(&checks, now, |_| false).expect("a memory that is not shared owns every slot");
        let CheckDecision { decision, charged, .. } = decisions[0];
        if charged > 0 {
            // Refusals are those of this share.
            self.change(key, limit.plain(), |counter, limit| {
                limit.decide(counter, now, Operation::Charge(charged));
            });
        }
        (decision, charged)
    }

    /// Whether there is memory for another charge of `key`.
    fn has_room(&mut self, key: Key, now: Timestamp) -> bool {
        let more = if self.admitted.contains_key(&key) { 0 } else { ENTRY_BYTES };
        let is_short = |share: &Self| share.bytes_max < (share.bytes() + more) as u64;
        if is_short(self) && self.full_again_at <= now {
            self.memory.sweep(now);
        }
        !is_short(self)
    }

    /// Counts a charge for which there is no memory, and logs that within a bound.
    fn count_full(&mut self, now: Timestamp) {
        self.full += 1;
        if self.full_again_at <= now {
            self.full_again_at = now.after(FULL_PAUSE);
            #[cfg(feature = "log")]
            tracing::warn!(
                keys = self.admitted.len(),
                charges = self.full,
                on_full = ?self.on_full,
                "local shares have no memory for more keys: on_full decides"
            );
        }
    }

    /// Takes back what was charged to a share, and removes it from its outcome.
    pub fn take_back(
        &mut self,
        key: Key,
        limit: &Limit,
        outcome: &mut RemoteOutcome,
        LocalShareBasis { replicas, now }: LocalShareBasis,
    ) {
        let Some(receipt) = outcome.outcome.decision.receipt.take() else { return };
        let hits = std::mem::take(&mut outcome.outcome.charged);
        let share = limit.share(replicas);
        if self.admitted.contains_key(&key) {
            self.change(key, limit.plain(), |counter, limit| {
                limit.decide(counter, now, Operation::Refund(hits));
            });
        }
        let undone = self.memory.operate(key, &share, &CounterOperation::Undo(receipt), now);
        debug_assert!(undone.is_ok(), "a memory that is not shared owns every slot");
    }
}

/// The check of an operation by the share of a limit.
fn share_check(key: Key, limit: &Limit, operation: Operation) -> Checks<'_> {
    let on_refusal = OnRefusal::Keep;
    Checks::from_slice(&[Check { key, limit, operation, on_refusal, origin: LimitOrigin::Rule }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_counter::{
        algorithm::{Excess, FixedWindow, Window},
        time::SECOND,
    };
    use tollgate_rules::ForwardPolicy;
    use tollgate_store::{HoldOutcome, OperationOutcome};

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
    const KEYS: u64 = 160_000;

    fn a_day(limit: u64) -> Limit {
        let window = Window::from_nanos(86_400 * SECOND).unwrap();
        Limit::FixedWindow(FixedWindow { limit, window, excess: Excess::Refuse })
    }

    /// Decides one operation on each of many keys without their counters. Returns how many pass.
    fn passes(share: &mut LocalShare, limit: &Limit, operation: Operation) -> u64 {
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: false };
        let basis = LocalShareBasis { replicas: 2, now: NOW };
        let mut passed = 0;
        for number in 0..KEYS {
            let key = Key::from_halves(number.rotate_right(4), number);
            let check = CounterCheck {
                policy,
                ..CounterCheck::by_counter(key, limit.clone(), CounterOperation::Decide(operation))
            };
            let mut outcome = [RemoteOutcome::unreachable()];
            share.decide_unreachable(&[check], &mut outcome, basis);
            passed += u64::from(outcome[0].outcome.decision.verdict.passes());
        }
        passed
    }

    #[test]
    fn shares_of_many_keys_are_admitted_and_remembered() {
        let mut share = LocalShare::new(512 * 1024 * 1024, OnFull::Deny);
        assert_eq!(passes(&mut share, &a_day(100), Operation::Charge(1)), KEYS);
        assert_eq!((share.admitted_keys().count() as u64, share.full()), (KEYS, 0));
        assert_eq!(passes(&mut share, &a_day(100), Operation::Charge(50)), 0, "a share is half of the limit");
        let taken = share.take_admitted_where(|_| true).count();
        assert_eq!((taken as u64, share.admitted_bytes), (KEYS, 0));
    }

    #[test]
    fn keys_without_memory_follow_on_full_and_are_counted() {
        for on_full in [OnFull::Deny, OnFull::Allow] {
            let counters = Memory::new(16 * 1024 * 1024, on_full);
            let mut share = LocalShare::within(&counters);
            let passed = passes(&mut share, &a_day(100), Operation::Charge(1));
            assert!(share.full() > KEYS / 2 && share.full() < KEYS);
            let bytes = counters.stats().bytes;
            assert!(1_000_000 < bytes && bytes <= 2_200_000, "{bytes} bytes");
            let admitted = share.admitted_keys().count() as u64;
            assert_eq!(admitted, KEYS - share.full());
            assert_eq!(passed, if on_full == OnFull::Deny { admitted } else { KEYS });
            assert_eq!(passes(&mut share, &a_day(100), Operation::Peek), KEYS, "a peek needs no memory");
            assert_eq!(share.full(), KEYS - admitted);
            share.clear();
            assert_eq!(counters.stats().bytes, 0);
        }
    }

    #[test]
    fn share_is_of_the_smaller_one_of_rule_and_own_number() {
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: false };
        let basis = LocalShareBasis { replicas: 2, now: NOW };
        let key = Key::from_halves(1, 1);
        let charge = CounterOperation::Decide(Operation::Charge(1));
        let check = CounterCheck { policy, ..CounterCheck::by_counter(key, a_day(10), charge) };
        let own = |number| OwnTerms { limit: a_day(number), requests_per_unit: number };
        let decided = |own: Option<OwnTerms>| {
            let outcome = OperationOutcome::exhausted().by_own(own.as_ref());
            RemoteOutcome::from_counter(OperationOutcome { hold: HoldOutcome::Decided, ..outcome })
        };
        let admitted = |share: &mut LocalShare, check: &CounterCheck| {
            let mut each = (0..20).map(|_| {
                let mut outcome = [RemoteOutcome::unreachable()];
                share.decide_unreachable(std::slice::from_ref(check), &mut outcome, basis);
                outcome[0].outcome.clone()
            });
            each.by_ref().take_while(|outcome| outcome.decision.verdict.passes()).count()
        };
        for (seen, number) in [(Some(own(4)), 2), (Some(own(0)), 0), (Some(own(50)), 5), (None, 5)] {
            let mut share = LocalShare::new(1 << 30, OnFull::Deny);
            share.remember_own(std::slice::from_ref(&check), &[decided(Some(own(1)))]);
            share.remember_own(std::slice::from_ref(&check), &[decided(seen)]);
            assert_eq!(admitted(&mut share, &check), number);
        }
        let by_request = CounterCheck { origin: LimitOrigin::Request, ..check.clone() };
        let mut share = LocalShare::new(1 << 30, OnFull::Deny);
        assert!(share.remember_own(std::slice::from_ref(&check), &[decided(Some(own(1)))]));
        assert_eq!(admitted(&mut share, &by_request), 5, "the request's number decides");
        let mut small = LocalShare::new(1 << 16, OnFull::Deny);
        for number in 0..10_000 {
            let check = CounterCheck { key: Key::from_halves(number, number), ..check.clone() };
            small.remember_own(&[check], &[decided(Some(own(1)))]);
        }
        assert!((1..=small.bytes_max / OWN_DIVISOR).contains(&(small.bytes() as u64)));
    }
}
