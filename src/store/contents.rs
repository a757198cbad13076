//! What one slot holds, apart from any lock: on its way to another replica, or kept as a copy.

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasherDefault,
    sync::Arc,
};

use crate::{
    descriptor::Key,
    store::{
        budget::{Budget, Taken},
        cell::Cell,
        memory::KeyHasher,
        table::{self, Table},
    },
    time::Timestamp,
};

mod wire;

pub use wire::Unreadable;

type ByKey<T> = HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// What one slot holds. Copies that a memory makes or takes in count in its budget for as long as they live.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    counters: ByKey<Cell>,
    extras: Extras,
    unknown: Unknown,
    taken: Taken,
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
    pub(super) fn new(counters: impl Iterator<Item = (Key, Cell)>, extras: Extras, unknown: Unknown) -> Self {
        Self { counters: counters.collect(), extras, unknown, taken: Taken::default() }
    }

    pub(super) fn into_parts(self) -> (Table, Extras, Unknown) {
        (table::of(self.counters.into_iter()), self.extras, self.unknown)
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
        self.len() == 0 && self.extras.is_empty()
    }

    /// Takes in what has changed: a counter that is in `changes` replaces the one here, with all that it has still
    /// to absorb.
    pub fn merge(&mut self, changes: Self) {
        for key in changes.counters.keys().chain(changes.extras.by_key.keys()) {
            self.extras.by_key.remove(key);
        }
        self.counters.extend(changes.counters);
        self.extras.by_key.extend(changes.extras.by_key);
        self.unknown.extend(changes.unknown);
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

    /// The same without what is idle, which is as good as not there.
    pub fn without_idle(mut self, now: Timestamp) -> Self {
        self.counters.retain(|_, cell| now < cell.idle_at());
        self.extras.forget_idle(now);
        self.account();
        self
    }

    /// Counts in `budget` from now on.
    pub(super) fn counted_in(mut self, budget: &Arc<Budget>) -> Self {
        self.taken = Taken::of(budget);
        self.account();
        self
    }

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        table::bytes_for(self.counters.capacity())
            + self.heap_bytes()
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
        self.counters == other.counters && self.extras == other.extras && self.unknown == other.unknown
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
        table::bytes_for(self.by_key.capacity()) * 5 / 4 + each
    }
}

/// The bytes that they take, as nearly as is worth it.
pub(super) fn bytes_of_unknown(unknown: &Unknown) -> usize {
    let of = |bytes: &Box<[u8]>| size_of::<Box<[u8]>>() + bytes.len();
    unknown.values().map(|each| 64 + each.iter().map(of).sum::<usize>()).sum()
}
