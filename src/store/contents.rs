//! What one slot holds, apart from any lock: on its way to another replica, or kept as a copy.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::BuildHasherDefault,
    sync::Arc,
};

use crate::{
    algorithm::{Ask, Counter, Limit},
    descriptor::Key,
    store::{
        budget::{Budget, Taken},
        cell::Cell,
        memory::{KeyHasher, Lead},
        table::Table,
    },
    time::Timestamp,
};

mod wire;

pub use wire::Unreadable;

type ByKey<T> = HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// What one slot holds. Copies that a memory makes or takes in count in its budget for as long as they live.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    extent: Extent,
    counters: ByKey<Cell>,
    // Keys that had a counter and now have none, or one that is as good as none.
    gone: HashSet<Key, BuildHasherDefault<KeyHasher>>,
    extras: Extras,
    unknown: Unknown,
    // Of the clock that its instants are of: some may lie ahead of it.
    lead: Option<Lead>,
    taken: Taken,
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
pub(super) type Unknown = BTreeMap<(Key, u8), Vec<Box<[u8]>>>;

/// Consumption that a counter has still to absorb. What it weighs is known only with the counter's limit, so it
/// waits for the next check of its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    by_key: ByKey<Vec<Extra>>,
}

/// What was consumed elsewhere: a counter there, less what it started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extra {
    pub(super) cell: Cell,
    pub(super) base: Option<Cell>,
}

/// Copies of what has changed in a slot.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The changes of the slot since it is held, those in here included.
    pub seq: u64,
    /// What has changed.
    pub contents: Contents,
}

impl Contents {
    /// All that a slot holds.
    pub(super) fn all(counters: impl Iterator<Item = (Key, Cell)>, extras: Extras, unknown: Unknown) -> Self {
        let (extent, counters) = (Extent::All, counters.collect());
        Self { extent, counters, extras, unknown, ..Self::default() }
    }

    /// What a slot holds under some keys.
    pub(super) fn some(cells: impl Iterator<Item = (Key, Option<Cell>)>, extras: Extras) -> Self {
        let mut contents = Self { extras, ..Self::default() };
        for (key, cell) in cells {
            match cell {
                Some(cell) => drop(contents.counters.insert(key, cell)),
                None => drop(contents.gone.insert(key)),
            }
        }
        contents
    }

    pub(super) fn into_parts(self) -> (Table, Extras, Unknown) {
        (Table::of(self.counters.into_iter()), self.extras, self.unknown)
    }

    /// What `counter` has counted of `limit`, to be absorbed by the counter of `key`.
    pub fn used(key: Key, limit: &Limit, mut counter: Counter, now: Timestamp) -> Self {
        let look = limit.decide(&mut counter, now, Ask::Look);
        let mut contents = Self::default();
        contents.extras.push(key, Extra { cell: Cell::new(limit, counter, &look), base: None });
        contents
    }

    /// How many counters there are, those included that this version does not know.
    pub fn len(&self) -> usize {
        self.counters.len() + self.unknown.len()
    }

    /// How much consumption of elsewhere its counters have still to absorb.
    pub fn waiting(&self) -> usize {
        self.extras.len()
    }

