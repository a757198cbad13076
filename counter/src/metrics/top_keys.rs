//! The most frequent keys in bounded memory: the Space-Saving algorithm of Metwally, Agrawal and El Abbadi. A key
//! that is not in a full list takes the place and the count of the least frequent one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError, TryLockError},
};

use crate::metrics::{self, MetricCounter};

/// The maximum length of a text, in bytes; longer ones are truncated.
const TEXT_MAX: usize = 256;
/// The maximum number of lists, which threads share.
const LISTS_MAX: usize = 8;
/// The default length of a list.
const CAPACITY: usize = 1_000;

/// The most frequent keys over all threads. Counting never blocks: keys that arrive while a list is being read are
/// left out.
#[derive(Debug)]
pub struct TopKeys {
    lists: Box<[Mutex<SpaceSaving>]>,
    missed: MetricCounter,
}

/// The most frequent keys of one list.
#[derive(Clone, Debug)]
pub struct SpaceSaving {
    capacity: usize,
    // Invariant: at most `capacity` slots, each of which is in both indexes.
    slots: Vec<SketchEntry>,
    by_key: HashMap<u128, usize>,
    by_count: BTreeSet<(u64, usize)>,
}

#[derive(Clone, Debug)]
struct SketchEntry {
    key: u128,
    text: Box<str>,
    count: u64,
    error: u64,
}

/// One of the most frequent keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The text of the key, truncated to 256 bytes.
    pub text: String,
    /// The upper bound of its frequency.
    pub count: u64,
    /// The maximum overestimation: the true frequency is at least `count - error`.
    pub error: u64,
}

impl SpaceSaving {
    /// A list of at most `capacity` keys.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, slots: Vec::new(), by_key: HashMap::new(), by_count: BTreeSet::new() }
    }

    /// Counts a key so many times. `text` is called only if the key enters the list.
    pub fn add(&mut self, key: u128, times: u64, text: impl FnOnce() -> String) {
        if self.capacity == 0 || times == 0 {
            return;
        }
        if let Some(index) = self.by_key.get(&key).copied() {
            self.count(index, times);
            return;
        }
        let full = self.slots.len() == self.capacity;
        let rarest = self.by_count.first().filter(|_| full).copied();
        let index = match rarest {
            None => {
                self.slots.push(SketchEntry { key, text: cut(text()), count: 0, error: 0 });
                self.by_count.insert((0, self.slots.len() - 1));
                self.slots.len() - 1
            }
            Some((count, index)) => {
                self.by_key.remove(&self.slots[index].key);
                self.slots[index] = SketchEntry { key, text: cut(text()), count, error: count };
                index
            }
        };
        self.by_key.insert(key, index);
        self.count(index, times);
    }

    fn count(&mut self, index: usize, times: u64) {
        let slot = &mut self.slots[index];
        self.by_count.remove(&(slot.count, index));
        slot.count = slot.count.saturating_add(times);
        self.by_count.insert((slot.count, index));
    }

    /// The maximum frequency of a key that is not in the list.
    fn unseen_max(&self) -> u64 {
        let full = self.slots.len() == self.capacity;
        self.by_count.first().filter(|_| full).map_or(0, |(count, _)| *count)
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl TopKeys {
    /// Lists of at most `capacity` keys each.
    pub fn new(capacity: usize) -> Self {
        let lists = metrics::POOL.shards.min(LISTS_MAX);
        Self {
            lists: (0..lists).map(|_| Mutex::new(SpaceSaving::new(capacity))).collect(),
            missed: MetricCounter::default(),
        }
    }

    /// Counts a key so many times. `text` is called only if the key enters the list.
    pub fn add(&self, key: u128, times: u64, text: impl FnOnce() -> String) {
        match self.lists[metrics::shard_index() % self.lists.len()].try_lock() {
            Ok(mut list) => list.add(key, times, text),
            Err(TryLockError::Poisoned(list)) => list.into_inner().add(key, times, text),
            Err(TryLockError::WouldBlock) => self.missed.add(times),
        }
    }

    /// The number of keys left out.
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }

    /// The most frequent keys of all lists together, at most `max`, in descending order.
    pub fn entries(&self, max: usize) -> Vec<TopKey> {
        let lists = self.lists.iter().map(|list| list.lock().unwrap_or_else(PoisonError::into_inner).clone());
        merged(&lists.collect::<Vec<_>>(), max)
    }
}

