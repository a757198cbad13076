//! Tests of slot data and of arriving counters within the memory limit.

use super::*;
use crate::slot_copy::{Epoch, StoredSlot};

#[test]
fn released_slot_data_counts_in_budget_until_dropped() {
    let (memory, limit) = (sharing(0..1), window(10));
    let keys: Vec<_> = (0..).map(number).filter(|key| memory.slot(*key) == Slot(0)).take(1_000).collect();
    keys.iter().for_each(|key| assert!(charge(&memory, *key, &limit, NOW)));
    let held = memory.stats().bytes;
    let copy = memory.whole(Slot(0)).data;
    assert_eq!(memory.stats().bytes, held, "a copy for a backup has a bound of its own");
    let (whole, kept) = (memory.accounted(copy.clone()), memory.accounted(copy));
    let stats = memory.stats();
    assert!(1_000 * 2 * 32 <= stats.backup_bytes && stats.bytes == held + stats.backup_bytes);
    drop(whole);
    assert_eq!(memory.stats().backup_bytes, stats.backup_bytes / 2);
    drop(kept);
    assert_eq!(memory.stats().bytes, held);

    let (given, _) = memory.release(Slot(0)).unwrap();
    assert_eq!(memory.stats().bytes, memory.stats().backup_bytes);
    memory.acquire(Slot(0), given, NOW);
    assert_eq!((memory.stats().live, memory.stats().backup_bytes), (1_000, 0));
    drop(memory.release(Slot(0)));
    assert_eq!(memory.stats().bytes, 0);
}

#[test]
fn slot_data_beyond_the_budget_is_rejected() {
    let (rich, poor) = (sharing(0..1), Memory::new(20_000, OnFull::Deny).with_slots(2).shared());
    let keys: Vec<_> = (0..).map(number).filter(|key| rich.slot(*key) == Slot(0)).take(1_000).collect();
    keys.iter().for_each(|key| assert!(charge(&rich, *key, &window(10), NOW)));
    let data = sent(&rich.whole(Slot(0)).data, NOW, NOW);
    assert!(poor.within_limit(data.clone()).is_none());
    let counted = rich.within_limit(data).unwrap();
    assert_eq!(counted.len(), 1_000);
    assert!(rich.stats().backup_bytes > 0);
}

/// Slot 0 of a store: this many counters with one hit of ten, and one that refuses.
fn crowded_slot(counters: usize) -> (Memory, Key) {
    let memory = sharing(0..1);
    let mut keys = (0..).map(number).filter(|key| memory.slot(*key) == Slot(0));
    let exhausted = keys.next().unwrap();
    (0..10).for_each(|_| assert!(charge(&memory, exhausted, &window(10), NOW)));
    keys.take(counters).for_each(|key| assert!(charge(&memory, key, &window(10), NOW)));
    (memory, exhausted)
}

