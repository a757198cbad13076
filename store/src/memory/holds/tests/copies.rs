//! Tests of holds that move with their slot, and of their copies.

use proptest::prelude::*;

use super::*;
use crate::memory::tests::stored;

#[test]
fn backup_of_counter_with_many_ids_gets_only_the_changed_ones() {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    let (limit, slot) = (window(1_000_000), memory.slot(key("k")));
    memory.acquire(slot, SlotData::default(), NOW);
    let settle = |number: u64| settle(&memory, check(key("k"), &limit, 1), &number.to_string(), NOW);
    let mut copy = memory.whole(slot).data;
    let sent = |copy: &mut SlotData| {
        let encoded = memory.changes(slot).data.encode(NOW);
        copy.merge(SlotData::decode(&encoded, NOW).unwrap());
        encoded.len()
    };
    for number in 0..4_000 {
        settle(number);
    }
    let all = sent(&mut copy);
    assert!(all > 100_000, "{all}");
    let mut more = 0;
    for number in 4_000..4_030 {
        memory.apply(&[check(key("k"), &limit, 1)], NOW, |_| false).unwrap();
        settle(number);
        more += sent(&mut copy);
    }
    assert!(more < 30 * 250, "{more}");
    assert_eq!(copy, memory.whole(slot).data);
}

#[test]
fn complete_backup_forgets_ids_with_its_owner() {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    let (limit, slot) = (window(1_000_000), memory.slot(key("k")));
    memory.acquire(slot, SlotData::default(), NOW);
    let mut copy = memory.whole(slot).data;
    for number in 0..10_000_u64 {
        let at = NOW.plus(number * SECOND / 1_000);
        settle(&memory, check(key("k"), &limit, 1), &number.to_string(), at);
        if number.is_multiple_of(100) {
            copy.merge(memory.changes(slot).data);
        }
    }
    copy.merge(memory.changes(slot).data);
    let [kept, owned] = [copy.bytes(), memory.whole(slot).data.bytes()];
    assert!(kept < owned * 11 / 10, "{kept} of {owned}");
}

#[test]
fn backup_gets_only_the_open_holds_that_changed() {
    let (memory, limit) = (sharing(), window(1_000_000));
    let slot = memory.slot(key("k"));
    for number in 0..HOLDS_MAX {
        assert!(reserve(&memory, &[check(key("k"), &limit, 1)], &number.to_string(), NOW));
    }
    let all = memory.whole(slot).data.encode(NOW).len();
    memory.apply(&[check(key("k"), &limit, 1)], NOW, |_| false).unwrap();
    settle(&memory, check(key("k"), &limit, 1), "7", NOW);
    let changes = memory.changes(slot).data.encode(NOW).len();
    assert!(all > 20_000 && changes < 300, "{changes} of {all}");
}

#[test]
fn holds_move_with_their_slot_and_expire_by_the_other_clock() {
    let there = NOW.plus(7 * DAY);
    for limit in every_limit(10, DAY) {
        let (memory, other) = (sharing(), Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared());
        assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
        assert!(reserve(&memory, &[check(key("k"), &limit, 3)], "b", NOW));
        let slot = memory.slot(key("k"));
        let (data, _) = memory.release(slot).unwrap();
        assert_eq!(memory.stats().holds_open, 0);
        // Windows are the same on all replicas, so they have ended there.
        let is_window = limit.window().is_some() || matches!(limit, Limit::SlidingWindow(_));
        let there = if is_window { NOW } else { there };
        other.acquire(slot, SlotData::decode(&data.encode(NOW), there).unwrap(), there);
        assert_eq!((other.stats().holds_open, left_at(&other, key("k"), &limit, there)), (2, 3), "{limit:?}");
        settle(&other, check(key("k"), &limit, 1), "b", there);
        assert_eq!(left_at(&other, key("k"), &limit, there), 5, "{limit:?}");
        let expired = there.plus(60 * SECOND);
        let queue = matches!(limit, Limit::LeakyQueue(_));
        assert!(left_at(&other, key("k"), &limit, expired) >= if queue { 5 } else { 9 }, "{limit:?}");
    }
}

