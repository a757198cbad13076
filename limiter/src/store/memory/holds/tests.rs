//! Tests of reservations in memory.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{Limit, Operation, laws::every_limit},
    store::{
        BYTES_MIN, CounterOperation, HOLD_TTL_DEFAULT, HOLD_TTL_MAX, HOLDS_MAX, OnExpiry, OnFull, OnRefusal,
        SettleOutcome, SlotData,
        holds::IDS_MAX,
        memory::{
            tables::SHARE_DIVISOR,
            tests::{BYTES, NOW, key, left, stored, window},
        },
    },
    time::SECOND,
};

const DAY: u64 = 86_400 * SECOND;
const SLOTS: u16 = 4;

fn check(key: Key, limit: &Limit, hits: u64) -> Check<'_> {
    Check { key, limit, operation: Operation::Charge(hits), on_refusal: OnRefusal::TakeBack }
}

fn id(name: &str) -> HoldId {
    HoldId::new(name.as_bytes()).unwrap()
}

fn terms(name: &str, ttl: Duration, on_expiry: OnExpiry) -> HoldTerms {
    HoldTerms::new(id(name), ttl, on_expiry).unwrap()
}

fn any_refused(decisions: &[Decision]) -> bool {
    decisions.iter().any(|decision| !decision.verdict.passes())
}

fn reserve(memory: &Memory, checks: &[Check<'_>], name: &str, now: Timestamp) -> bool {
    let terms = terms(name, HOLD_TTL_DEFAULT, OnExpiry::Release);
    memory.reserve(&Checks::from_slice(checks), &terms, now, any_refused).unwrap().is_held
}

fn settle(memory: &Memory, check: Check<'_>, name: &str, now: Timestamp) -> Settled {
    memory.settle(&Checks::from_slice(&[check]), &id(name), UnknownId::Remember, now).unwrap()[0]
}

fn left_at(memory: &Memory, key: Key, limit: &Limit, now: Timestamp) -> u64 {
    let peek = Check { operation: Operation::Peek, ..check(key, limit, 0) };
    memory.apply_single(&peek, now).unwrap().decision.remaining
}

fn sharing() -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared();
    memory.track_changes();
    memory.each_slot().for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
    memory
}

#[test]
fn refused_reservation_holds_nothing_for_every_algorithm() {
    for limit in every_limit(10, DAY) {
        let (memory, wide) = (Memory::new(BYTES, OnFull::Deny), window(100));
        let checks = [check(key("wide"), &wide, 7), check(key("tight"), &limit, 11)];
        assert!(!reserve(&memory, &checks, "a", NOW), "{limit:?}");
        assert_eq!(left(&memory, key("wide"), &wide), 100);
        assert_eq!(left(&memory, key("tight"), &limit), 10, "{limit:?}");
        assert_eq!(memory.stats().holds_open, 0);
    }
}

#[test]
fn two_reservations_of_one_counter_in_a_call_are_settled_apart() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4), check(key("k"), &limit, 5)], "a", NOW));
    assert_eq!(left(&memory, key("k"), &limit), 1);
    let checks = Checks::from_slice(&[check(key("k"), &limit, 1), check(key("k"), &limit, 2)]);
    let settled = memory.settle(&checks, &id("a"), UnknownId::Remember, NOW).unwrap();
    assert_eq!([settled[0].reserved, settled[1].reserved], [4, 5]);
    assert_eq!(left(&memory, key("k"), &limit), 7);
}

