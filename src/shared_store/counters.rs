//! The counters of a batch: what is known of each, and what the parts of the batch make of it. Pure: the batch groups
//! them for the script.

use std::{
    ops::{Index, IndexMut},
    time::Duration,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Verdict},
    descriptor::Key,
    shared_store::{
        known::{Known, KnownValues},
        part::{Action, HoldReply, Mode, Outcome, Outcomes, Part, SharedCheck},
        value::encode,
    },
    store::{self, Check, Checks, Exhausted, Expired, HeldCounter, Now, Refusal, decide_set},
    time::Timestamp,
};

/// How long a value outlives its counter, in milliseconds. It covers the difference between the clocks of replicas and
/// servers, so that no replica finds a value gone which it believes not to be idle.
const EXPIRY_MARGIN: u64 = 1_000;
/// For so long a value that the store has shown is not assumed to have expired.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// The instants of a batch, and what a claim consists of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instants {
    /// The local instant.
    pub(super) local: Timestamp,
    /// The servers' clock.
    pub(super) server: Timestamp,
    /// When the servers' clock gave up a lead, if it has one.
    pub(super) given_up: Option<Timestamp>,
    /// This replica, for claims.
    pub(super) replica: u64,
    /// How long a claim holds, in milliseconds.
    pub(super) claim_ms: u64,
}

impl Instants {
    fn now(&self) -> Now {
        Now { now: self.server, given_up: self.given_up }
    }
}

/// The counters of a batch, each once.
#[derive(Debug, Default)]
pub(super) struct Counters {
    entries: Vec<Entry>,
    index: FxHashMap<Key, usize>,
    known_bytes: usize,
}

/// A counter of the batch.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// `None` if nothing is known: the counter is assumed to be fresh.
    pub(super) known: Option<Known>,
    pub(super) counter: HeldCounter,
    is_changed: bool,
    /// Holds that have expired.
    pub(super) expired: Expired,
    /// The value to set and its expiry in milliseconds.
    pub(super) new: Option<(Vec<u8>, u64)>,
    /// The group of the parts that use it; `None` if no decided part does.
    pub(super) group: Option<usize>,
    /// Only its value is asked for.
    pub(super) is_read: bool,
}

/// A counter of the batch before a part that may have to be taken back.
struct EntryCopy {
    number: usize,
    counter: HeldCounter,
    is_changed: bool,
    expired: Expired,
}

impl Counters {
    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The bytes of the values that were known.
    pub(super) fn bytes(&self) -> usize {
        self.known_bytes
    }

