//! The counters of a batch: what is known of each, and what the parts of the batch make of it. Pure: the batch groups
//! them for the script.

use std::time::Duration;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_remote::{CounterCheck, SubmissionMode};
use tollgate_store::{
    Checks, CounterOperation, Decisions, Exhausted, Expired, HeldCounter, HoldTerms, OperationOutcome,
    Refusal, Reserve, Room, decide_set,
};

use crate::{
    clocks::Instants,
    known::{Known, KnownValues},
    part::{BatchPart, PartOutcomes},
    value::encode,
};

/// How long a value outlives its counter, in milliseconds. It covers the difference between the clocks of replicas and
/// servers: no value is gone before its counter is idle by the clock of each replica.
const EXPIRY_MARGIN: u64 = 1_000;
/// The time for which a value that the store has sent is not assumed to have expired.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// The counters of a batch, each once.
#[derive(Debug)]
pub(super) struct BatchCounters {
    pub(super) instants: Instants,
    pub(super) entries: Vec<BatchCounter>,
    index: FxHashMap<Key, usize>,
    /// The bytes of the values that were known.
    pub(super) known_bytes: usize,
}

/// A counter of the batch.
#[derive(Debug)]
pub(super) struct BatchCounter {
    pub(super) key: Key,
    /// `None` if nothing is known: the counter is assumed to be fresh.
    pub(super) known: Option<Known>,
    pub(super) state: EntryState,
    /// The value to set and its expiry in milliseconds.
    pub(super) new: Option<(Vec<u8>, u64)>,
    /// The group of the parts that use it; `None` if no decided part does.
    pub(super) group: Option<usize>,
    /// Only its value is requested.
    pub(super) is_read: bool,
}

/// What the parts so far make of a counter.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryState {
    counter: HeldCounter,
    is_changed: bool,
    /// Holds that have expired.
    pub(super) expired: Expired,
    /// Ids that were forgotten because there were too many.
    pub(super) ids_forgotten: usize,
    /// Penalties that began.
    pub(super) penalties: u64,
}

impl BatchCounters {
    /// No counters yet.
    pub(super) fn new(instants: Instants) -> Self {
        Self { instants, entries: Vec::new(), index: FxHashMap::default(), known_bytes: 0 }
    }