#[test]
fn racing_reservations_and_charges_admit_exactly_the_limit() {
    for limit in every_limit(100, DAY) {
        let (memory, passed) = (Memory::new(BYTES, OnFull::Deny), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (memory, passed, limit) = (&memory, &passed, &limit);
                scope.spawn(move || {
                    for call in 0..100 {
                        let check = check(key("k"), limit, 1);
                        let admitted = match call % 2 {
                            0 => reserve(memory, &[check], &format!("{thread} {call}"), NOW),
                            _ => memory.apply_single(&check, NOW).unwrap().decision.verdict.passes(),
                        };
                        passed.fetch_add(admitted.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100, "{limit:?}");
    }
}

#[test]
fn expiry_releases_or_charges_before_the_next_decision() {
    for (on_expiry, expected) in [(OnExpiry::Release, 10), (OnExpiry::Charge, 6)] {
        let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
        let terms = terms("a", Duration::from_secs(1), on_expiry);
        let checks = Checks::from_slice(&[check(key("k"), &limit, 4)]);
        assert!(memory.reserve(&checks, &terms, NOW, any_refused).unwrap().is_held);
        assert_eq!(left_at(&memory, key("k"), &limit, NOW.plus(SECOND - 1)), 6);
        assert_eq!(left_at(&memory, key("k"), &limit, NOW.plus(SECOND)), expected);
        let stats = memory.stats();
        assert_eq!((stats.holds_open, stats.holds_released + stats.holds_charged), (0, 1));
    }
}

#[test]
fn sweep_expires_holds_and_forgets_them_a_minute_later() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    memory.sweep(NOW.plus(60 * SECOND));
    assert_eq!((memory.stats().holds_open, memory.stats().holds_released), (0, 1));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW.plus(119 * SECOND)), "a repeated call");
    assert_eq!(left(&memory, key("k"), &limit), 10);
    memory.sweep(NOW.plus(120 * SECOND));
    assert!(!memory.tables.lock(memory.slot(key("k"))).has_holds());
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW.plus(120 * SECOND)));
    assert_eq!(left_at(&memory, key("k"), &limit, NOW.plus(120 * SECOND)), 6);
}

#[test]
fn late_settlement_adjusts_what_expiry_did() {
    for (on_expiry, outcome) in
        [(OnExpiry::Release, SettleOutcome::Released), (OnExpiry::Charge, SettleOutcome::Charged)]
    {
        let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
        let checks = Checks::from_slice(&[check(key("k"), &limit, 4)]);
        let terms = terms("a", Duration::from_secs(1), on_expiry);
        memory.reserve(&checks, &terms, NOW, any_refused).unwrap();
        let settled = settle(&memory, check(key("k"), &limit, 3), "a", NOW.plus(30 * SECOND));
        assert_eq!((settled.outcome, settled.remaining), (outcome, 7));
        assert_eq!(settle(&memory, check(key("k"), &limit, 9), "a", NOW.plus(31 * SECOND)), settled);
    }
}

#[test]
fn counter_with_too_many_holds_refuses_more_and_holds_nothing() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(u64::MAX));
    for number in 0..HOLDS_MAX {
        assert!(reserve(&memory, &[check(key("k"), &limit, 1)], &number.to_string(), NOW));
    }
    let checks = Checks::from_slice(&[check(key("other"), &limit, 1), check(key("k"), &limit, 1)]);
    let terms = terms("more", HOLD_TTL_DEFAULT, OnExpiry::Release);
    let error = memory.reserve(&checks, &terms, NOW, any_refused).unwrap_err();
    assert_eq!((error, memory.stats().holds_exhausted), (ReserveError::Exhausted, 1));
    assert_eq!(memory.stats().holds_open, HOLDS_MAX);
    settle(&memory, check(key("k"), &limit, 0), "0", NOW);
    assert!(memory.reserve(&checks, &terms, NOW, any_refused).unwrap().is_held);
}