    /// Whether there is nothing in it at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.extras.is_empty() && self.gone.is_empty()
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
                let taken = std::mem::take(&mut self.taken);
                *self = Self { taken, ..changes };
                return self.account();
            }
        }
        for key in changes.counters.keys().chain(changes.extras.by_key.keys()).chain(&changes.gone) {
            self.extras.by_key.remove(key);
            self.gone.remove(key);
        }
        for key in &changes.gone {
            self.counters.remove(key);
        }
        self.counters.extend(changes.counters);
        self.extras.by_key.extend(changes.extras.by_key);
        self.unknown.extend(changes.unknown);
        self.lead = match (self.lead, changes.lead) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        if self.extent == Extent::Some {
            self.gone.extend(changes.gone);
        }
        self.account();
    }

    /// What was consumed here since `ancestor`, an earlier state of the same slot.
    pub fn difference(&self, ancestor: &Self) -> Extras {
        let mut extras = self.extras.clone();
        for (key, each) in &mut extras.by_key {
            if let Some(known) = ancestor.extras.by_key.get(key) {
                each.retain(|extra| !known.contains(extra));
            }
        }
        for (key, cell) in &self.counters {
            let base = ancestor.counters.get(key);
            if base != Some(cell) {
                extras.push(*key, Extra { cell: cell.clone(), base: base.cloned() });
            }
        }
        extras.by_key.retain(|_, each| !each.is_empty());
        extras
    }

    /// The same without what is idle, which is as good as not there. (Of a part, what is idle is told to be gone.)
    pub fn without_idle(mut self, now: Timestamp) -> Self {
        self.counters.retain(|key, cell| {
            let stays = now < cell.idle_at();
            if !stays && self.extent == Extent::Some {
                self.gone.insert(*key);
            }
            stays
        });
        self.extras.forget_idle(now);
        self.account();
        self
    }

    /// The same, with all instants of its counters `back` nanoseconds earlier.
    pub(super) fn earlier(mut self, back: u64) -> Self {
        let earlier = |cell: Cell| cell.earlier(back);
        self.counters = self.counters.into_iter().map(|(key, cell)| (key, earlier(cell))).collect();
        for extra in self.extras.by_key.values_mut().flatten() {
            extra.cell = earlier(extra.cell.clone());
            extra.base = extra.base.take().map(earlier);
        }
        self.lead = self.lead.map(|lead| lead.earlier(back));
        self
    }

    /// Its counters by their keys.
    pub(super) fn into_counters(self) -> impl Iterator<Item = (Key, Cell)> {
        self.counters.into_iter()
    }

    /// Counts in `budget` from now on.
    pub(super) fn counted_in(mut self, budget: &Arc<Budget>) -> Self {
        self.taken = Taken::of(budget);
        self.account();
        self
    }

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        bytes_of_map(self.counters.capacity())
            + self.heap_bytes()
            + self.gone.capacity() * size_of::<Key>()
            + self.extras.bytes()
            + bytes_of_unknown(&self.unknown)
    }

    /// The bytes that its counters take outside of their table.
    pub(super) fn heap_bytes(&self) -> usize {
        self.counters.values().map(Cell::heap_bytes).sum()
    }

    fn account(&mut self) {
        self.taken.set(self.bytes());
    }
}

/// Whether they hold the same, wherever that is counted.
impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        (&self.counters, &self.extras, &self.unknown) == (&other.counters, &other.extras, &other.unknown)
    }
}

impl Extras {
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

    pub(super) fn of(&self, key: Key) -> &[Extra] {
        self.by_key.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Copies of those of some keys.
    pub(super) fn only<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let some = keys.into_iter().filter_map(|key| Some((*key, self.by_key.get(key)?.clone())));
        Self { by_key: some.collect() }
    }

    pub(super) fn take(&mut self, key: Key) -> Vec<Extra> {
        self.by_key.remove(&key).unwrap_or_default()
    }

    pub(super) fn push(&mut self, key: Key, extra: Extra) {
        self.by_key.entry(key).or_default().push(extra);
    }

    pub(super) fn append(&mut self, others: Self) {
        for (key, each) in others.by_key {
            self.by_key.entry(key).or_default().extend(each);
        }
    }

    /// Drops what weighs nothing any more.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        self.by_key.retain(|_, each| {
            each.retain(|extra| now < extra.cell.idle_at());
            !each.is_empty()
        });
    }

    /// The bytes that they take, as nearly as is worth it.
    pub(super) fn bytes(&self) -> usize {
        let heap = |cell: &Cell| cell.heap_bytes();
        let of = |extra: &Extra| size_of::<Extra>() + heap(&extra.cell) + extra.base.as_ref().map_or(0, heap);
        let each: usize = self.by_key.values().flatten().map(of).sum();
        bytes_of_map(self.by_key.capacity()) * 5 / 4 + each
    }
}

/// The bytes of a map of the standard library that holds up to so many counters: of eight places it leaves one free,
/// and each has a byte more that tells about it.
pub(super) fn bytes_of_map(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 8 / 7 + 1) * (size_of::<(Key, Cell)>() + 1) + 16 }
}

/// The bytes that they take, as nearly as is worth it.
pub(super) fn bytes_of_unknown(unknown: &Unknown) -> usize {
    let of = |bytes: &[u8]| size_of::<Box<[u8]>>() + bytes.len();
    unknown.values().map(|each| 64 + each.iter().map(|bytes| of(bytes)).sum::<usize>()).sum()
}
