//! A batch: parts that are decided together on the known values of their counters, what they make of these counters, and
//! the groups of keys that the script then compares and sets. Pure: the lane sends it.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;
use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_remote::{CounterCheck, CounterChecks, OpenChecks, SubmissionMode};
use tollgate_store::{
    CheckDecision, Checks, CounterOperation, Expired, HeldCounter, HoldTerms, OperationOutcome, OwnTerms,
    Refusal, Reserve, Room, decide_set,
};

use crate::{
    clocks::Instants,
    script::{ClaimTerms, KeyGroupReply},
    stats::SharedStoreCounters,
    value::{Known, KnownValues, claim_mark, encode},
};

/// The most keys. A script of so many keys takes the server about half a millisecond.
const KEYS_MAX: usize = 256;
/// No part is added to known values of so many bytes. Counters with many reservations are large.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// After this many lost races a part claims its counters.
const CLAIM_AFTER: u32 = 2;
/// How long a part waits for a counter that another replica has claimed, in nanoseconds.
const CLAIMED_PAUSE: u64 = 500_000;

/// Parts with their outcomes, if the script confirms what is known.
#[derive(Debug)]
pub(super) struct StoreBatch {
    claim: ClaimTerms,
    instants: Instants,
    /// The counters of the parts, each once.
    entries: Vec<BatchCounter>,
    index: FxHashMap<Key, usize>,
    /// The bytes of the values that were known.
    known_bytes: usize,
    groups: Vec<PartGroup>,
    /// Parts that wait for values or for the claims of others.
    deferred: Vec<BatchPart>,
}

/// Parts that share counters, and these counters.
#[derive(Debug, Default)]
struct PartGroup {
    entries: SmallVec<[usize; 2]>,
    parts: Vec<(BatchPart, PartOutcomes)>,
    /// The most races that one of the parts has lost.
    conflicts: u32,
}

/// What became of the parts of a batch.
#[derive(Debug, Default)]
pub(super) struct SettledBatch {
    /// Parts that are decided.
    pub(super) decided: Vec<(BatchPart, PartOutcomes)>,
    /// Parts to be decided again.
    pub(super) again: Vec<BatchPart>,
    /// Parts whose groups have no reply.
    pub(super) failed: Vec<BatchPart>,
    /// Forgotten values, to be dropped without a lock.
    pub(super) forgotten: Vec<FxHashMap<Key, Known>>,
}

impl StoreBatch {
    /// An empty batch. Its parts request `claim` after lost races.
    pub(super) fn new(instants: Instants, claim: ClaimTerms) -> Self {
        Self {
            claim,
            instants,
            entries: Vec::new(),
            index: FxHashMap::default(),
            known_bytes: 0,
            groups: Vec::new(),
            deferred: Vec::new(),
        }
    }

