//! Tests of slot transfer and copies.

use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Operation, laws::every_limit},
    packed_counter::DecodeError,
    time::SECOND,
};

use crate::{
    check::{Check, Checks, LimitOrigin, OnFull, OnRefusal},
    memory::{
        NotLocal,
        tests::{BYTES, NOW, bucket, charge, key, left, second_of, stored, window},
    },
    operation::CounterOperation,
};

mod backup_laws;
mod clocks;
mod memory_limit;

const SLOTS: u16 = 4;

/// A store that owns these slots.
fn sharing(held: impl IntoIterator<Item = u16>) -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    held.into_iter().for_each(|slot| memory.acquire(Slot(slot), SlotData::default(), NOW));
    memory
}

fn number(number: u64) -> Key {
    key(&number.to_string())
}

fn operation(
    memory: &Memory,
    key: Key,
    limit: &Limit,
    operation: Operation,
    now: Timestamp,
) -> Result<Decision<Infallible>, NotLocal> {
    let check = Check { key, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule };
    memory.apply_single(&check, now).map(|decided| decided.decision)
}

/// Slot data after a transfer to a replica whose clock shows `there`.
fn sent(data: &SlotData, here: Timestamp, there: Timestamp) -> SlotData {
    SlotData::decode(&data.encode(here), there).unwrap()
}

#[test]
fn call_that_needs_unowned_slot_charges_nothing() {
    let (memory, limit) = (sharing(1..SLOTS), window(10));
    let missing = (0..).map(number).find(|key| memory.slot(*key) == Slot(0)).unwrap();
    let here = (0..).map(number).find(|key| memory.slot(*key) == Slot(1)).unwrap();
    let (operation, on_refusal) = (Operation::Charge(1), OnRefusal::TakeBack);
    let checks = Checks::from([here, missing].map(|key| Check {
        key,
        limit: &limit,
        operation,
        on_refusal,
        origin: LimitOrigin::Rule,
    }));
    assert_eq!(memory.apply(&checks, NOW, |_| false).unwrap_err(), NotLocal::Slot(Slot(0)));
    assert_eq!(left(&memory, here, &limit), 10);
    memory.acquire(Slot(0), SlotData::default(), NOW);
    assert!(memory.apply(&checks, NOW, |_| false).is_ok());
    assert_eq!(left(&memory, here, &limit), 9);
}

#[test]
fn released_slot_is_no_longer_owned() {
    let memory = sharing(0..SLOTS);
    let slot = memory.slot(key("one"));
    assert!(charge(&memory, key("one"), &window(10), NOW));
    let (data, seq) = memory.release(slot).unwrap();
    assert_eq!((data.len(), seq), (1, 1));
    assert!(!memory.owns(slot) && memory.release(slot).is_none());
    assert_eq!(memory.stats().live, 0);
}

#[test]
fn store_without_cluster_owns_all_slots_and_releases_none() {
    let memory = Memory::new(BYTES, OnFull::Deny);
    assert!(memory.owns(Slot(17)) && memory.release(Slot(17)).is_none());
    assert!(charge(&memory, key("one"), &window(1), NOW));
    assert_eq!(memory.changed_slots(), []);
}

#[test]
fn backup_of_a_long_log_gets_only_its_changes() {
    let (memory, name, hour) = (sharing(0..SLOTS), key("log"), 3_600 * SECOND);
    let limit =
        every_limit(9_000, hour).into_iter().find(|limit| matches!(limit, Limit::SlidingLog(_))).unwrap();
    let slot = memory.slot(name);
    for number in 0..9_000 {
        operation(&memory, name, &limit, Operation::Charge(1), NOW.plus(number * SECOND / 10)).unwrap();
    }
    let now = NOW.plus(hour + 600 * SECOND);
    let mut copy = sent(&memory.whole(slot).data, now, now);
    // The first 6,000 have left the window.
    operation(&memory, name, &limit, Operation::Charge(1), now).unwrap();
    let changes = memory.changes(slot).data.encode(now);
    assert!(changes.len() < 100, "{}", changes.len());
    copy.merge(SlotData::decode(&changes, now).unwrap());
    assert_eq!(copy, memory.whole(slot).data);
}