/// A store of this many bytes that owns no slot yet.
fn small(bytes_max: u64) -> Memory {
    let memory = Memory::new(bytes_max, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    memory
}

#[test]
fn arriving_counters_that_do_not_fit_are_evicted() {
    let ((rich, exhausted), poor) = (crowded_slot(1_000), small(20_000));
    poor.acquire(Slot(0), sent(&rich.whole(Slot(0)).data, NOW, NOW), NOW);
    assert!(poor.is_overfull());
    poor.shed(Slot(0), NOW);
    // A counter takes 32 bytes at least, so of 1,001 no more than 625 have room in 20,000 bytes.
    assert!(!poor.is_overfull() && poor.stats().evicted_unexpired >= 376);
    assert!(!charge(&poor, exhausted, &window(10), NOW));
}

#[test]
fn arriving_counters_that_refuse_are_cut_and_counted() {
    let (rich, poor) = (sharing(0..1), small(20_000));
    let keys: Vec<_> = (0..).map(number).filter(|key| rich.slot(*key) == Slot(0)).take(1_000).collect();
    keys.iter().for_each(|key| assert!(charge(&rich, *key, &window(1), NOW)));
    poor.acquire(Slot(0), sent(&rich.whole(Slot(0)).data, NOW, NOW), NOW);
    poor.shed(Slot(0), NOW);
    assert!(poor.is_overfull(), "no counter may be evicted");
    poor.cut(Slot(0), NOW);
    let stats = poor.stats();
    assert!(!poor.is_overfull() && stats.bytes <= 20_000 && stats.live > 100, "{stats:?}");
    assert_eq!(stats.refused_full, 1_000 - stats.live as u64);
}

#[test]
fn changes_beyond_the_budget_cannot_be_merged() {
    let ((rich, exhausted), poor) = (crowded_slot(200), small(20_000));
    let copy = poor.within_limit(sent(&rich.whole(Slot(0)).data, NOW, NOW)).unwrap();
    assert!(charge(&rich, exhausted, &window(11), NOW));
    let same_keys = rich.changes(Slot(0)).data;
    let keys = (1_000_000..).map(number).filter(|key| rich.slot(*key) == Slot(0));
    keys.take(1_000).for_each(|key| assert!(charge(&rich, key, &window(10), NOW)));
    let new_keys = rich.changes(Slot(0)).data;
    assert!(poor.can_merge(&copy, &same_keys));
    assert!(!poor.can_merge(&copy, &new_keys));
}

#[test]
fn snapshot_that_does_not_fit_loses_least_used_counters() {
    let ((rich, exhausted), poor) = (crowded_slot(1_000), small(20_000));
    let stored = StoredSlot { slot: Slot(0), epoch: Epoch(1), seq: 1, data: rich.whole(Slot(0)).data };
    let fitting = poor.fit(vec![stored], NOW);
    assert!(100 < fitting[0].data.len() && fitting[0].data.len() < 600);
    assert!(poor.stats().bytes <= 20_000);
    poor.acquire(Slot(0), fitting[0].data.clone(), NOW);
    assert!(!charge(&poor, exhausted, &window(10), NOW));
}

#[test]
fn consumption_that_does_not_fit_loses_least_used_counters() {
    let ((rich, exhausted), poor) = (crowded_slot(1_000), small(20_000));
    poor.acquire(Slot(0), SlotData::default(), NOW);
    assert!(poor.add(Slot(0), rich.whole(Slot(0)).data.difference(&SlotData::default()), NOW));
    let stats = poor.stats();
    assert!(stats.bytes <= 20_000 && stats.refused_full > 500, "{stats:?}");
    assert!(!charge(&poor, exhausted, &window(10), NOW));
}

#[test]
fn slot_with_few_counters_gets_memory_of_other_slots() {
    let memory = small(1 << 20);
    (0..SLOTS).for_each(|slot| memory.acquire(Slot(slot), SlotData::default(), NOW));
    let (small, others): (Vec<Key>, Vec<Key>) =
        (0..60_000).map(number).partition(|key| memory.slot(*key) == Slot(0));
    others.iter().for_each(|key| assert!(charge(&memory, *key, &window(10), NOW)));
    assert!(memory.stats().evicted_unexpired > 0);
    // Each of them refuses from now on, so none of them may be evicted.
    assert!(small.iter().take(300).all(|key| charge(&memory, *key, &window(1), NOW)));
}

#[test]
fn arriving_usage_that_does_not_fit_is_cut() {
    let ((rich, exhausted), middle, poor) = (crowded_slot(1_000), sharing(0..1), small(20_000));
    assert!(middle.add(Slot(0), rich.whole(Slot(0)).data.difference(&SlotData::default()), NOW));
    assert_eq!(middle.whole(Slot(0)).data.pending_len(), 1_001);
    poor.acquire(Slot(0), sent(&middle.whole(Slot(0)).data, NOW, NOW), NOW);
    poor.shed(Slot(0), NOW);
    assert!(poor.is_overfull(), "usage that waits is not evicted");
    poor.cut(Slot(0), NOW);
    let stats = poor.stats();
    assert!(!poor.is_overfull() && stats.bytes <= 20_000 && stats.refused_full > 500, "{stats:?}");
    assert!(!charge(&poor, exhausted, &window(10), NOW));
}

#[test]
fn copies_in_most_of_the_memory_leave_some_to_counters() {
    let ((rich, _), poor) = (crowded_slot(100), small(1 << 20));
    poor.acquire(Slot(1), SlotData::default(), NOW);
    let copy = sent(&rich.whole(Slot(0)).data, NOW, NOW);
    let copies: Vec<SlotData> = (0..).map_while(|_| poor.within_limit(copy.clone())).collect();
    assert!(copies.len() > 50 && poor.stats().backup_bytes > 1 << 19, "{:?}", poor.stats());
    let mut keys = (0..).map(number).filter(|key| poor.slot(*key) == Slot(1));
    // Each of them refuses from now on, so none of them may be evicted.
    assert!((0..1_000).all(|_| charge(&poor, keys.next().unwrap(), &window(1), NOW)), "{:?}", poor.stats());
}