    /// The numbers of a part's counters, each once.
    pub(super) fn entries_of(&mut self, part: &BatchPart, known: &mut KnownValues) -> SmallVec<[usize; 2]> {
        let mut found = SmallVec::new();
        for CounterCheck { key, .. } in &part.checks {
            let entry = *self.index.entry(*key).or_insert_with(|| {
                let known = known.take(*key).filter(|known| known.is_current(&self.instants));
                self.known_bytes += known.as_ref().map_or(0, |known| known.bytes.len());
                self.entries.push(BatchCounter::new(*key, known));
                self.entries.len() - 1
            });
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
        found
    }

    /// Decides a part on what is known.
    pub(super) fn decide(&mut self, part: &BatchPart) -> PartOutcomes {
        match &part.mode {
            SubmissionMode::Call(refusal) => self.decide_call(part, refusal),
            SubmissionMode::DryRun(refusal) => {
                let before = self.states(part);
                let shown = part.checks.iter().map(|check| self.apply(check, &CounterOperation::Show));
                let mut outcomes: PartOutcomes = shown.collect();
                outcomes.extend(self.decide_call(part, refusal));
                before.into_iter().for_each(|(number, state)| self.entries[number].state = state);
                outcomes
            }
            SubmissionMode::Reserve(refusal) => self.reserve(part, refusal),
            SubmissionMode::Each => {
                part.checks.iter().map(|check| self.apply(check, &check.operation)).collect()
            }
        }
    }

    /// Decides the checks of a call as the store in memory does.
    fn decide_call(&mut self, part: &BatchPart, refusal: &Refusal) -> PartOutcomes {
        let checks: Checks<'_> = part.checks.iter().map(CounterCheck::to_check).collect();
        let decisions = decide_set(
            &checks,
            |each| refusal.is_refused(each),
            |index, operation| (self.apply(&part.checks[index], operation).decision, true),
        );
        outcomes(&decisions)
    }

    /// Holds the charges of a call, or none of them.
    fn reserve(&mut self, part: &BatchPart, refusal: &Refusal) -> PartOutcomes {
        let mut numbers: SmallVec<[usize; 2]> = SmallVec::new();
        let mut each: SmallVec<[Reserve<'_>; 2]> = SmallVec::new();
        for check in &part.checks {
            let CounterOperation::Reserve { terms, hits } = &check.operation else { continue };
            self.expire(check);
            let number = self.index[&check.key];
            let counter = numbers.iter().position(|other| *other == number).unwrap_or(numbers.len());
            if counter == numbers.len() {
                numbers.push(number);
            }
            let terms = HoldTerms::clone(terms);
            each.push(Reserve { counter, limit: &check.limit, terms, hits: *hits, leased: 0 });
        }
        let mut counters: SmallVec<[HeldCounter; 2]> =
            numbers.iter().map(|number| std::mem::take(&mut self.entries[*number].state.counter)).collect();
        let reserved =
            tollgate_store::reserve(&each, &mut counters, self.instants.server, Room::OF_VALUE, |each| {
                refusal.is_refused(each)
            });
        let is_changed = reserved.as_ref().is_ok_and(|reserved| reserved.is_held);
        for (number, counter) in numbers.into_iter().zip(counters) {
            let state = &mut self.entries[number].state;
            state.counter = counter;
            state.is_changed |= is_changed;
        }
        match reserved {
            Ok(reserved) => OperationOutcome::reserved(&reserved),
            Err(Exhausted) => SmallVec::from_elem(OperationOutcome::exhausted(), part.checks.len()),
        }
    }

    /// The states of a part's counters.
    fn states(&self, part: &BatchPart) -> Vec<(usize, EntryState)> {
        let numbers = part.checks.iter().map(|check| self.index[&check.key]);
        numbers.map(|number| (number, self.entries[number].state.clone())).collect()
    }

    /// Applies an operation to the counter of a check, after its holds that are due have ended.
    fn apply(&mut self, check: &CounterCheck, operation: &CounterOperation) -> OperationOutcome {
        let now = self.instants.server;
        let state = self.expire(check);
        let before = state.counter.penalties();
        let (outcome, is_changed) = state.counter.apply(&check.limit, operation, now, Room::OF_VALUE);
        state.is_changed |= is_changed;
        state.penalties += u64::from(state.counter.penalties().saturating_sub(before));
        outcome
    }

    /// Ends the holds of a counter that are due.
    fn expire(&mut self, check: &CounterCheck) -> &mut EntryState {
        let state = &mut self.entries[self.index[&check.key]].state;
        let (is_changed, expired) = state.counter.expire(&check.limit, self.instants.server);
        state.is_changed |= is_changed;
        state.expired += expired;
        state
    }

    /// Computes the new values.
    pub(super) fn encode(&mut self) {
        let now = self.instants.server.now;
        self.entries.iter_mut().for_each(|entry| entry.new = entry.new_value(now));
    }
}

fn outcomes(decisions: &Decisions) -> PartOutcomes {
    let charged = decisions.iter().zip(decisions.charged());
    charged.map(|(decision, charged)| OperationOutcome::new(*decision, *charged)).collect()
}

impl BatchCounter {
    fn new(key: Key, mut known: Option<Known>) -> Self {
        let counter = known.as_mut().map(|known| std::mem::take(&mut known.counter)).unwrap_or_default();
        let state = EntryState { counter, ..EntryState::default() };
        Self { key, known, state, new: None, group: None, is_read: false }
    }

    /// Whether a replica other than `replica` has claimed it.
    pub(super) fn is_claimed(&self, replica: u64, now: Timestamp) -> bool {
        let claim = self.known.as_ref().and_then(|known| known.claim);
        claim.is_some_and(|claim| claim.replica != replica && now < claim.until)
    }

    /// The value to set and its expiry; `None` if nothing changes. An idle counter is not stored.
    fn new_value(&mut self, now: Timestamp) -> Option<(Vec<u8>, u64)> {
        let EntryState { counter, is_changed, ids_forgotten, .. } = &mut self.state;
        if !*is_changed {
            return None;
        }
        *ids_forgotten = counter.take_ids_forgotten();
        counter.forget_idle(now);
        let value = encode(counter);
        let left = counter.idle_at().nanos_since(now).div_ceil(1_000_000);
        let known = self.known.as_ref().map_or(&[][..], |known| &known.bytes);
        (known != value).then_some((value, left + EXPIRY_MARGIN))
    }

    /// What is known after the script has found and set what it was to.
    pub(super) fn applied(&mut self, arrived: Timestamp) -> Known {
        match (self.new.take(), self.known.take()) {
            (Some((bytes, _)), _) if bytes.is_empty() => Known::read(bytes, arrived),
            (Some((bytes, _)), _) => Known {
                bytes,
                counter: std::mem::take(&mut self.state.counter),
                claim: None,
                is_foreign: false,
                confirmed_at: arrived,
            },
            // The counter, which was moved out, may have been peeked at only.
            (None, Some(known)) => Known::read(known.bytes, arrived),
            (None, None) => Known::read(Vec::new(), arrived),
        }
    }
}

impl Known {
    /// Whether the store probably still holds the value. An idle counter leaves the store after a while, by the store's
    /// own clock: what it has just sent is there, whatever this replica's estimate of that clock says.
    fn is_current(&self, instants: &Instants) -> bool {
        if self.counter.is_absent() {
            return true;
        }
        let expiry = self.counter.idle_at().plus(EXPIRY_MARGIN * 1_000_000);
        instants.server.now < expiry || instants.local.since(self.confirmed_at) < FRESH_FOR
    }
}