fn merged(lists: &[SpaceSaving], max: usize) -> Vec<TopKey> {
    let unseen_max = lists.iter().map(SpaceSaving::unseen_max).fold(0_u64, u64::saturating_add);
    let mut all: HashMap<u128, TopKey> = HashMap::new();
    for list in lists {
        for slot in &list.slots {
            // A list without the key may have missed it as often as its least frequent key occurs.
            let entry = all.entry(slot.key).or_insert_with(|| TopKey {
                text: slot.text.to_string(),
                count: unseen_max,
                error: unseen_max,
            });
            entry.count = entry.count.saturating_add(slot.count - list.unseen_max());
            // No underflow: the error of a slot is at most the smallest count.
            entry.error = entry.error.saturating_add(slot.error) - list.unseen_max();
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_unstable_by(|one, other| other.count.cmp(&one.count).then_with(|| one.text.cmp(&other.text)));
    all.truncate(max);
    all
}

fn cut(text: String) -> Box<str> {
    if text.len() <= TEXT_MAX {
        return text.into();
    }
    let end = text.floor_char_boundary(TEXT_MAX);
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys of which the `n`th occurs about `1/n` times as often as the first.
    fn zipf(keys: u64, draws: usize, seed: u64) -> Vec<u128> {
        let weights: Vec<f64> = (1..=keys).map(|rank| 1.0 / rank as f64).collect();
        let all: f64 = weights.iter().sum();
        let mut state = seed;
        let draw = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut rest = (state >> 11) as f64 / (1_u64 << 53) as f64 * all;
            let rank = weights.iter().position(|weight| {
                rest -= weight;
                rest < 0.0
            });
            rank.unwrap_or(0) as u128
        };
        (0..draws).map(draw).collect()
    }

    fn exact(stream: &[u128]) -> HashMap<String, u64> {
        let mut counts = HashMap::new();
        stream.iter().for_each(|key| *counts.entry(key.to_string()).or_default() += 1);
        counts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn true_count_lies_within_the_reported_bounds(
            seed: u64,
            lists in 1_usize..4,
            capacity in 20_usize..60,
        ) {
            let stream = zipf(500, 10_000, seed);
            let mut sketches = vec![SpaceSaving::new(capacity); lists];
            for (index, key) in stream.iter().enumerate() {
                sketches[index % lists].add(*key, 1, || key.to_string());
            }
            let (truth, entries) = (exact(&stream), merged(&sketches, usize::MAX));
            for TopKey { text, count, error } in &entries {
                let came = truth[text];
                prop_assert!(count - error <= came && came <= *count, "{text}: {came} in {count}-{error}");
                prop_assert!(*error <= (stream.len() / capacity) as u64, "the bound of the algorithm");
            }
            // Every key more frequent than the bound is in the list.
            for (text, came) in &truth {
                let listed = entries.iter().any(|entry| entry.text == *text);
                prop_assert!(listed || *came <= (stream.len() / capacity) as u64, "{text} came {came} times");
            }
            prop_assert_eq!(&entries[0].text, "0");
        }
    }

    #[test]
    fn list_keeps_at_most_its_capacity() {
        let mut sketch = SpaceSaving::new(10);
        (0..100_000).for_each(|key| sketch.add(key, 1, || key.to_string()));
        assert_eq!((sketch.slots.len(), sketch.by_key.len(), sketch.by_count.len()), (10, 10, 10));
        let entries = merged(&[sketch], 3);
        assert!(entries.len() == 3 && entries.iter().all(|entry| entry.count - entry.error <= 1));
    }

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        let retained = cut("é".repeat(1_000));
        assert_eq!(*retained, *format!("{}…", "é".repeat(TEXT_MAX / 2)));
    }

    #[test]
    fn key_counted_during_a_read_is_missed_and_reported() {
        let top_keys = TopKeys::new(10);
        let held: Vec<_> = top_keys.lists.iter().map(|list| list.lock().unwrap()).collect();
        top_keys.add(1, 1, || "one".to_owned());
        drop(held);
        top_keys.add(1, 1, || "one".to_owned());
        assert_eq!(top_keys.missed(), 1);
        assert_eq!(top_keys.entries(9), [TopKey { text: "one".to_owned(), count: 1, error: 0 }]);
    }
}