#[test]
fn changes_of_a_log_need_the_entries_that_they_leave_out() {
    let (memory, name) = (sharing(0..SLOTS), key("log"));
    let (limit, slot) = (&logs()[0], memory.slot(name));
    let empty = memory.whole(slot).data;
    for number in 0..5 {
        operation(&memory, name, limit, Operation::Charge(1), NOW.plus(number)).unwrap();
    }
    let copy = memory.whole(slot).data;
    operation(&memory, name, limit, Operation::Charge(1), NOW.plus(9)).unwrap();
    let changes = memory.changes(slot).data;
    assert!(memory.can_merge(&copy, &changes) && !memory.can_merge(&empty, &changes));
}

#[test]
fn slots_with_changes_are_listed_until_copied() {
    let (memory, limit) = (sharing(0..SLOTS), window(10));
    let all: Vec<_> = (0..SLOTS).map(Slot).collect();
    assert_eq!(memory.changed_slots(), all, "an acquired slot has changed as a whole");
    all.iter().for_each(|slot| drop(memory.changes(*slot)));
    assert_eq!(memory.changed_slots(), []);
    let one = number(1);
    assert_eq!(left(&memory, one, &limit), 10);
    assert_eq!(memory.changed_slots(), [], "a peek is not a change");
    charge(&memory, one, &limit, NOW);
    assert_eq!(memory.changed_slots(), [memory.slot(one)]);
    let changes = memory.changes(memory.slot(one));
    assert_eq!((changes.seq, changes.data.len()), (1, 1));
    assert!(memory.changes(memory.slot(one)).data.is_empty());
}

#[test]
fn counter_whose_window_is_far_ahead_is_clamped_to_next() {
    let hour = 3_600 * SECOND;
    for limit in [window(10), second_of(1), second_of(5), second_of(4)] {
        let (ahead, memory) = (sharing(0..SLOTS), sharing([]));
        let slot = ahead.slot(key("one"));
        let then = NOW.plus(200 * 24 * hour);
        operation(&ahead, key("one"), &limit, Operation::Charge(5), then).unwrap();
        let data = ahead.release(slot).unwrap().0;
        memory.acquire(slot, sent(&data, then, NOW), NOW);
        let now = operation(&memory, key("one"), &limit, Operation::Peek, NOW).unwrap();
        assert_eq!(now.remaining, limit.allowance() - 5);
        // The hits are in the next window and expire in the one after it.
        let period = limit.period().map_or(31 * 24 * hour, |period| period.as_nanos() as u64);
        let later = operation(&memory, key("one"), &limit, Operation::Peek, NOW.plus(3 * period)).unwrap();
        assert_eq!(later.remaining, limit.allowance());
    }
}

#[test]
fn owner_adds_usage_of_other_owner_since_they_parted() {
    for limit in [window(20), bucket(20), second_of(9)] {
        let (first, second, name) = (sharing(0..SLOTS), sharing([]), key("one"));
        let slot = first.slot(name);
        operation(&first, name, &limit, Operation::Charge(1), NOW).unwrap();
        let base = sent(&first.whole(slot).data, NOW, NOW);
        second.acquire(slot, base.clone(), NOW);
        operation(&first, name, &limit, Operation::Charge(2), NOW).unwrap();
        operation(&second, name, &limit, Operation::Charge(4), NOW).unwrap();

        let (lost, _) = second.release(slot).unwrap();
        let consumed = lost.difference(&base);
        assert_eq!(consumed.pending.len(), 1);
        assert!(first.add(slot, consumed, NOW));
        // Also without further checks, and over another hand-off.
        let (with_extras, seq) = first.release(slot).unwrap();
        assert_eq!(seq, 3);
        second.acquire(slot, sent(&with_extras, NOW, NOW), NOW);
        let peek = operation(&second, name, &limit, Operation::Peek, NOW).unwrap();
        assert_eq!(peek.remaining, limit.allowance() - 7);
        assert_eq!(second.version_seq(slot), 1, "merged usage is a change");
    }
}

#[test]
fn copy_drops_counters_that_were_reset_or_refunded() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    for reset in [true, false] {
        operation(&memory, name, &limit, Operation::Charge(3), NOW).unwrap();
        // A second counter, so that the change is a partial copy.
        (0..40).for_each(|other| assert!(charge(&memory, number(other), &limit, NOW)));
        let mut copy = memory.whole(slot).data;
        if reset {
            memory.operate(name, &limit, &CounterOperation::Set(0), NOW).unwrap();
        } else {
            operation(&memory, name, &limit, Operation::Refund(3), NOW).unwrap();
        }
        copy.merge(sent(&memory.changes(slot).data, NOW, NOW));
        assert_eq!(copy.without_idle(NOW), memory.whole(slot).data.without_idle(NOW));
    }
}

