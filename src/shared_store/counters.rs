//! The counters of a batch: what is known of each, and what the parts of the batch make of it. Pure: the batch groups
//! them for the script.

use std::{
    ops::{Index, IndexMut},
    time::Duration,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt},
    descriptor::Key,
    shared_store::{
        known::{Known, KnownValues},
        part::{Action, Mode, Outcome, Outcomes, Part, SharedCheck},
        value::encode,
    },
    store::{self, Check, Checks, PackedCounter, Refusal, charged_counter, decide_set},
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

/// The counters of a batch, each once.
#[derive(Debug, Default)]
pub(super) struct Counters {
    entries: Vec<Entry>,
    index: FxHashMap<Key, usize>,
}

/// A counter of the batch.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// `None` if nothing is known: the counter is assumed to be fresh.
    pub(super) known: Option<Known>,
    pub(super) counter: Option<PackedCounter>,
    is_changed: bool,
    /// The value to set and its expiry in milliseconds.
    pub(super) new: Option<(Vec<u8>, u64)>,
    /// The group of the parts that use it; `None` if no decided part does.
    pub(super) group: Option<usize>,
    /// Only its value is asked for.
    pub(super) is_read: bool,
}

impl Counters {
    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
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
                let copies: Vec<(usize, Option<PackedCounter>, bool)> = part
                    .checks
                    .iter()
                    .map(|check| {
                        let entry = self.index[&check.key];
                        (entry, self.entries[entry].counter.clone(), self.entries[entry].is_changed)
                    })
                    .collect();
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
                for (entry, counter, is_changed) in copies {
                    (self.entries[entry].counter, self.entries[entry].is_changed) = (counter, is_changed);
                }
                outcomes
            }
            Mode::Each => part.checks.iter().map(|check| self.apply(check, instants)).collect(),
        }
    }

    /// Decides the checks of a call as the store in memory does.
    fn decide_call(&mut self, part: &Part, refusal: &Refusal, instants: &Instants) -> Outcomes {
        let operation = |check: &SharedCheck| match check.action {
            Action::Decide(operation) => operation,
            Action::Undo(_) | Action::Set(_) | Action::Absorb(_) => Operation::Peek,
        };
        let checks: Checks<'_> = part
            .checks
            .iter()
            .map(|check| Check {
                key: check.key,
                limit: &check.limit,
                operation: operation(check),
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
            .map(|(decision, charged)| Outcome { decision: *decision, charged: *charged, before: *decision })
            .collect()
    }

    fn apply(&mut self, check: &SharedCheck, instants: &Instants) -> Outcome {
        let SharedCheck { key, limit, action, .. } = check;
        let now = instants.server;
        let entry = self.index[key];
        let peek = |counter: &mut Counter| limit.decide(counter, now, Operation::Peek);
        let mut is_changed = true;
        let decision = match action {
            Action::Decide(operation) => {
                let decision =
                    self.touch(*key, limit, instants, |counter| limit.decide(counter, now, *operation));
                is_changed = limit.is_changed_by(*operation, decision.verdict.passes());
                decision
            }
            Action::Undo(receipt) => {
                let receipt: Receipt = *receipt;
                self.touch(*key, limit, instants, |counter| {
                    limit.undo(counter, receipt, now);
                    peek(counter)
                })
            }
            Action::Set(hits) => {
                self.entries[entry].counter = None;
                let hits = *hits;
                self.touch(*key, limit, instants, |counter| {
                    *counter = charged_counter(limit, hits, now);
                    peek(counter)
                })
            }
            Action::Absorb(consumed) => self.touch(*key, limit, instants, |counter| {
                limit.absorb(counter, consumed, now);
                peek(counter)
            }),
        };
        self.entries[entry].is_changed |= is_changed;
        let charged = match action {
            Action::Decide(operation) => limit.charged(*operation, decision.verdict.passes()),
            Action::Undo(_) | Action::Set(_) | Action::Absorb(_) => 0,
        };
        Outcome { decision, charged, before: decision }
    }

    /// Applies `decide` to a counter. A fresh one that stays idle is not kept.
    fn touch(
        &mut self,
        key: Key,
        limit: &Limit,
        instants: &Instants,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> Decision {
        let entry = &mut self.entries[self.index[&key]];
        touch(&mut entry.counter, limit, instants.server, instants.given_up, decide)
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
        let counter = known.as_mut().and_then(|known| known.counter.take());
        Self { key, known, counter, is_changed: false, new: None, group: None, is_read: false }
    }

    /// Whether another replica has claimed it.
    pub(super) fn is_claimed(&self, instants: &Instants) -> bool {
        self.known
            .as_ref()
            .and_then(|known| known.claim)
            .is_some_and(|claim| claim.replica != instants.replica && instants.server < claim.until)
    }

    /// The value to set and its expiry; `None` if nothing changes. An idle counter is not stored.
    fn new_value(&self, now: Timestamp) -> Option<(Vec<u8>, u64)> {
        if !self.is_changed {
            return None;
        }
        let stored = self.counter.as_ref().filter(|counter| now < counter.idle_at());
        let (value, left) = match stored {
            Some(counter) => (encode(counter), counter.idle_at().nanos_since(now).div_ceil(1_000_000)),
            None => (Vec::new(), 0),
        };
        let known = self.known.as_ref().map_or(&[][..], |known| &known.bytes);
        (known != value).then_some((value, left + EXPIRY_MARGIN))
    }

    /// What is known after the script has found and set what it was to.
    pub(super) fn applied(&mut self, arrived: Timestamp) -> Known {
        match (self.new.take(), self.known.take()) {
            (Some((bytes, _)), _) if bytes.is_empty() => Known::read(bytes, arrived),
            (Some((bytes, _)), _) => Known {
                bytes,
                counter: self.counter.take(),
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
        let Some(counter) = &self.counter else { return true };
        let expiry = counter.idle_at().plus(EXPIRY_MARGIN * 1_000_000);
        instants.server < expiry || instants.local.since(self.confirmed_at) < FRESH_FOR
    }
}

/// Applies `decide` to a counter, after it is cut if it is ahead of the clock. A fresh one that stays idle is not kept.
pub(super) fn touch(
    counter: &mut Option<PackedCounter>,
    limit: &Limit,
    now: Timestamp,
    given_up: Option<Timestamp>,
    decide: impl FnOnce(&mut Counter) -> Decision,
) -> Decision {
    match counter {
        Some(packed) => {
            packed.clamp_ahead(limit, given_up.map(|at| at.min(now)), now);
            packed.update(limit, decide)
        }
        None => {
            let mut fresh = limit.fresh();
            let decision = decide(&mut fresh);
            if now < limit.idle_at(&fresh) {
                *counter = Some(PackedCounter::new(limit, fresh, &decision));
            }
            decision
        }
    }
}