#[test]
fn copy_with_all_changes_has_the_holds_of_the_slot() {
    let (memory, limit) = (sharing(), window(10));
    let slot = memory.slot(key("k"));
    let mut copy = memory.whole(slot).data;
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    copy.merge(memory.changes(slot).data);
    assert_eq!(copy, stored(&memory, slot, NOW));
    memory.withdraw(&Checks::from_slice(&[check(key("k"), &limit, 0)]), &id("a"), 0, NOW).unwrap();
    copy.merge(memory.changes(slot).data);
    assert_eq!(copy, stored(&memory, slot, NOW));
    assert!(copy.into_counters().1.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Reserve { name: u8, hits: u64, ttl: u64, on_expiry: OnExpiry },
    Settle { name: u8, hits: u64 },
    Withdraw(u8),
    Charge(u64),
    Refund(u64),
    Copy,
    // The receiver gets the whole slot.
    Whole,
}

fn any_step() -> impl Strategy<Value = Step> {
    let on_expiry = prop_oneof![Just(OnExpiry::Release), Just(OnExpiry::Charge)];
    prop_oneof![
        4 => (0..12_u8, 0..4_u64, prop_oneof![1..3_000_u64, Just(50_000)], on_expiry)
            .prop_map(|(name, hits, ttl, on_expiry)| Step::Reserve { name, hits, ttl, on_expiry }),
        3 => (0..12_u8, 0..6_u64).prop_map(|(name, hits)| Step::Settle { name, hits }),
        2 => (0..12_u8).prop_map(Step::Withdraw),
        2 => (0..4_u64).prop_map(Step::Charge),
        1 => (1..4_u64).prop_map(Step::Refund),
        3 => Just(Step::Copy),
        1 => Just(Step::Whole),
    ]
}

proptest! {
    #[test]
    fn copy_with_all_changes_merged_has_all_holds(
        index in 0..every_limit(10, DAY).len(),
        steps in prop::collection::vec((any_step(), 0..SECOND / 2), 1..60),
    ) {
        let (memory, limit) = (sharing(), &every_limit(40, DAY)[index]);
        let (slot, mut now) = (memory.slot(key("k")), NOW);
        let mut copy = memory.whole(slot).data;
        for (step, pause) in steps {
            now = now.plus(pause);
            match step {
                Step::Reserve { name, hits, ttl, on_expiry } => {
                    let terms = terms(&name.to_string(), Duration::from_millis(ttl), on_expiry);
                    let checks = Checks::from_slice(&[check(key("k"), limit, hits)]);
                    memory.reserve(&checks, &terms, now, any_refused).unwrap().unwrap();
                }
                Step::Settle { name, hits } => {
                    settle(&memory, check(key("k"), limit, hits), &name.to_string(), now);
                }
                Step::Withdraw(name) => {
                    let checks = Checks::from_slice(&[check(key("k"), limit, 0)]);
                    memory.withdraw(&checks, &id(&name.to_string()), 0, now).unwrap();
                }
                Step::Charge(hits) => {
                    memory.apply_single(&check(key("k"), limit, hits), now).unwrap();
                }
                Step::Refund(hits) => {
                    let refund = Check { operation: Operation::Refund(hits), ..check(key("k"), limit, 0) };
                    memory.apply_single(&refund, now).unwrap();
                }
                Step::Copy | Step::Whole => {
                    // What a refused call has observed is copied with the next change.
                    settle(&memory, check(key("k"), limit, 0), &format!("{now:?}"), now);
                    let changes = match step {
                        Step::Whole => memory.whole(slot).data,
                        _ => memory.changes(slot).data,
                    };
                    let encoded = changes.encode(now);
                    prop_assert!(encoded.len() <= changes.encoded_bytes_max());
                    copy.merge(SlotData::decode(&encoded, now).unwrap());
                    let owned = stored(&memory, slot, now);
                    prop_assert_eq!(copy.clone().without_idle(now), owned);
                }
            }
        }
    }
}