#[test]
fn holds_take_at_most_their_share_of_memory() {
    let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny).with_slots(4), window(10));
    let held = (0..10_000).take_while(|number| {
        let checks = Checks::from_slice(&[check(key(&number.to_string()), &limit, 1)]);
        let terms = terms("a", HOLD_TTL_DEFAULT, OnExpiry::Release);
        memory.reserve(&checks, &terms, NOW, any_refused).is_ok()
    });
    assert!((100..10_000).contains(&held.count()));
    assert!(
        memory.tables.resources.holds.bytes.load(Ordering::Relaxed) <= BYTES_MIN as usize / SHARE_DIVISOR
    );
    memory.sweep(NOW.plus(DAY));
    assert_eq!(memory.tables.resources.holds.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn unknown_ids_beyond_memory_share_are_not_remembered() {
    let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny).with_slots(4), window(100_000));
    for number in 0..10_000 {
        let settled = settle(&memory, check(key("k"), &limit, 1), &number.to_string(), NOW);
        assert_eq!((settled.outcome, settled.uncharged), (SettleOutcome::Unknown, 0));
    }
    assert_eq!(left(&memory, key("k"), &limit), 90_000);
    assert!(
        memory.tables.resources.holds.bytes.load(Ordering::Relaxed) <= BYTES_MIN as usize / SHARE_DIVISOR
    );
}

#[test]
fn counter_forgets_the_oldest_settled_ids_beyond_its_bound() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1_000_000));
    let at = |number: u64| NOW.plus(number * SECOND / 1_000);
    let settle = |number: u64, at| settle(&memory, check(key("k"), &limit, 1), &number.to_string(), at);
    let ids = 10_000;
    for number in 0..ids {
        settle(number, at(number));
    }
    let used = limit.allowance() - left(&memory, key("k"), &limit);
    assert_eq!(used, ids);
    let forgotten = memory.stats().ids_forgotten;
    let kept = ids - forgotten;
    assert!((IDS_MAX as u64..IDS_MAX as u64 + 256).contains(&kept), "{kept}");
    let bytes = memory.tables.resources.holds.bytes.load(Ordering::Relaxed);
    assert!(bytes < 1 << 20, "{bytes}");
    // The newest are answered as the first time, and the oldest are unknown.
    for number in forgotten..ids {
        settle(number, at(ids));
    }
    assert_eq!(left(&memory, key("k"), &limit), limit.allowance() - ids);
    settle(0, at(ids));
    assert_eq!(left(&memory, key("k"), &limit), limit.allowance() - ids - 1);
}

#[test]
fn expired_holds_stay_known_while_settled_ones_are_forgotten() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1_000_000));
    let short = terms("expired", Duration::from_millis(1), OnExpiry::Release);
    memory.reserve(&Checks::from_slice(&[check(key("k"), &limit, 5)]), &short, NOW, any_refused).unwrap();
    let later = NOW.plus(SECOND);
    for number in 0..10_000 {
        settle(&memory, check(key("k"), &limit, 1), &number.to_string(), later);
    }
    assert!(memory.stats().ids_forgotten > 0);
    let settled = settle(&memory, check(key("k"), &limit, 5), "expired", later);
    assert_eq!(settled.outcome, SettleOutcome::Released);
}

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
fn backup_that_missed_nothing_forgets_the_ids_that_its_owner_forgets() {
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
fn replaced_counter_drops_its_holds() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    let left_after = |after: Decision| (memory.stats().holds_open, after.remaining);
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    assert_eq!(left_after(memory.admin().replace(key("k"), &limit, NOW, 0).after.peek), (0, 10));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    assert_eq!(
        left_after(memory.operate(key("k"), &limit, &CounterOperation::Set(0), NOW).unwrap().decision),
        (0, 10)
    );
}

#[test]
fn withdrawn_attempt_is_forgotten_and_others_stay() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    let checks = Checks::from_slice(&[check(key("k"), &limit, 4)]);
    let terms = HoldTerms { attempt: 7, ..terms("a", HOLD_TTL_DEFAULT, OnExpiry::Release) };
    memory.reserve(&checks, &terms, NOW, any_refused).unwrap();
    memory.withdraw(&checks, &id("a"), 8, NOW).unwrap();
    assert_eq!(left(&memory, key("k"), &limit), 6);
    memory.withdraw(&checks, &id("a"), 7, NOW).unwrap();
    assert_eq!(left(&memory, key("k"), &limit), 10);
    assert_eq!(settle(&memory, check(key("k"), &limit, 1), "a", NOW).outcome, SettleOutcome::Unknown);
}

