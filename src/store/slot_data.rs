//! What one slot holds, apart from any lock: on its way to another replica, or kept as a copy.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::BuildHasherDefault,
    sync::Arc,
};

use crate::{
    algorithm::{Counter, Limit, Operation},
    descriptor::Key,
    store::{
        budget::{Budget, Reservation},
        memory::{KeyHasher, Lead},
        packed_counter::PackedCounter,
        table::Table,
    },
    time::Timestamp,
};

mod codec;

pub use codec::DecodeError;

type ByKey<T> = HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// What one slot holds. Copies that a memory makes or takes in count in its budget for as long as they live.
#[derive(Clone, Debug, Default)]
pub struct SlotData {
    extent: Extent,
    counters: ByKey<PackedCounter>,
    // Keys that had a counter and now have none, or one that is as good as none.
    removed: HashSet<Key, BuildHasherDefault<KeyHasher>>,
    pending: PendingUsage,
    unknown: UnknownRecords,
    // Of the clock that its instants are of: some may lie ahead of it.
    lead: Option<Lead>,
    reservation: Reservation,
}

/// What contents are, compared with the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Extent {
    /// A part of what it holds.
    #[default]
    Some,
    /// All that it holds.
    All,
}

/// Counters of kinds that this version does not know, as they came, by their tags.
pub(super) type UnknownRecords = BTreeMap<(Key, u8), Vec<Box<[u8]>>>;

/// Consumption that a counter has still to absorb. What it weighs is known only with the counter's limit, so it
/// waits for the next check of its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingUsage {
    by_key: ByKey<Vec<Usage>>,
}

/// What was consumed elsewhere: a counter there, less what it started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) packed: PackedCounter,
    pub(super) base: Option<PackedCounter>,
}

/// Copies of what has changed in a slot.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The changes of the slot since it is held, those in here included.
    pub seq: u64,
    /// What has changed.
    pub data: SlotData,
}

impl SlotData {
    /// All that a slot holds.
    pub(super) fn all(
        counters: impl Iterator<Item = (Key, PackedCounter)>,
        pending: PendingUsage,
        unknown: UnknownRecords,
    ) -> Self {
        let (extent, counters) = (Extent::All, counters.collect());
        Self { extent, counters, pending, unknown, ..Self::default() }
    }

    /// What a slot holds under some keys.
    pub(super) fn some(
        cells: impl Iterator<Item = (Key, Option<PackedCounter>)>,
        pending: PendingUsage,
    ) -> Self {
        let mut data = Self { pending, ..Self::default() };
        for (key, packed) in cells {
            match packed {
                Some(packed) => drop(data.counters.insert(key, packed)),
                None => drop(data.removed.insert(key)),
            }
        }
        data
    }

    pub(super) fn into_parts(self) -> (Table, PendingUsage, UnknownRecords) {
        (Table::of(self.counters.into_iter()), self.pending, self.unknown)
    }

    /// What `counter` has counted of `limit`, to be absorbed by the counter of `key`.
    pub fn of_usage(key: Key, limit: &Limit, mut counter: Counter, now: Timestamp) -> Self {
        let peek = limit.decide(&mut counter, now, Operation::Peek);
        let mut data = Self::default();
        data.pending.push(key, Usage { packed: PackedCounter::new(limit, counter, &peek), base: None });
        data
    }

    /// How many counters there are, those included that this version does not know.
    pub fn len(&self) -> usize {
        self.counters.len() + self.unknown.len()
    }