    /// Whether so many keys fit in.
    pub(super) fn has_room(&self, keys: usize) -> bool {
        self.is_empty() || (self.entries.len() + keys <= KEYS_MAX && self.known_bytes < BYTES_MAX)
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a part and decides it on what is known. Returns it if it can never be decided.
    pub(super) fn add(&mut self, part: BatchPart, known: &mut KnownValues) -> Option<BatchPart> {
        let entries = self.entries_of(&part, known);
        let entry = |number: &usize| &self.entries[*number];
        if entries.iter().any(|number| entry(number).known.as_ref().is_some_and(|known| known.is_foreign)) {
            self.defer_reads(&entries);
            return Some(part);
        }
        let Instants { local, server } = self.instants;
        let is_claimed =
            entries.iter().any(|number| entry(number).is_claimed(self.claim.replica, server.now));
        let is_unread = entries.iter().any(|number| entry(number).is_read)
            // A guess may fail, and must not fail others with it.
            || (entries.len() > 1 && entries.iter().any(|number| entry(number).known.is_none()));
        if is_claimed || is_unread {
            let pause = if is_claimed { CLAIMED_PAUSE } else { 0 };
            let not_before = local.plus(pause);
            self.defer_reads(&entries);
            self.deferred.push(BatchPart { not_before, ..part });
            return None;
        }
        let group = self.join(&entries);
        let outcomes = self.decide(&part);
        let group = &mut self.groups[group];
        group.conflicts = group.conflicts.max(part.conflicts);
        group.parts.push((part, outcomes));
        None
    }

    /// Requests the values of those entries that are unknown or claimed, if no decided part uses them.
    fn defer_reads(&mut self, entries: &[usize]) {
        for entry in entries {
            let entry = &mut self.entries[*entry];
            let is_unknown =
                entry.known.as_ref().is_none_or(|known| known.claim.is_some() || known.is_foreign);
            if entry.group.is_none() && is_unknown {
                (entry.known, entry.state, entry.is_read) = (None, EntryState::default(), true);
            }
        }
    }

    /// Puts the entries into one group.
    fn join(&mut self, entries: &[usize]) -> usize {
        let joined = entries.iter().filter_map(|entry| self.entries[*entry].group).min();
        let joined = joined.unwrap_or_else(|| {
            self.groups.push(PartGroup::default());
            self.groups.len() - 1
        });
        for entry in entries {
            match self.entries[*entry].group {
                None => {
                    self.entries[*entry].group = Some(joined);
                    self.groups[joined].entries.push(*entry);
                }
                Some(group) if group != joined => {
                    let PartGroup { entries, parts, conflicts } = std::mem::take(&mut self.groups[group]);
                    entries.iter().for_each(|moved| self.entries[*moved].group = Some(joined));
                    let into = &mut self.groups[joined];
                    into.entries.extend(entries);
                    into.parts.extend(parts);
                    into.conflicts = into.conflicts.max(conflicts);
                }
                Some(_already_there) => {}
            }
        }
        joined
    }

    /// Computes the new values, and the groups to compare and set.
    pub(super) fn prepare(&mut self) {
        let now = self.instants.server.now;
        self.entries.iter_mut().for_each(|entry| entry.new = entry.new_value(now));
        // Joined groups are empty. Entries that no decided part uses are read, each in a group without parts.
        self.groups.retain(|group| !group.entries.is_empty());
        let unused = (0..self.entries.len()).filter(|entry| self.entries[*entry].group.is_none());
        let read = |entry| PartGroup { entries: smallvec![entry], ..PartGroup::default() };
        self.groups.extend(unused.map(read));
    }

    /// The number of groups to compare and set.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The command that calls the script for the prepared groups, in the order in which [`StoreBatch::settle`] takes
    /// their replies. `name` is the name of a key in the store; changes that may end refusals are announced on `channel`.
    pub(super) fn call(
        &self,
        command: &str,
        script: &str,
        channel: &str,
        name: impl Fn(Key) -> Vec<u8>,
    ) -> Cmd {
        let keys = self.entries.len();
        let mut cmd = Cmd::with_capacity(3 + 4 * keys + 4 * self.groups.len(), 96 + 128 * keys);
        cmd.arg(command).arg(script).arg(keys);
        for entry in self.groups.iter().flat_map(|group| &group.entries) {
            cmd.arg(name(self.entries[*entry].key));
        }
        for group in &self.groups {
            cmd.arg(group.entries.len());
            if group.conflicts >= CLAIM_AFTER {
                cmd.arg(self.claim.millis).arg(&claim_mark(self.claim.replica));
            } else {
                cmd.arg(0).arg("");
            }
            let is_announced = group.parts.iter().any(|(part, _)| part.may_end_refusals());
            cmd.arg(if is_announced { channel } else { "" });
            for entry in &group.entries {
                let BatchCounter { known, new, .. } = &self.entries[*entry];
                let expected = known.as_ref().map_or(&[][..], |known| &known.bytes);
                match new {
                    None => cmd.arg(expected).arg("").arg(""),
                    Some((value, expiry)) => cmd.arg(expected).arg(value).arg(*expiry),
                };
            }
        }
        cmd
    }

    /// Takes the replies to [`StoreBatch::call`], which arrived at the local instant `arrived`, and updates what is
    /// known. Groups without a reply have failed.
    pub(super) fn settle(
        mut self,
        replies: Vec<KeyGroupReply>,
        known: &mut KnownValues,
        arrived: Timestamp,
        counts: &SharedStoreCounters,
    ) -> SettledBatch {
        let mut settled = SettledBatch::default();
        let mut replies = replies.into_iter();
        for PartGroup { entries, parts, .. } in self.groups {
            match replies.next() {
                Some(KeyGroupReply::Applied) => {
                    for entry in entries {
                        let entry = &mut self.entries[entry];
                        let EntryState { expired, ids_forgotten, penalties, .. } = &entry.state;
                        counts.events.holds_released.add(expired.released as u64);
                        counts.events.holds_charged.add(expired.charged as u64);
                        counts.events.ids_forgotten.add(*ids_forgotten as u64);
                        counts.events.penalties.add(*penalties);
                        let now_known = entry.applied(arrived);
                        settled.forgotten.extend(known.insert(entry.key, now_known));
                    }
                    settled.decided.extend(parts);
                }
                Some(KeyGroupReply::Differs(values)) => {
                    let mut was_guess = true;
                    for (entry, value) in entries.into_iter().zip(values) {
                        let BatchCounter { key, known: expected, .. } = &mut self.entries[entry];
                        if let Some(expected) = expected
                            && expected.bytes != value
                            && !parts.is_empty()
                        {
                            was_guess = false;
                            counts.lost.add(value.is_empty().into());
                        }
                        settled.forgotten.extend(known.insert(*key, Known::read(value, arrived)));
                    }
                    counts.conflicts.add((!was_guess).into());
                    settled.again.extend(parts.into_iter().map(|(part, _)| BatchPart {
                        conflicts: part.conflicts + u32::from(!was_guess),
                        ..part
                    }));
                }
                // What the store holds now is unknown.
                None => settled.failed.extend(parts.into_iter().map(|(part, _)| part)),
            }
        }
        settled.again.append(&mut self.deferred);
        settled
    }
}

/// How long a value outlives its counter, in milliseconds. It covers the difference between the clocks of replicas and
/// servers: no value is gone before its counter is idle by the clock of each replica.
const EXPIRY_MARGIN: u64 = 1_000;
/// The longest expiry, in milliseconds: 100 years, for a limit of its own that has no end.
const EXPIRY_MAX: u64 = 100 * 366 * 86_400_000;
/// The time for which a value that the store has sent is not assumed to have expired.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// A counter of the batch.
#[derive(Debug)]
struct BatchCounter {
    key: Key,
    /// `None` if nothing is known: the counter is assumed to be fresh.
    known: Option<Known>,
    state: EntryState,
    /// The value to set and its expiry in milliseconds.
    new: Option<(Vec<u8>, u64)>,
    /// The group of the parts that use it; `None` if no decided part does.
    group: Option<usize>,
    /// Only the value of the counter is requested.
    is_read: bool,
}

/// What the parts so far make of a counter.
#[derive(Clone, Debug, Default)]
struct EntryState {
    counter: HeldCounter,
    is_changed: bool,
    /// Holds that have expired.
    expired: Expired,
    /// Ids that were forgotten because there were too many.
    ids_forgotten: usize,
    /// Penalties that began.
    penalties: u64,
}

impl StoreBatch {
    /// The numbers of a part's counters, each once.
    fn entries_of(&mut self, part: &BatchPart, known: &mut KnownValues) -> SmallVec<[usize; 2]> {
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
    fn decide(&mut self, part: &BatchPart) -> PartOutcomes {
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
            |index, operation| ((&self.apply(&part.checks[index], operation)).into(), true),
        );
        let each = part.checks.iter().zip(decisions);
        each.map(|(check, CheckDecision { decision, charged, .. })| {
            OperationOutcome::new(decision, charged).by_own(self.own_terms(check))
        })
        .collect()
    }

