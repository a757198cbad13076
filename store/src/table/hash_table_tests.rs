//! Tests of the hash table, apart from its source, which a benchmark compiles too.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate_counter::packed_counter::PackedCounter;

use crate::table::{
    hash_table::{HashTable, buckets_for, bytes_of, capacity_of, next_after},
    tests::{key, packed},
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(usize),
    Remove(usize),
    Evict { every: u64, from: u64 },
    Resize(usize),
}

fn any_step(resizes: bool) -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..48_usize).prop_map(Step::Put),
        4 => (0..48_usize).prop_map(Step::Remove),
        1 => (1..5_u64, 0..5_u64).prop_map(|(every, from)| Step::Evict { every, from }),
        u32::from(resizes) => (0..40_usize).prop_map(Step::Resize),
    ]
}

fn low(index: u64) -> u64 {
    key(index).low()
}

/// Keys whose home buckets are among the last three.
fn keys_with_last_homes(buckets: usize) -> Vec<u64> {
    let empty = HashTable::new(buckets);
    (0..).map(low).filter(|key| buckets - 3 <= empty.home(*key)).take(48).collect()
}

/// Applies the steps to the table and a map, and compares them after each.
fn assert_equals_map(mut buckets: HashTable, keys: &[u64], steps: &[Step]) {
    let mut map = HashMap::new();
    for (step, action) in steps.iter().enumerate() {
        let value = step as u64;
        match *action {
            Step::Put(index) => {
                if let Some(kept) = buckets.get_mut(keys[index]) {
                    *kept = packed(value);
                } else if buckets.is_full() {
                    continue;
                } else {
                    buckets.put(keys[index], packed(value));
                }
                map.insert(keys[index], packed(value));
            }
            Step::Remove(index) => assert_eq!(buckets.remove(keys[index]), map.remove(&keys[index])),
            Step::Evict { every, from } => {
                let stays = |packed: &PackedCounter| packed.idle_at().as_nanos() % every != from;
                let (all, mut asked) = (buckets.len(), 0);
                buckets.retain(|packed| {
                    asked += 1;
                    stays(packed)
                });
                map.retain(|_, packed| stays(packed));
                assert_eq!(asked, all, "`stays` is called once for each counter");
            }
            Step::Resize(more) => buckets.resize(buckets_for(buckets.len() + more)),
        }
        assert!(buckets.len() == map.len() && buckets.len() <= capacity_of(buckets.bucket_count()));
        assert_eq!(buckets.iter().cloned().collect::<HashMap<_, _>>(), map);
        assert_eq!(buckets.iter().count(), map.len(), "no counter is duplicated");
        keys.iter().for_each(|key| assert_eq!(buckets.get(*key), map.get(key)));
    }
}

proptest! {
    #[test]
    fn hash_table_equals_std_map(steps in prop::collection::vec(any_step(true), 1..120)) {
        let keys: Vec<u64> = (0..48).map(low).collect();
        assert_equals_map(HashTable::default(), &keys, &steps);
    }

    #[test]
    fn run_across_the_end_loses_and_duplicates_nothing(
        buckets in 4..64_usize,
        steps in prop::collection::vec(any_step(false), 1..120),
    ) {
        assert_equals_map(HashTable::new(buckets), &keys_with_last_homes(buckets), &steps);
    }

    #[test]
    fn bucket_count_for_counters_is_minimal(counters in 4..1_000_000_usize) {
        let buckets = buckets_for(counters);
        prop_assert!(capacity_of(buckets - 1) < counters && counters <= capacity_of(buckets));
    }
}

#[test]
fn counter_takes_32_to_40_bytes() {
    let mut buckets = next_after(0);
    while buckets < 1 << 40 {
        let (full, larger) = (capacity_of(buckets), next_after(buckets));
        assert!(bytes_of(buckets) >= 32 * full && full < capacity_of(larger));
        assert!(bytes_of(larger) <= 40 * (full + 1), "{buckets} buckets become {larger}");
        buckets = larger;
    }
}

#[test]
fn counters_in_order_of_another_table_keep_short_probes() {
    for bucket_count in [300, 5_000, 6_667, 20_000] {
        let mut from = HashTable::new(buckets_for(bucket_count));
        (0..bucket_count as u64).for_each(|index| from.put(low(index), packed(index)));
        let mut into = HashTable::default();
        for (key, packed) in from.into_counters() {
            if into.is_full() {
                let (all, longest) = into.probe_lengths();
                // Random keys have a mean of 1.4 too, and rarely more than 4.
                assert!(all <= 5 * into.len(), "{all} buckets probed for {} counters", into.len());
                assert!(longest <= 200, "{longest} buckets probed for one of {} counters", into.len());
                into.resize(next_after(into.bucket_count()));
            }
            into.put(key, packed);
        }
    }
}