#[test]
fn copy_drops_usage_that_was_merged() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    operation(&memory, name, &limit, Operation::Charge(3), NOW).unwrap();
    let mut copy = memory.whole(slot).data;
    assert!(memory.add(slot, copy.difference(&SlotData::default()), NOW));
    copy.merge(memory.changes(slot).data);
    assert_eq!(copy.pending_len(), 1);
    operation(&memory, name, &limit, Operation::Charge(1), NOW).unwrap();
    copy.merge(memory.changes(slot).data);
    assert_eq!(copy, memory.whole(slot).data);
    assert_eq!(copy.pending_len(), 0);
}

#[test]
fn pending_usage_is_dropped_when_expired() {
    let (memory, limit, name) = (sharing(0..SLOTS), window(20), key("one"));
    let slot = memory.slot(name);
    operation(&memory, name, &limit, Operation::Charge(3), NOW).unwrap();
    let consumed = memory.whole(slot).data.difference(&SlotData::default());
    assert!(memory.add(slot, consumed, NOW));
    let sweep = |now: Timestamp| (0..4).for_each(|part| memory.sweep_part(part, now));
    sweep(NOW);
    assert_eq!(memory.whole(slot).data.pending_len(), 1);
    sweep(NOW.plus(3_600 * SECOND));
    assert_eq!((memory.stats().bytes, memory.whole(slot).data.pending_len()), (0, 0));
}

#[test]
fn pending_usage_is_added_only_to_owned_slots() {
    let (memory, limit) = (sharing([]), window(20));
    let mut consumed = limit.fresh();
    limit.decide(&mut consumed, NOW, Operation::Charge(5));
    let consumed = SlotData::from_usage(key("one"), &limit, consumed, NOW).difference(&SlotData::default());
    let slot = memory.slot(key("one"));
    assert!(!memory.add(slot, consumed.clone(), NOW));
    memory.acquire(slot, SlotData::default(), NOW);
    assert!(memory.add(slot, consumed, NOW));
    assert_eq!(left(&memory, key("one"), &limit), 15);
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1..9_u64).prop_map(Operation::Charge),
        1 => any::<u64>().prop_map(Operation::Charge),
        1 => (1..9_u64).prop_map(Operation::Refund),
    ]
}

/// Limits whose counters are logs.
fn logs() -> Vec<Limit> {
    let each = every_limit(20, SECOND);
    each.into_iter().filter(|limit| matches!(limit.fresh(), Counter::Log(_))).collect()
}

