//! Tests of the table of a slot.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::{Counter, DebtCounter, Excess, Limit, Operation, Rate, SlidingLog, Span, TokenBucket},
    time::SECOND,
};

use crate::{budget::Budget, table::eviction::EVICT_DIVISOR};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

/// A key with `index` as its upper half.
pub(crate) fn key(index: u64) -> Key {
    // A step of SplitMix64 spreads the lower halves like a hash.
    let mut low = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    low = (low ^ low >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    low = (low ^ low >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    Key::from_halves(index, low ^ low >> 31)
}

/// A bucket that is full at `idle_at`, in nanoseconds.
pub(super) fn packed(idle_at: u64) -> PackedCounter {
    let hour = NonZeroU64::new(3_600 * SECOND).unwrap();
    let rate = Rate::new(NonZeroU64::MIN, hour);
    let counter = DebtCounter { paid_at: Timestamp::from_nanos(idle_at), rest: 0 };
    let limit = Limit::TokenBucket(TokenBucket { rate, burst: 11, excess: Excess::Refuse });
    packed_after_peek(&limit, Counter::Debt(counter))
}

/// A counter with bytes on the heap.
fn log(now: Timestamp) -> PackedCounter {
    let (span, sub_window) = (Span::from_nanos(3_600 * SECOND).unwrap(), NonZeroU64::MIN);
    let limit = Limit::SlidingLog(SlidingLog { limit: 100, span, sub_window, excess: Excess::Refuse });
    let mut counter = limit.fresh();
    limit.decide(&mut counter, now, Operation::Charge(7));
    packed_after_peek(&limit, counter)
}

fn packed_after_peek(limit: &Limit, mut counter: Counter) -> PackedCounter {
    let peek = limit.decide(&mut counter, NOW, Operation::Peek);
    PackedCounter::new(limit, counter, &peek)
}

fn resources(bytes_max: usize) -> TableResources {
    TableResources::new(Budget::new(bytes_max as u64, 1, BYTES_FIRST), 1)
}

/// A bucket that is full in this many hours. It refuses with more than ten to go.
fn bucket(hours: u64) -> PackedCounter {
    packed(NOW.plus(hours * 3_600 * SECOND).as_nanos())
}

fn hours(packed: &PackedCounter) -> u64 {
    packed.idle_at().nanos_since(NOW) / (3_600 * SECOND)
}

proptest! {
    #[test]
    fn budget_equals_bytes_of_table_and_heap(
        bytes_max in 200..6_000_usize,
        steps in prop::collection::vec((0..4_u8, 0..200_u64, 0..13_u64), 1..200),
    ) {
        let (mut table, resources) = (SlotTable::default(), resources(bytes_max));
        for (action, index, hour) in steps {
            let now = NOW.plus(hour * 3_600 * SECOND);
            match action {
                0 => table.remove(key(index), &resources),
                1 => {
                    table.forget_idle(now, &resources);
                    table.shrink(&resources);
                }
                _ if table.get(key(index)).is_some() => {}
                2 => {
                    table.insert(key(index), log(now), NOW, &resources);
                }
                _ => {
                    table.insert(key(index), bucket(hour), NOW, &resources);
                }
            }
            let heap: usize = table.buckets.iter().map(|(_, packed)| packed.heap_bytes()).sum();
            prop_assert_eq!(resources.budget.used(), table.bytes() + heap);
            prop_assert!(resources.budget.used() <= bytes_max);
        }
    }

    #[test]
    fn eviction_frees_the_eighth_with_the_lowest_cost(
        all in prop::collection::vec(0..13_u64, 1..400),
    ) {
        let (mut table, resources) = (SlotTable::default(), resources(1 << 20));
        for (index, hours) in all.iter().enumerate() {
            table.buckets.resize(buckets_for(index + 1));
            table.buckets.put(key(index as u64).low(), bucket(*hours));
        }
        table.evict(NOW, &resources);
        let mut stay: Vec<u64> = table.copies().iter().map(|(_, packed)| hours(packed)).collect();
        let mut expected = all.clone();
        expected.sort_unstable();
        stay.sort_unstable();
        let (idle, may_go) =
            (all.iter().filter(|hours| **hours == 0).count(), all.iter().filter(|hours| bucket(**hours).eviction_cost(NOW).is_some()).count());
        let gone = idle.max((all.len() / EVICT_DIVISOR).max(1)).min(may_go);
        prop_assert_eq!(stay, &expected[gone..]);
        prop_assert_eq!(resources.evicted_idle.get() + resources.evicted_unexpired.get(), gone as u64);
    }
}

#[test]
fn table_after_many_evictions_keeps_short_probes() {
    let (mut table, resources) = (SlotTable::default(), resources(bytes_of(2_000)));
    for index in 0..20_000 {
        assert!(table.insert(key(index), bucket(5), NOW, &resources));
    }
    assert!(resources.evicted_unexpired.get() > 10_000);
    let (all, longest) = table.buckets.probe_lengths();
    assert!(
        all <= 3 * table.len() && longest <= 100,
        "{all} buckets probed for {}, {longest} for one",
        table.len()
    );
}