#[test]
fn reservation_that_needs_leased_hits_changes_nothing() {
    let (memory, limit) = (sharing(), window(10));
    assert!(memory.leases().lease(key("k"), &limit, 5, NOW).is_some());
    let terms = terms("a", HOLD_TTL_DEFAULT, OnExpiry::Release);
    let checks = Checks::from_slice(&[check(key("k"), &limit, 6)]);
    let error = memory.reserve(&checks, &terms, NOW, any_refused).unwrap_err();
    assert_eq!(error, ReserveError::NotLocal(NotLocal::Leased(key("k"))));
    assert!(reserve(&memory, &[check(key("k"), &limit, 5)], "b", NOW));
    let more = Checks::from_slice(&[check(key("k"), &limit, 6)]);
    assert_eq!(memory.settle(&more, &id("b"), UnknownId::Remember, NOW), Err(NotLocal::Leased(key("k"))));
    assert!(memory.leases().lease(key("k"), &limit, 1, NOW).is_none(), "held hits are not lent");
    assert_eq!(settle(&memory, check(key("k"), &limit, 5), "b", NOW).outcome, SettleOutcome::Open);
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
                    memory.reserve(&checks, &terms, now, any_refused).unwrap();
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

#[test]
fn reservation_settled_long_ago_is_forgotten_first() {
    let (memory, limit) = (sharing(), window(1_000_000));
    let slot = memory.slot(key("k"));
    let day = terms("long", HOLD_TTL_MAX, OnExpiry::Release);
    memory.reserve(&Checks::from_slice(&[check(key("k"), &limit, 5)]), &day, NOW, any_refused).unwrap();
    settle(&memory, check(key("k"), &limit, 5), "long", NOW);
    for number in 0..4_000 {
        settle(&memory, check(key("k"), &limit, 1), &number.to_string(), NOW);
    }
    // The order of the settlements moves with the slot.
    let (data, _) = memory.release(slot).unwrap();
    memory.acquire(slot, SlotData::decode(&data.encode(NOW), NOW).unwrap(), NOW);
    for number in 4_000..4_400 {
        settle(&memory, check(key("k"), &limit, 1), &number.to_string(), NOW);
    }
    assert!(memory.stats().ids_forgotten > 0);
    let again = settle(&memory, check(key("k"), &limit, 5), "long", NOW);
    assert_eq!(again.outcome, SettleOutcome::Unknown);
    let youngest = settle(&memory, check(key("k"), &limit, 9), "4399", NOW);
    assert_eq!(youngest.remaining, limit.allowance() - 4_405);
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
fn hold_made_by_a_clock_that_was_ahead_expires_after_its_time() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    let shown = NOW.plus(30 * DAY);
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", shown));
    memory.give_up_lead(crate::store::Lead { at: NOW, until: shown });
    assert_eq!(memory.stats().holds_open, 1);
    left_at(&memory, key("k"), &limit, NOW.plus(59 * SECOND));
    assert_eq!(memory.stats().holds_open, 1);
    left_at(&memory, key("k"), &limit, NOW.plus(60 * SECOND));
    assert_eq!(memory.stats().holds_open, 0);
}

#[test]
fn charge_made_by_a_clock_that_was_ahead_is_given_back_by_its_hold() {
    let shown = NOW.plus(3_600 * SECOND);
    // A queue gives only its last place back.
    let is_queue = |limit: &Limit| matches!(limit, Limit::LeakyQueue(_));
    for limit in every_limit(10, DAY).into_iter().filter(|limit| !is_queue(limit)) {
        for settles in [false, true] {
            let memory = Memory::new(BYTES, OnFull::Deny);
            assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", shown));
            memory.give_up_lead(crate::store::Lead { at: NOW, until: shown });
            // Another charge of one hit is taken back before the next decision.
            let other = limit.decide(&mut limit.fresh(), NOW, Operation::Charge(1));
            let undo = CounterOperation::Undo(other.receipt.unwrap());
            memory.operate(key("k"), &limit, &undo, NOW).unwrap();
            if settles {
                settle(&memory, check(key("k"), &limit, 0), "a", NOW.plus(SECOND));
            }
            // A debt is still larger by the lead, which is worth less than one hit.
            let left = left_at(&memory, key("k"), &limit, NOW.plus(60 * SECOND));
            assert!(left >= 9, "{left} {limit:?}");
        }
    }
}

/// Two owners of the counter of `key("k")` that have continued from this copy, with the hold `a` of 4 hits.
fn parted(limit: &Limit) -> (Memory, Memory, SlotData) {
    parted_with(limit, OnExpiry::Release)
}

/// The same, with what the expiry of the hold does.
fn parted_with(limit: &Limit, on_expiry: OnExpiry) -> (Memory, Memory, SlotData) {
    let (one, other) = (sharing(), Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared());
    let terms = terms("a", HOLD_TTL_DEFAULT, on_expiry);
    let checks = Checks::from_slice(&[check(key("k"), limit, 4)]);
    assert!(one.reserve(&checks, &terms, NOW, any_refused).unwrap().is_held);
    let slot = one.slot(key("k"));
    let copy = one.whole(slot).data;
    other.acquire(slot, copy.clone(), NOW);
    (one, other, copy)
}

/// Adds to `keeper` what `giver` has made of the copy.
fn merge(giver: &Memory, keeper: &Memory, copy: &SlotData, now: Timestamp) {
    let slot = giver.slot(key("k"));
    let (data, _) = giver.release(slot).unwrap();
    assert!(keeper.add(slot, data.difference(copy), now));
}

/// Asserts what is left. A queue gives only its last place back.
fn assert_left(memory: &Memory, limit: &Limit, now: Timestamp, expected: u64) {
    let left = left_at(memory, key("k"), limit, now);
    let is_queue = matches!(limit, Limit::LeakyQueue(_));
    assert!(left == expected || is_queue && left < expected, "{left}, not {expected}: {limit:?}");
}

#[test]
fn hold_that_ended_at_another_owner_is_given_back_once() {
    type End = fn(&Memory, &Limit);
    let settles: End = |memory, limit| {
        settle(memory, check(key("k"), limit, 1), "a", NOW);
    };
    let settles_more: End = |memory, limit| {
        settle(memory, check(key("k"), limit, 6), "a", NOW);
    };
    let withdraws: End = |memory, limit| {
        memory.withdraw(&Checks::from_slice(&[check(key("k"), limit, 0)]), &id("a"), 0, NOW).unwrap();
    };
    let expires: End = |memory, _| memory.sweep(NOW.plus(60 * SECOND));
    let is_forgotten: End = |memory, _| {
        memory.sweep(NOW.plus(60 * SECOND));
        memory.sweep(NOW.plus(120 * SECOND));
    };
    let later = NOW.plus(120 * SECOND);
    for limit in every_limit(20, DAY) {
        for (end, used) in [(settles, 1), (settles_more, 6), (withdraws, 0), (expires, 0), (is_forgotten, 0)]
        {
            for ends_here_first in [false, true] {
                let (giver, keeper, copy) = parted(&limit);
                end(&giver, &limit);
                if ends_here_first {
                    keeper.sweep(NOW.plus(60 * SECOND));
                }
                assert!(reserve(&giver, &[check(key("k"), &limit, 2)], "b", later));
                settle(&giver, check(key("k"), &limit, 2), "b", later);
                merge(&giver, &keeper, &copy, later);
                assert_left(&keeper, &limit, later, 18 - used);
            }
        }
    }
}

#[test]
fn hold_that_was_charged_by_its_expiry_counts_once_after_merging() {
    // Both remember it, only one of them does, or none.
    for (giver_at, keeper_at) in [(60, 60), (120, 60), (60, 120), (120, 120)] {
        for limit in every_limit(20, DAY) {
            let (giver, keeper, copy) = parted_with(&limit, OnExpiry::Charge);
            for (memory, seconds) in [(&giver, giver_at), (&keeper, keeper_at)] {
                memory.sweep(NOW.plus(60 * SECOND));
                memory.sweep(NOW.plus(seconds * SECOND));
            }
            let later = NOW.plus(120 * SECOND);
            giver.apply(&[check(key("k"), &limit, 3)], later, |_| false).unwrap();
            merge(&giver, &keeper, &copy, later);
            assert_left(&keeper, &limit, later, 13);
        }
    }
}

#[test]
fn settlement_at_another_owner_is_repeated_after_merging() {
    for limit in every_limit(20, DAY) {
        let (giver, keeper, copy) = parted(&limit);
        let first = settle(&giver, check(key("k"), &limit, 1), "a", NOW);
        merge(&giver, &keeper, &copy, NOW);
        assert_eq!(settle(&keeper, check(key("k"), &limit, 3), "a", NOW), first);
        assert_left(&keeper, &limit, NOW, 19);
        assert_eq!(keeper.stats().holds_open, 0);
    }
}

#[test]
fn hold_made_at_another_owner_stays_open_after_merging() {
    for limit in every_limit(20, DAY) {
        let (giver, keeper, copy) = parted(&limit);
        assert!(reserve(&giver, &[check(key("k"), &limit, 5)], "b", NOW));
        assert!(reserve(&giver, &[check(key("k"), &limit, 1)], "c", NOW));
        assert!(reserve(&keeper, &[check(key("k"), &limit, 3)], "d", NOW));
        merge(&giver, &keeper, &copy, NOW);
        assert_eq!(keeper.stats().holds_open, 4);
        assert_left(&keeper, &limit, NOW, 7);
        let settled = settle(&keeper, check(key("k"), &limit, 2), "b", NOW);
        assert_eq!((settled.outcome, settled.reserved), (SettleOutcome::Open, 5));
        assert_left(&keeper, &limit, NOW, 10);
        settle(&keeper, check(key("k"), &limit, 0), "d", NOW);
        assert_left(&keeper, &limit, NOW, 13);
        assert_left(&keeper, &limit, NOW.plus(60 * SECOND), 18);
        assert_eq!(keeper.stats().holds_open, 0);
    }
}

#[test]
fn hold_made_at_two_owners_counts_once_after_merging() {
    for limit in every_limit(20, DAY) {
        for (settles_first, expected) in [(false, 11), (true, 14)] {
            let (giver, keeper, copy) = parted(&limit);
            assert!(reserve(&giver, &[check(key("k"), &limit, 5)], "b", NOW));
            if settles_first {
                settle(&keeper, check(key("k"), &limit, 2), "b", NOW);
            } else {
                assert!(reserve(&keeper, &[check(key("k"), &limit, 5)], "b", NOW));
            }
            merge(&giver, &keeper, &copy, NOW);
            assert_left(&keeper, &limit, NOW, expected);
        }
    }
}

#[test]
fn merged_holds_beyond_their_bounds_stay_charged() {
    let limit = window(10_000);
    let (giver, keeper, copy) = parted(&limit);
    for number in 0..HOLDS_MAX - 1 {
        assert!(reserve(&giver, &[check(key("k"), &limit, 1)], &format!("giver {number}"), NOW));
        assert!(reserve(&keeper, &[check(key("k"), &limit, 1)], &format!("keeper {number}"), NOW));
    }
    merge(&giver, &keeper, &copy, NOW);
    assert_eq!(keeper.stats().holds_open, HOLDS_MAX);
    assert_left(&keeper, &limit, NOW.plus(60 * SECOND), 10_000 - (HOLDS_MAX as u64 - 1));
}