    /// How much consumption of elsewhere its counters have still to absorb.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Whether there is nothing in it at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.pending.is_empty() && self.removed.is_empty()
    }

    /// The same, from a memory with this lead in force.
    pub(super) fn with_lead(self, lead: Option<Lead>) -> Self {
        Self { lead, ..self }
    }

    /// The lead because of which some of its instants may lie ahead.
    pub(super) fn lead(&self) -> Option<Lead> {
        self.lead
    }

    /// Takes in what has changed: a counter that is in `changes` replaces the one here, with all that it has still
    /// to absorb, and one that is gone goes. A copy of everything replaces everything.
    pub fn merge(&mut self, changes: Self) {
        match changes.extent {
            Extent::Some => {}
            Extent::All => {
                let reservation = std::mem::take(&mut self.reservation);
                *self = Self { reservation, ..changes };
                return self.account();
            }
        }
        for key in changes.counters.keys().chain(changes.pending.by_key.keys()).chain(&changes.removed) {
            self.pending.by_key.remove(key);
            self.removed.remove(key);
        }
        for key in &changes.removed {
            self.counters.remove(key);
        }
        self.counters.extend(changes.counters);
        self.pending.by_key.extend(changes.pending.by_key);
        self.unknown.extend(changes.unknown);
        self.lead = match (self.lead, changes.lead) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        if self.extent == Extent::Some {
            self.removed.extend(changes.removed);
        }
        self.account();
    }

    /// What was consumed here since `ancestor`, an earlier state of the same slot.
    pub fn difference(&self, ancestor: &Self) -> PendingUsage {
        let mut pending = self.pending.clone();
        for (key, each) in &mut pending.by_key {
            if let Some(known) = ancestor.pending.by_key.get(key) {
                each.retain(|usage| !known.contains(usage));
            }
        }
        for (key, packed) in &self.counters {
            let base = ancestor.counters.get(key);
            if base != Some(packed) {
                pending.push(*key, Usage { packed: packed.clone(), base: base.cloned() });
            }
        }
        pending.by_key.retain(|_, each| !each.is_empty());
        pending
    }

    /// The same without what is idle, which is as good as not there. (Of a part, what is idle is told to be gone.)
    pub fn without_idle(mut self, now: Timestamp) -> Self {
        self.counters.retain(|key, packed| {
            let stays = now < packed.idle_at();
            if !stays && self.extent == Extent::Some {
                self.removed.insert(*key);
            }
            stays
        });
        self.pending.forget_idle(now);
        self.account();
        self
    }

    /// The same, with all instants of its counters `back` nanoseconds earlier.
    pub(super) fn shifted_back(mut self, back: u64) -> Self {
        let earlier = |packed: PackedCounter| packed.shifted_back(back);
        self.counters = self.counters.into_iter().map(|(key, packed)| (key, earlier(packed))).collect();
        for usage in self.pending.by_key.values_mut().flatten() {
            usage.packed = earlier(usage.packed.clone());
            usage.base = usage.base.take().map(earlier);
        }
        self.lead = self.lead.map(|lead| lead.shifted_back(back));
        self
    }

    /// Its counters by their keys.
    pub(super) fn into_counters(self) -> impl Iterator<Item = (Key, PackedCounter)> {
        self.counters.into_iter()
    }

    /// Counts in `budget` from now on.
    pub(super) fn charged_to(mut self, budget: &Arc<Budget>) -> Self {
        self.reservation = Reservation::of(budget);
        self.account();
        self
    }

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        bytes_of_map(self.counters.capacity())
            + self.heap_bytes()
            + self.removed.capacity() * size_of::<Key>()
            + self.pending.bytes()
            + bytes_of_unknown(&self.unknown)
    }

    /// The bytes that its counters take outside of their table.
    pub(super) fn heap_bytes(&self) -> usize {
        self.counters.values().map(PackedCounter::heap_bytes).sum()
    }

    fn account(&mut self) {
        self.reservation.set(self.bytes());
    }
}

/// Whether they hold the same, wherever that is counted.
impl PartialEq for SlotData {
    fn eq(&self, other: &Self) -> bool {
        (&self.counters, &self.pending, &self.unknown) == (&other.counters, &other.pending, &other.unknown)
    }
}

impl PendingUsage {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.by_key.keys().copied()
    }

    pub(super) fn of(&self, key: Key) -> &[Usage] {
        self.by_key.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Copies of those of some keys.
    pub(super) fn only<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let some = keys.into_iter().filter_map(|key| Some((*key, self.by_key.get(key)?.clone())));
        Self { by_key: some.collect() }
    }

    pub(super) fn take(&mut self, key: Key) -> Vec<Usage> {
        self.by_key.remove(&key).unwrap_or_default()
    }

    pub(super) fn push(&mut self, key: Key, usage: Usage) {
        self.by_key.entry(key).or_default().push(usage);
    }

    pub(super) fn append(&mut self, others: Self) {
        for (key, each) in others.by_key {
            self.by_key.entry(key).or_default().extend(each);
        }
    }

    /// Drops what weighs nothing any more.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        self.by_key.retain(|_, each| {
            each.retain(|usage| now < usage.packed.idle_at());
            !each.is_empty()
        });
    }

    /// The bytes that they take, as nearly as is worth it.
    pub(super) fn bytes(&self) -> usize {
        let heap = |packed: &PackedCounter| packed.heap_bytes();
        let of =
            |usage: &Usage| size_of::<Usage>() + heap(&usage.packed) + usage.base.as_ref().map_or(0, heap);
        let each: usize = self.by_key.values().flatten().map(of).sum();
        bytes_of_map(self.by_key.capacity()) * 5 / 4 + each
    }
}

/// The bytes of a map of the standard library that holds up to so many counters: of eight places it leaves one free,
/// and each has a byte more that tells about it.
pub(super) fn bytes_of_map(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 8 / 7 + 1) * (size_of::<(Key, PackedCounter)>() + 1) + 16 }
}

/// The bytes that they take, as nearly as is worth it.
pub(super) fn bytes_of_unknown(unknown: &UnknownRecords) -> usize {
    let of = |bytes: &[u8]| size_of::<Box<[u8]>>() + bytes.len();
    unknown.values().map(|each| 64 + each.iter().map(|bytes| of(bytes)).sum::<usize>()).sum()
}
