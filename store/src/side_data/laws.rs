//! Laws of all side data: each kind takes every way that a counter takes.

use std::time::Duration;

use tollgate_counter::{
    algorithm::{Granted, HitRate, Limit, Operation, laws::every_limit},
    descriptor::Key,
    packed_counter::{DecodeClock, DecodeError},
    time::{SECOND, Timestamp},
};

use crate::{
    OwnTerms,
    check::{Check, Checks, LimitOrigin, OnFull, OnRefusal},
    held_counter::HeldCounter,
    memory::{
        Memory,
        tests::{BYTES, NOW},
    },
    operation::CounterOperation,
    reservation::{HoldId, HoldTerms, OnExpiry},
    side_data::{SideData, own::OwnLimitChange},
    slot_copy::StoredSlot,
    slot_data::{SlotData, consumption::Consumption},
};

/// A kind of side data, and how a counter gets it.
struct Kind {
    name: &'static str,
    /// Whether it goes to other replicas and to files.
    travels: bool,
    /// Whether it stays when an operator sets the counter.
    stays_on_set: bool,
    give: fn(&Memory, &Limit),
    has: fn(&SideData) -> bool,
}

/// All kinds. The pattern fails to compile if one is missing.
fn every_kind() -> Vec<Kind> {
    let SideData { holds: _, pending: _, leased: _, grant: _, own: _, unknown: _ } = SideData::default();
    vec![
        Kind {
            name: "holds",
            travels: true,
            stays_on_set: false,
            give: |memory, limit| {
                let terms = HoldTerms::new(HoldId::new(b"id").unwrap(), HOUR, OnExpiry::Charge).unwrap();
                let checks = Checks::from_slice(&[check(limit, Operation::Charge(2))]);
                assert!(memory.reserve(&checks, &terms, NOW, |_| false).unwrap().unwrap().is_held);
            },
            has: |side_data| side_data.holds.is_some(),
        },
        Kind {
            name: "pending usage",
            travels: true,
            stays_on_set: false,
            give: |memory, limit| {
                let mut used = limit.fresh();
                limit.decide(&mut used, NOW, Operation::Charge(1));
                let usage = SlotData::from_usage(KEY, limit, used, NOW);
                assert!(memory.add(memory.slot(KEY), usage.difference(&SlotData::default()), NOW));
            },
            has: |side_data| !side_data.pending.is_empty(),
        },
        Kind {
            name: "leased hits",
            travels: false,
            stays_on_set: true,
            give: |memory, _| assert!(memory.leases().set_leased(KEY, 3)),
            has: |side_data| side_data.leased == 3,
        },
        Kind {
            name: "a grant",
            travels: false,
            stays_on_set: true,
            give: |memory, limit| {
                memory.grants().adopt(KEY, limit, Granted { rate: HitRate::default(), hits: 1 }, NOW);
            },
            has: |side_data| side_data.granted().hits == 1,
        },
        Kind {
            name: "a limit of its own",
            travels: true,
            stays_on_set: true,
            give: |memory, limit| {
                let operation = CounterOperation::SetOwnLimit(Box::new(change(limit)));
                memory.operate(KEY, limit, &operation, NOW).unwrap();
            },
            has: |side_data| side_data.own_terms(NOW).is_some(),
        },
        Kind {
            name: "unknown records",
            travels: true,
            stays_on_set: true,
            give: |memory, _| {
                let (mut data, _) = memory.release(memory.slot(KEY)).unwrap();
                data.side_data.entry(KEY).or_default().add_unknown(250, b"later");
                memory.acquire(memory.slot(KEY), data, NOW);
            },
            has: |side_data| !side_data.unknown.is_empty(),
        },
    ]
}

const KEY: Key = Key::from_halves(1, 1);
const HOUR: Duration = Duration::from_secs(3_600);
/// A slot that is not owned yet takes data of the other replica.
const LATER: Timestamp = NOW.plus(SECOND);

fn check(limit: &Limit, operation: Operation) -> Check<'_> {
    Check { key: KEY, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule }
}

fn change(limit: &Limit) -> OwnLimitChange {
    let terms = Some(OwnTerms { limit: limit.clone(), requests_per_unit: 7 });
    OwnLimitChange { terms, expires_after: Some(HOUR), record: b"record".as_slice().into(), replaces: None }
}

fn replica() -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
    memory.track_changes();
    memory
}

fn owner() -> Memory {
    let memory = replica();
    memory.each_slot().for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
    memory
}

fn sent(data: &SlotData) -> SlotData {
    let bytes = data.encode(NOW);
    assert!(bytes.len() <= data.encoded_bytes_max());
    SlotData::decode(&bytes, NOW).unwrap()
}

/// Passes the name of each kind and a memory that has it to `test`, for a limit of each algorithm.
fn for_each_kind(mut test: impl FnMut(&Kind, &Memory, &Limit)) {
    for limit in every_limit(100, 3_600 * SECOND) {
        for kind in every_kind() {
            let memory = owner();
            memory.apply_single(&check(&limit, Operation::Charge(1)), NOW).unwrap();
            (kind.give)(&memory, &limit);
            assert!(has(&memory, &kind), "{}", kind.name);
            test(&kind, &memory, &limit);
        }
    }
}

fn has(memory: &Memory, kind: &Kind) -> bool {
    let slot = memory.slot(KEY);
    memory.with_side_data(slot, KEY, |side_data| side_data.is_some_and(kind.has))
}