    /// The numbers of a part's counters, each once.
    pub(super) fn entries_of(
        &mut self,
        part: &Part,
        known: &mut KnownValues,
        instants: &Instants,
    ) -> SmallVec<[usize; 2]> {
        let mut found = SmallVec::new();
        for SharedCheck { key, .. } in &part.checks {
            let entry = *self.index.entry(*key).or_insert_with(|| {
                let known = known.take(*key).filter(|known| known.is_current(instants));
                self.known_bytes += known.as_ref().map_or(0, |known| known.bytes.len());
                self.entries.push(Entry::new(*key, known));
                self.entries.len() - 1
            });
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
        found
    }

    /// Decides a part on what is known.
    pub(super) fn decide(&mut self, part: &Part, instants: &Instants) -> Outcomes {
        match &part.mode {
            Mode::Call(refusal) => self.decide_call(part, refusal, instants),
            Mode::DryRun(refusal) => {
                let copies = self.copies(part);
                let before: SmallVec<[Decision; 2]> = part
                    .checks
                    .iter()
                    .map(|SharedCheck { key, limit, .. }| {
                        let peek =
                            |counter: &mut Counter| limit.decide(counter, instants.server, Operation::Peek);
                        self.touch(*key, limit, instants, peek)
                    })
                    .collect();
                let mut outcomes = self.decide_call(part, refusal, instants);
                for (outcome, before) in outcomes.iter_mut().zip(before) {
                    outcome.before = before;
                }
                self.restore(copies);
                outcomes
            }
            Mode::Reserve(refusal) => self.reserve(part, refusal, instants),
            Mode::Each => part.checks.iter().map(|check| self.apply(check, instants)).collect(),
        }
    }

    /// Decides the checks of a call as the store in memory does.
    fn decide_call(&mut self, part: &Part, refusal: &Refusal, instants: &Instants) -> Outcomes {
        let checks: Checks<'_> = part
            .checks
            .iter()
            .map(|check| Check {
                key: check.key,
                limit: &check.limit,
                operation: check.action.operation(),
                on_refusal: check.on_refusal,
            })
            .collect();
        let each = |index: usize, action: store::Action| {
            let check = &checks[index];
            let decision = self.touch(check.key, check.limit, instants, |counter| {
                action.apply(check, counter, instants.server)
            });
            let is_changed = match action {
                store::Action::Decide => {
                    check.limit.is_changed_by(check.operation, decision.verdict.passes())
                }
                store::Action::TakeBack(_) => true,
                store::Action::Peek => false,
            };
            let entry = self.index[&check.key];
            self.entries[entry].is_changed |= is_changed;
            (decision, true)
        };
        let decisions = decide_set(&checks, |decisions| refusal.is_refused(decisions), each);
        decisions
            .iter()
            .zip(decisions.charged())
            .map(|(decision, charged)| Outcome::of(*decision, *charged))
            .collect()
    }

    /// Holds the charges of a call, or none of them.
    fn reserve(&mut self, part: &Part, refusal: &Refusal, instants: &Instants) -> Outcomes {
        // A single check that is not held has changed nothing.
        let copies = if part.checks.len() > 1 { self.copies(part) } else { Vec::new() };
        let mut outcomes: Outcomes = part.checks.iter().map(|check| self.apply(check, instants)).collect();
        let decisions: SmallVec<[Decision; 2]> = outcomes.iter().map(|outcome| outcome.decision).collect();
        let is_refused = refusal.is_refused(&decisions);
        if is_refused || outcomes.iter().any(|outcome| matches!(outcome.hold, HoldReply::Exhausted)) {
            self.restore(copies);
            for (SharedCheck { key, limit, .. }, outcome) in part.checks.iter().zip(&mut outcomes) {
                outcome.charged = 0;
                if is_refused && outcome.decision.verdict.passes() {
                    let peek =
                        |counter: &mut Counter| limit.decide(counter, instants.server, Operation::Peek);
                    let left = self.touch(*key, limit, instants, peek);
                    (outcome.decision.remaining, outcome.decision.reset_after) =
                        (left.remaining, left.reset_after);
                }
            }
            return outcomes;
        }
        for (check, decision) in part.checks.iter().zip(decisions) {
            if let Action::Reserve { terms, .. } = &check.action
                && !decision.verdict.passes()
            {
                let entry = self.expired_entry(check.key, &check.limit, instants);
                entry.counter.hold_nothing(&check.limit, terms, &decision, instants.now());
                entry.is_changed = true;
            }
        }
        outcomes
    }

    /// Copies of a part's counters.
    fn copies(&self, part: &Part) -> Vec<EntryCopy> {
        let copy = |check: &SharedCheck| {
            let number = self.index[&check.key];
            let Entry { counter, is_changed, expired, .. } = &self.entries[number];
            EntryCopy { number, counter: counter.clone(), is_changed: *is_changed, expired: *expired }
        };
        part.checks.iter().map(copy).collect()
    }

    fn restore(&mut self, copies: Vec<EntryCopy>) {
        for EntryCopy { number, counter, is_changed, expired } in copies {
            let entry = &mut self.entries[number];
            (entry.counter, entry.is_changed, entry.expired) = (counter, is_changed, expired);
        }
    }

    fn apply(&mut self, check: &SharedCheck, instants: &Instants) -> Outcome {
        let SharedCheck { key, limit, action, .. } = check;
        let now = instants.server;
        let peek = |counter: &mut Counter| limit.decide(counter, now, Operation::Peek);
        let mut is_changed = true;
        let outcome = match action {
            Action::Decide(operation) => {
                let decision =
                    self.touch(*key, limit, instants, |counter| limit.decide(counter, now, *operation));
                let passes = decision.verdict.passes();
                is_changed = limit.is_changed_by(*operation, passes);
                Outcome::of(decision, limit.charged(*operation, passes))
            }
            Action::Undo(receipt) => {
                let decision = self.touch(*key, limit, instants, |counter| {
                    limit.undo(counter, *receipt, now);
                    peek(counter)
                });
                Outcome::of(decision, 0)
            }
            Action::Set(hits) => {
                let entry = &mut self.entries[self.index[key]];
                Outcome::of(entry.counter.replace(limit, *hits, instants.now()), 0)
            }
            Action::Absorb(consumed) => {
                let decision = self.touch(*key, limit, instants, |counter| {
                    limit.absorb(counter, consumed, now);
                    peek(counter)
                });
                Outcome::of(decision, 0)
            }
            Action::Reserve { terms, hits } => {
                let entry = self.expired_entry(*key, limit, instants);
                match entry.counter.reserve(limit, terms, *hits, instants.now()) {
                    Ok((decision, charged)) => {
                        is_changed = decision.verdict.passes();
                        // What is held is taken back by its id only.
                        Outcome::of(Decision { receipt: None, ..decision }, charged)
                    }
                    Err(Exhausted) => {
                        is_changed = false;
                        Outcome { hold: HoldReply::Exhausted, ..passed() }
                    }
                }
            }
            Action::SettleHold { id, actual } => {
                let entry = self.expired_entry(*key, limit, instants);
                let settled = entry.counter.settle(limit, id, *actual, instants.now());
                Outcome { hold: HoldReply::Settled(settled), ..passed() }
            }
            Action::WithdrawHold { id, attempt } => {
                let entry = self.expired_entry(*key, limit, instants);
                is_changed = entry.counter.withdraw(limit, id, *attempt, instants.now());
                passed()
            }
        };
        self.entries[self.index[key]].is_changed |= is_changed;
        outcome
    }

    /// Applies `decide` to a counter, after its holds that are due have ended.
    fn touch(
        &mut self,
        key: Key,
        limit: &Limit,
        instants: &Instants,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> Decision {
        self.expired_entry(key, limit, instants).counter.update(limit, instants.now(), decide)
    }

    /// The entry of a counter, after its holds that are due have ended.
    fn expired_entry(&mut self, key: Key, limit: &Limit, instants: &Instants) -> &mut Entry {
        let entry = &mut self.entries[self.index[&key]];
        let expired = entry.counter.expire(limit, instants.now());
        entry.is_changed |= expired != Expired::default();
        entry.expired += expired;
        entry
    }

    /// Computes the new values.
    pub(super) fn encode(&mut self, now: Timestamp) {
        for entry in &mut self.entries {
            entry.new = entry.new_value(now);
        }
    }
}

impl Index<usize> for Counters {
    type Output = Entry;

    fn index(&self, number: usize) -> &Entry {
        &self.entries[number]
    }
}

impl IndexMut<usize> for Counters {
    fn index_mut(&mut self, number: usize) -> &mut Entry {
        &mut self.entries[number]
    }
}

impl Entry {
    fn new(key: Key, mut known: Option<Known>) -> Self {
        let counter = known.as_mut().map(|known| std::mem::take(&mut known.counter)).unwrap_or_default();
        let expired = Expired::default();
        Self { key, known, counter, is_changed: false, expired, new: None, group: None, is_read: false }
    }

    /// Whether another replica has claimed it.
    pub(super) fn is_claimed(&self, instants: &Instants) -> bool {
        self.known
            .as_ref()
            .and_then(|known| known.claim)
            .is_some_and(|claim| claim.replica != instants.replica && instants.server < claim.until)
    }

    /// The value to set and its expiry; `None` if nothing changes. An idle counter is not stored.
    fn new_value(&mut self, now: Timestamp) -> Option<(Vec<u8>, u64)> {
        if !self.is_changed {
            return None;
        }
        self.counter.forget_idle(now);
        let (value, left) =
            (encode(&self.counter), self.counter.idle_at().nanos_since(now).div_ceil(1_000_000));
        let known = self.known.as_ref().map_or(&[][..], |known| &known.bytes);
        (known != value).then_some((value, left + EXPIRY_MARGIN))
    }

    /// What is known after the script has found and set what it was to.
    pub(super) fn applied(&mut self, arrived: Timestamp) -> Known {
        match (self.new.take(), self.known.take()) {
            (Some((bytes, _)), _) if bytes.is_empty() => Known::read(bytes, arrived),
            (Some((bytes, _)), _) => Known {
                bytes,
                counter: std::mem::take(&mut self.counter),
                claim: None,
                is_foreign: false,
                confirmed_at: arrived,
            },
            // The counter may have been peeked at only.
            (None, Some(known)) => Known { confirmed_at: arrived, ..known }.reread(),
            (None, None) => Known::read(Vec::new(), arrived),
        }
    }
}

impl Known {
    /// Whether the store probably still holds the value. An idle counter leaves the store after a while, by the store's
    /// own clock: what it has just shown is there, whatever this replica's estimate of that clock says.
    fn is_current(&self, instants: &Instants) -> bool {
        if self.counter.is_absent() {
            return true;
        }
        let expiry = self.counter.idle_at().plus(EXPIRY_MARGIN * 1_000_000);
        instants.server < expiry || instants.local.since(self.confirmed_at) < FRESH_FOR
    }
}

/// The outcome of an action that decides nothing.
fn passed() -> Outcome {
    let (verdict, reset_after) = (Verdict::Pass, Duration::ZERO);
    Outcome::of(Decision { verdict, remaining: 0, reset_after, receipt: None }, 0)
}