proptest! {
    #[test]
    fn transferred_counter_answers_like_one_that_stays(
        index in 0..30_u64,
        operations in prop::collection::vec((prop_oneof![Just(0), 0..SECOND, 0..4 * SECOND], any_operation()), 1..40),
    ) {
        let (limit, name, mut now) = (second_of(index), key("one"), NOW);
        let (mut here, mut there) = (sharing(0..SLOTS), sharing([]));
        let slot = here.slot(name);
        let mut counter = limit.fresh();
        for (pause, next) in operations {
            now = now.plus(pause);
            let (decision, expected) = (operation(&here, name, &limit, next, now).unwrap(), limit.decide(&mut counter, now, next));
            prop_assert_eq!((decision.verdict, decision.remaining), (expected.verdict, expected.remaining));
            let (data, _) = here.release(slot).unwrap();
            let arrived = sent(&data, now, now);
            prop_assert_eq!(&arrived, &data.without_idle(now));
            there.acquire(slot, arrived, now);
            std::mem::swap(&mut here, &mut there);
        }
    }

    #[test]
    fn ages_are_independent_of_the_clock(
        index in prop_oneof![8..15_u64, 23..30_u64], hits in 1..5_u64, pause in 0..2 * SECOND, behind: bool, offset in 0..1_000 * SECOND,
    ) {
        let (limit, here, there) = (second_of(index), sharing(0..SLOTS), sharing([]));
        let slot = here.slot(key("one"));
        operation(&here, key("one"), &limit, Operation::Charge(hits), NOW).unwrap();
        let then = NOW.plus(pause);
        let by_the_other = if behind { then.minus(offset) } else { then.plus(offset) };
        there.acquire(slot, sent(&here.whole(slot).data, then, by_the_other), by_the_other);
        let expected = operation(&here, key("one"), &limit, Operation::Peek, then).unwrap();
        let decision = operation(&there, key("one"), &limit, Operation::Peek, by_the_other).unwrap();
        prop_assert_eq!((decision.verdict, decision.remaining), (expected.verdict, expected.remaining));
    }

    #[test]
    fn copy_with_all_changes_merged_equals_whole_slot(
        steps in prop::collection::vec((0..30_u64, any_operation(), 0..SECOND / 2, prop::bool::weighted(0.3)), 1..80),
    ) {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2).shared();
        memory.acquire(Slot(0), SlotData::default(), NOW);
        memory.acquire(Slot(1), SlotData::default(), NOW);
        memory.track_changes();
        let (mut copy, mut now) = (SlotData::default(), NOW);
        for (index, next, pause, copy_now) in steps {
            now = now.plus(pause);
            operation(&memory, number(index), &second_of(index), next, now).unwrap();
            if copy_now {
                let changes = memory.changes(Slot(0));
                prop_assert_eq!(changes.seq, memory.version_seq(Slot(0)));
                copy.merge(sent(&changes.data, now, now));
            }
        }
        copy.merge(memory.changes(Slot(0)).data);
        prop_assert_eq!(copy.without_idle(now), memory.whole(Slot(0)).data.without_idle(now));
    }

    #[test]
    fn copy_with_all_changes_merged_has_the_whole_log(
        limit in prop::sample::select(logs()),
        steps in prop::collection::vec((any_operation(), prop_oneof![Just(0), 0..SECOND / 4], 0..6_u8), 1..80),
    ) {
        let (memory, name) = (sharing(0..SLOTS), key("log"));
        let (slot, mut now) = (memory.slot(name), NOW);
        let (mut copy, mut receipts) = (memory.whole(slot).data, Vec::new());
        for (operation, pause, then) in steps {
            now = now.plus(pause);
            let check = Check { key: name, limit: &limit, operation, on_refusal: OnRefusal::Keep, origin: LimitOrigin::Rule };
            receipts.extend(memory.apply(&[check], now, |_| false).unwrap()[0].receipt);
            match (then, receipts.pop()) {
                (0, Some(receipt)) => {
                    memory.operate(name, &limit, &CounterOperation::Undo(receipt), now).unwrap();
                }
                (1, _) => {
                    memory.add(slot, copy.difference(&SlotData::default()), now);
                }
                (2, _) => copy = memory.whole(slot).data,
                (3, _) => {
                    let changes = memory.changes(slot).data;
                    let encoded = changes.encode(now);
                    prop_assert!(encoded.len() <= changes.encoded_bytes_max());
                    let changes = SlotData::decode(&encoded, now).unwrap();
                    prop_assert!(memory.can_merge(&copy, &changes));
                    copy.merge(changes);
                    let owned = stored(&memory, slot, now);
                    prop_assert_eq!(copy.clone().without_idle(now), owned);
                }
                (_, _) => {}
            }
        }
    }

    #[test]
    fn damaged_slot_data_never_panics(
        operations in prop::collection::vec((0..30_u64, 1..9_u64), 1..30),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        later in prop_oneof![0..SECOND, any::<u64>()],
    ) {
        let memory = sharing(0..SLOTS);
        for (index, hits) in &operations {
            operation(&memory, number(*index), &second_of(*index), Operation::Charge(*hits), NOW).unwrap();
        }
        let slot = memory.slot(number(operations[0].0));
        let (data, _) = memory.release(slot).unwrap();
        let mut bytes = data.encode(NOW);
        for (place, flip) in flips {
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
        }
        match SlotData::decode(&bytes, NOW) {
            Ok(damaged) => {
                let now = Timestamp::from_nanos(later);
                drop(damaged.encode(now));
                memory.acquire(slot, damaged, now);
                for (index, limit) in (0..30).map(|index| (index, second_of(index))) {
                    for next in [Operation::Charge(3), Operation::Peek, Operation::Refund(1)] {
                        prop_assert!(operation(&memory, number(index), &limit, next, now).is_ok());
                    }
                }
            }
            Err(DecodeError::Unknown | DecodeError::Malformed) => {}
        }
    }
}