    /// The limit of its own that decides on the counter of a check.
    fn own_terms(&self, check: &CounterCheck) -> Option<&OwnTerms> {
        let counter = &self.entries[self.index[&check.key]].state.counter;
        check.origin.replaced_by(counter.own_terms(self.instants.server.now))
    }

    /// Holds the charges of a call, or none of them.
    fn reserve(&mut self, part: &BatchPart, refusal: &Refusal) -> PartOutcomes {
        let mut numbers: SmallVec<[usize; 2]> = SmallVec::new();
        let own: Vec<Option<OwnTerms>> =
            part.checks.iter().map(|check| self.own_terms(check).cloned()).collect();
        let mut each: SmallVec<[Reserve<'_>; 2]> = SmallVec::new();
        for (check, own) in part.checks.iter().zip(&own) {
            let properties = check.operation.properties();
            let (Some(terms), Some(hits)) = (properties.terms, properties.reserved) else { continue };
            self.expire(check);
            let number = self.index[&check.key];
            let counter = numbers.iter().position(|other| *other == number).unwrap_or(numbers.len());
            if counter == numbers.len() {
                numbers.push(number);
            }
            let terms = HoldTerms::clone(terms);
            let limit = own.as_ref().map_or(&check.limit, |own| &own.limit);
            each.push(Reserve { counter, limit, terms, hits });
        }
        let mut counters: SmallVec<[HeldCounter; 2]> =
            numbers.iter().map(|number| std::mem::take(&mut self.entries[*number].state.counter)).collect();
        let reserved = tollgate_store::reserve(
            &each,
            &mut counters,
            self.instants.server,
            Room::OF_VALUE,
            |each| refusal.is_refused(each),
            |counters| SmallVec::from_elem(None, counters.len()),
        );
        let is_changed = reserved.as_ref().is_some_and(|reserved| reserved.is_held);
        for (number, counter) in numbers.into_iter().zip(counters) {
            let state = &mut self.entries[number].state;
            state.counter = counter;
            state.is_changed |= is_changed;
        }
        match reserved {
            Some(reserved) => {
                let each = OperationOutcome::reserved(&reserved).into_iter().zip(&own);
                each.map(|(outcome, own)| outcome.by_own(own.as_ref())).collect()
            }
            None => SmallVec::from_elem(OperationOutcome::exhausted(), part.checks.len()),
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
        let (outcome, is_changed) =
            state.counter.apply(&check.limit, check.origin, operation, now, Room::OF_VALUE);
        state.is_changed |= is_changed;
        state.penalties += u64::from(state.counter.penalties().saturating_sub(before));
        outcome
    }

    /// Ends the holds of a counter that are due.
    fn expire(&mut self, check: &CounterCheck) -> &mut EntryState {
        let state = &mut self.entries[self.index[&check.key]].state;
        let (is_changed, expired) = state.counter.catch_up(&check.limit, self.instants.server);
        state.is_changed |= is_changed;
        state.expired += expired;
        state
    }
}

impl BatchCounter {
    fn new(key: Key, mut known: Option<Known>) -> Self {
        let counter = known.as_mut().map(|known| std::mem::take(&mut known.counter)).unwrap_or_default();
        let state = EntryState { counter, ..EntryState::default() };
        Self { key, known, state, new: None, group: None, is_read: false }
    }

    /// Whether a replica other than `replica` has claimed it.
    fn is_claimed(&self, replica: u64, now: Timestamp) -> bool {
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
        let left = counter.idle_at().nanos_since(now).div_ceil(1_000_000).min(EXPIRY_MAX);
        let known = self.known.as_ref().map_or(&[][..], |known| &known.bytes);
        (known != value).then_some((value, left + EXPIRY_MARGIN))
    }

    /// What is known after the script has found and set what it was to.
    fn applied(&mut self, arrived: Timestamp) -> Known {
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

/// Checks that are decided in one step.
#[derive(Debug)]
pub(super) struct BatchPart {
    pub(super) checks: CounterChecks,
    pub(super) mode: SubmissionMode,
    /// Takes the outcomes, or `None` if the store does not decide the part; `None` if nothing waits for them.
    pub(super) reply: Option<oneshot::Sender<Option<PartOutcomes>>>,
    /// The local instant at which the caller stops waiting.
    pub(super) deadline: Timestamp,
    /// Lost races.
    pub(super) conflicts: u32,
    /// Whether the part was sent already and the answer was lost.
    pub(super) was_lost: bool,
    /// The local instant before which it waits, because another replica has claimed a counter.
    pub(super) not_before: Timestamp,
    // Keeps the checks open, also if the caller has gone.
    pub(super) open: Option<Arc<OpenChecks>>,
}

/// The outcomes of a part, one for each check. Those of a dry run follow the peeks before it.
pub(super) type PartOutcomes = SmallVec<[OperationOutcome; 1]>;

impl BatchPart {
    /// A part for whose outcomes nothing waits yet.
    pub(super) fn new(
        checks: CounterChecks,
        mode: SubmissionMode,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> Self {
        let not_before = Timestamp::EPOCH;
        Self { checks, mode, reply: None, deadline, conflicts: 0, was_lost: false, not_before, open }
    }

    /// Whether nothing waits for the outcomes any more.
    pub(super) fn is_abandoned(&self, local: Timestamp) -> bool {
        self.deadline <= local || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Whether a counter may refuse before and pass after it.
    pub(super) fn may_end_refusals(&self) -> bool {
        match self.mode {
            SubmissionMode::DryRun(_) | SubmissionMode::Reserve(_) => false,
            SubmissionMode::Call(_) | SubmissionMode::Each => {
                self.checks.iter().any(|check| check.operation.properties().frees_hits)
            }
        }
    }
}
