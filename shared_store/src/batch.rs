//! A batch: parts that are decided together on the known values of their counters, and the groups of keys that the
//! script then compares and sets. Pure: the lane sends it.

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_store::Expired;

use crate::{
    clocks::Instants,
    counters::{BatchCounter, BatchCounters, EntryState},
    known::{Known, KnownValues},
    part::{BatchPart, PartOutcomes},
    script::{ClaimTerms, KeyGroup, KeyGroupReply, ValueChange},
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
    counters: BatchCounters,
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
    /// Decided.
    pub(super) decided: Vec<(BatchPart, PartOutcomes)>,
    /// To be decided again.
    pub(super) again: Vec<BatchPart>,
    /// Their groups have no reply.
    pub(super) failed: Vec<BatchPart>,
    pub(super) stats: BatchStats,
}

/// Stats of a batch.
#[derive(Debug, Default)]
pub(super) struct BatchStats {
    /// Groups that were decided on values which other replicas had changed.
    pub(super) conflicts: u64,
    /// Counters that were known and are gone from the store before they were idle.
    pub(super) lost: u64,
    /// Holds that have expired.
    pub(super) expired: Expired,
    /// Ids of holds that were forgotten because their counter had too many.
    pub(super) ids_forgotten: usize,
    /// Penalties that began.
    pub(super) penalties: u64,
    /// Forgotten values, to be dropped without a lock.
    pub(super) forgotten: Vec<FxHashMap<Key, Known>>,
    /// Whether the circuit breaker has opened.
    pub(super) has_opened: bool,
}

impl StoreBatch {
    /// An empty batch. Its parts request `claim` after lost races.
    pub(super) fn new(instants: Instants, claim: ClaimTerms) -> Self {
        Self { claim, counters: BatchCounters::new(instants), groups: Vec::new(), deferred: Vec::new() }
    }

    /// Whether so many keys fit in.
    pub(super) fn has_room(&self, keys: usize) -> bool {
        self.is_empty()
            || (self.counters.entries.len() + keys <= KEYS_MAX && self.counters.known_bytes < BYTES_MAX)
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.counters.entries.is_empty()
    }

    /// Adds a part and decides it on what is known. Returns it if it can never be decided.
    pub(super) fn add(&mut self, part: BatchPart, known: &mut KnownValues) -> Option<BatchPart> {
        let entries = self.counters.entries_of(&part, known);
        let entry = |number: &usize| &self.counters.entries[*number];
        if entries.iter().any(|number| entry(number).known.as_ref().is_some_and(|known| known.is_foreign)) {
            self.defer_reads(&entries);
            return Some(part);
        }
        let Instants { local, server } = self.counters.instants;
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
        let outcomes = self.counters.decide(&part);
        let group = &mut self.groups[group];
        group.conflicts = group.conflicts.max(part.conflicts);
        group.parts.push((part, outcomes));
        None
    }

    /// Requests the values of those entries that are unknown or claimed, if no decided part uses them.
    fn defer_reads(&mut self, entries: &[usize]) {
        for entry in entries {
            let entry = &mut self.counters.entries[*entry];
            let is_unknown =
                entry.known.as_ref().is_none_or(|known| known.claim.is_some() || known.is_foreign);
            if entry.group.is_none() && is_unknown {
                (entry.known, entry.state, entry.is_read) = (None, EntryState::default(), true);
            }
        }
    }

    /// Puts the entries into one group.
    fn join(&mut self, entries: &[usize]) -> usize {
        let joined = entries.iter().filter_map(|entry| self.counters.entries[*entry].group).min();
        let joined = joined.unwrap_or_else(|| {
            self.groups.push(PartGroup::default());
            self.groups.len() - 1
        });
        for entry in entries {
            match self.counters.entries[*entry].group {
                None => {
                    self.counters.entries[*entry].group = Some(joined);
                    self.groups[joined].entries.push(*entry);
                }
                Some(group) if group != joined => {
                    let PartGroup { entries, parts, conflicts } = std::mem::take(&mut self.groups[group]);
                    entries.iter().for_each(|moved| self.counters.entries[*moved].group = Some(joined));
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

    /// The groups to compare and set, in the order in which [`StoreBatch::settle`] takes their replies. `name` is the
    /// name of a key in the store.
    pub(super) fn groups(&mut self, name: impl Fn(Key) -> Vec<u8>) -> Vec<KeyGroup<'_>> {
        self.counters.encode();
        // Joined groups are empty. Entries that no decided part uses are read, each in a group without parts.
        self.groups.retain(|group| !group.entries.is_empty());
        let unused =
            (0..self.counters.entries.len()).filter(|entry| self.counters.entries[*entry].group.is_none());
        let read = |entry| PartGroup { entries: smallvec![entry], ..PartGroup::default() };
        self.groups.extend(unused.map(read));
        let change = |entry: &usize| {
            let BatchCounter { key, known, new, .. } = &self.counters.entries[*entry];
            let expected = known.as_ref().map_or(&[][..], |known| &known.bytes);
            let new = new.as_ref().map(|(value, expiry)| (&**value, *expiry));
            ValueChange { key: name(*key), expected, new }
        };
        let group = |group: &PartGroup| KeyGroup {
            keys: group.entries.iter().map(change).collect(),
            claim: (group.conflicts >= CLAIM_AFTER).then_some(self.claim),
            is_announced: group.parts.iter().any(|(part, _)| part.may_end_refusals()),
        };
        self.groups.iter().map(group).collect()
    }

    /// Takes the replies to [`StoreBatch::groups`], which arrived at the local instant `arrived`, and updates what is
    /// known. Groups without a reply have failed.
    pub(super) fn settle(
        mut self,
        replies: Vec<KeyGroupReply>,
        known: &mut KnownValues,
        arrived: Timestamp,
    ) -> SettledBatch {
        let mut settled = SettledBatch::default();
        let mut stats = BatchStats::default();
        let mut replies = replies.into_iter();
        for PartGroup { entries, parts, .. } in self.groups {
            match replies.next() {
                Some(KeyGroupReply::Applied) => {
                    for entry in entries {
                        stats.expired += self.counters.entries[entry].state.expired;
                        stats.ids_forgotten += self.counters.entries[entry].state.ids_forgotten;
                        stats.penalties += self.counters.entries[entry].state.penalties;
                        let now_known = self.counters.entries[entry].applied(arrived);
                        stats.forgotten.extend(known.insert(self.counters.entries[entry].key, now_known));
                    }
                    settled.decided.extend(parts);
                }
                Some(KeyGroupReply::Differs(values)) => {
                    let mut was_guess = true;
                    for (entry, value) in entries.into_iter().zip(values) {
                        let BatchCounter { key, known: expected, .. } = &mut self.counters.entries[entry];
                        if let Some(expected) = expected
                            && expected.bytes != value
                            && !parts.is_empty()
                        {
                            was_guess = false;
                            stats.lost += u64::from(value.is_empty());
                        }
                        stats.forgotten.extend(known.insert(*key, Known::read(value, arrived)));
                    }
                    stats.conflicts += u64::from(!was_guess);
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
        SettledBatch { stats, ..settled }
    }
}