fn data_has(data: &SlotData, kind: &Kind) -> bool {
    data.side_data.get(&KEY).is_some_and(|side_data| (kind.has)(side_data))
}

#[test]
fn side_data_moves_with_its_slot() {
    for_each_kind(|kind, memory, _| {
        let slot = memory.slot(KEY);
        let (data, _) = memory.release(slot).unwrap();
        let other = replica();
        other.acquire(slot, sent(&data), LATER);
        assert_eq!(has(&other, kind), kind.travels, "{}", kind.name);
        assert!(!has(memory, kind), "{}", kind.name);
    });
}

#[test]
fn backups_have_side_data_with_the_first_change_after_it() {
    for_each_kind(|kind, memory, limit| {
        let slot = memory.slot(KEY);
        let mut copy = sent(&memory.whole(slot).data);
        assert_eq!(data_has(&copy, kind), kind.travels, "{}", kind.name);
        // A change of the counter alone leaves it in the copy.
        memory.apply_single(&check(limit, Operation::Charge(1)), NOW).unwrap();
        let is_merged = kind.name == "pending usage";
        copy.merge(sent(&memory.changes(slot).data));
        assert_eq!(data_has(&copy, kind), kind.travels && !is_merged, "{}", kind.name);
        let other = owner();
        let mut copy = sent(&other.whole(slot).data);
        (kind.give)(&other, limit);
        copy.merge(sent(&other.changes(slot).data));
        assert_eq!(data_has(&copy, kind), kind.travels, "{}", kind.name);
    });
}

#[test]
fn snapshots_have_side_data_after_a_restart() {
    for_each_kind(|kind, memory, _| {
        let slot = memory.slot(KEY);
        let copied = memory.copy(slot, crate::Epoch(1))(NOW);
        let StoredSlot { data, .. } = copied.encode(NOW).unwrap().decode(NOW).unwrap();
        let other = Memory::new(BYTES, OnFull::Deny).with_slots(4);
        other.restore(data, NOW);
        assert_eq!(has(&other, kind), kind.travels, "{}", kind.name);
    });
}

#[test]
fn shared_store_reads_side_data_as_written() {
    for_each_kind(|kind, memory, _| {
        let slot = memory.slot(KEY);
        let side_data = memory.with_side_data(slot, KEY, |side_data| side_data.unwrap().copy());
        let counter = HeldCounter { packed: None, side_data: side_data.boxed() };
        match HeldCounter::read(&counter.write()) {
            Ok(read) => assert_eq!(read, counter, "{}", kind.name),
            Err(DecodeError::Unknown) => assert_eq!(kind.name, "unknown records"),
            Err(DecodeError::Malformed) => panic!("{}", kind.name),
        }
    });
}

#[test]
fn side_data_stays_when_clocks_differ_and_memory_is_short() {
    for_each_kind(|kind, memory, _| {
        let slot = memory.slot(KEY);
        let data = sent(&memory.whole(slot).data);
        let behind = DecodeClock { now: NOW.minus(SECOND), behind: SECOND };
        let read_behind = SlotData::decode(&data.encode(NOW), behind).unwrap();
        assert_eq!(data_has(&read_behind, kind), kind.travels, "{}", kind.name);
        let (cut, _) = data.cut_to(0, NOW);
        assert_eq!(data_has(&cut, kind), kind.travels, "{}", kind.name);
        assert_eq!(data_has(&cut.without_idle(NOW), kind), kind.travels, "{}", kind.name);
        // A sweep keeps what still changes an answer.
        memory.sweep(LATER);
        assert!(has(memory, kind), "{}", kind.name);
    });
}

#[test]
fn counter_that_is_set_keeps_what_is_not_counted() {
    for_each_kind(|kind, memory, limit| {
        memory.operate(KEY, limit, &CounterOperation::Set(0), NOW).unwrap();
        assert_eq!(has(memory, kind), kind.stays_on_set, "{}", kind.name);
    });
}

#[test]
fn memory_of_side_data_is_free_after_its_end() {
    for_each_kind(|kind, memory, limit| {
        let bytes = memory.bytes();
        assert!(bytes > 0);
        memory.leases().set_leased(KEY, 0);
        memory.grants().end(KEY, NOW);
        memory.operate(KEY, limit, &CounterOperation::Set(0), NOW).unwrap();
        memory.sweep(NOW.after(HOUR * 3));
        let is_left = kind.name == "unknown records";
        assert_eq!(has(memory, kind), is_left, "{}", kind.name);
        assert_eq!(memory.stats().bytes == 0, !is_left, "{} {:?}", kind.name, memory.stats());
    });
}

#[test]
fn later_one_of_two_own_limits_stays_when_owners_meet() {
    let limit = &every_limit(100, 3_600 * SECOND)[0];
    let [earlier, later] = [NOW, LATER].map(|now| {
        let memory = owner();
        let operation = CounterOperation::SetOwnLimit(Box::new(change(limit)));
        memory.operate(KEY, limit, &operation, now).unwrap();
        memory
    });
    let slot = earlier.slot(KEY);
    let version = |memory: &Memory| {
        memory.with_side_data(slot, KEY, |side_data| side_data.unwrap().own.as_ref().unwrap().version)
    };
    let newest = version(&later);
    for [here, there] in [[&earlier, &later], [&later, &earlier]] {
        let consumption: Consumption = there.whole(slot).data.difference(&SlotData::default());
        assert!(here.add(slot, consumption, LATER));
        assert_eq!(version(here), newest);
    }
}
