//! Usage on other replicas that is still to be merged into counters.

use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter, time::Timestamp};

use crate::key_hasher::{ByKey, bytes_of_map};

/// Usage that is still to be merged into counters. Its weight depends on the limit, so it waits for the next check of
/// its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingUsage {
    pub(super) by_key: ByKey<Vec<CounterUsage>>,
}

/// Usage on another replica: a counter, less the counter that it started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterUsage {
    pub(crate) packed: PackedCounter,
    pub(crate) base: Option<PackedCounter>,
}

impl PendingUsage {
    /// The number of pending usages.
    pub fn len(&self) -> usize {
        self.by_key.values().map(Vec::len).sum()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.by_key.keys().copied()
    }

    pub(crate) fn get(&self, key: Key) -> &[CounterUsage] {
        self.by_key.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Copies for some keys.
    pub(crate) fn only<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let some = keys.into_iter().filter_map(|key| Some((*key, self.by_key.get(key)?.clone())));
        Self { by_key: some.collect() }
    }

    pub(crate) fn take(&mut self, key: Key) -> Vec<CounterUsage> {
        self.by_key.remove(&key).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, key: Key, usage: CounterUsage) {
        self.by_key.entry(key).or_default().push(usage);
    }

    pub(crate) fn append(&mut self, others: Self) {
        for (key, each) in others.by_key {
            self.by_key.entry(key).or_default().extend(each);
        }
    }

    /// Drops expired usage.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) {
        self.by_key.retain(|_, each| {
            each.retain(|usage| now < usage.packed.idle_at());
            !each.is_empty()
        });
    }

    /// The approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let heap = |packed: &PackedCounter| packed.heap_bytes();
        let of = |usage: &CounterUsage| {
            size_of::<CounterUsage>() + heap(&usage.packed) + usage.base.as_ref().map_or(0, heap)
        };
        let each: usize = self.by_key.values().flatten().map(of).sum();
        bytes_of_map(self.by_key.capacity()) * 5 / 4 + each
    }
}
