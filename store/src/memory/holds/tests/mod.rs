//! Tests of reservations in memory.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use super::*;
use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, laws::every_limit},
    time::SECOND,
};

use crate::{
    HOLD_RETENTION,
    budget::BYTES_MIN,
    check::{LimitOrigin, OnFull, OnRefusal},
    held_counter::Room,
    holds::IDS_MAX,
    memory::{
        tables::SHARE_DIVISOR,
        tests::{BYTES, NOW, key, left, window},
    },
    operation::{CounterOperation, UnknownId},
    reservation::{HOLD_TTL_DEFAULT, HOLD_TTL_MAX, HOLDS_MAX, OnExpiry, SettleOutcome, Settled},
    slot_data::SlotData,
};

mod copies;
mod merging;

const DAY: u64 = 86_400 * SECOND;
const SLOTS: u16 = 4;

fn check(key: Key, limit: &Limit, hits: u64) -> Check<'_> {
    Check {
        key,
        limit,
        operation: Operation::Charge(hits),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    }
}

fn id(name: &str) -> HoldId {
    HoldId::new(name.as_bytes()).unwrap()
}

fn terms(name: &str, ttl: Duration, on_expiry: OnExpiry) -> HoldTerms {
    HoldTerms::new(id(name), ttl, on_expiry).unwrap()
}

fn any_refused(decisions: &[CheckDecision]) -> bool {
    decisions.iter().any(|decision| !decision.verdict.passes())
}

fn reserve(memory: &Memory, checks: &[Check<'_>], name: &str, now: Timestamp) -> bool {
    let terms = terms(name, HOLD_TTL_DEFAULT, OnExpiry::Release);
    memory.reserve(&Checks::from_slice(checks), &terms, now, any_refused).unwrap().unwrap().is_held
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
        assert!(memory.reserve(&checks, &terms, NOW, any_refused).unwrap().unwrap().is_held);
        assert_eq!(left_at(&memory, key("k"), &limit, NOW.plus(SECOND - 1)), 6);
        assert_eq!(left_at(&memory, key("k"), &limit, NOW.plus(SECOND)), expected);
        let ended = memory.events().holds_released.get() + memory.events().holds_charged.get();
        assert_eq!((memory.stats().holds_open, ended), (0, 1));
    }
}

#[test]
fn sweep_expires_holds_and_forgets_them_a_minute_later() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    memory.sweep(NOW.plus(60 * SECOND));
    assert_eq!((memory.stats().holds_open, memory.events().holds_released.get()), (0, 1));
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW.plus(119 * SECOND)), "a repeated call");
    assert_eq!(left(&memory, key("k"), &limit), 10);
    memory.sweep(NOW.plus(120 * SECOND));
    assert!(!memory.tables.lock(memory.slot(key("k"))).has_side_data());
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
        memory.reserve(&checks, &terms, NOW, any_refused).unwrap().unwrap();
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
    assert!(memory.reserve(&checks, &terms, NOW, any_refused).unwrap().is_none());
    assert_eq!(memory.events().holds_exhausted.get(), 1);
    assert_eq!(memory.stats().holds_open, HOLDS_MAX);
    settle(&memory, check(key("k"), &limit, 0), "0", NOW);
    assert!(memory.reserve(&checks, &terms, NOW, any_refused).unwrap().unwrap().is_held);
}

#[test]
fn holds_take_at_most_their_share_of_memory() {
    let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny).with_slots(4), window(10));
    let held = (0..10_000).take_while(|number| {
        let checks = Checks::from_slice(&[check(key(&number.to_string()), &limit, 1)]);
        let terms = terms("a", HOLD_TTL_DEFAULT, OnExpiry::Release);
        memory.reserve(&checks, &terms, NOW, any_refused).unwrap().is_some()
    });
    assert!((100..10_000).contains(&held.count()));
    assert!(memory.tables.resources.hold_bytes.load(Ordering::Relaxed) <= BYTES_MIN as usize / SHARE_DIVISOR);
    memory.sweep(NOW.plus(DAY));
    assert_eq!(memory.tables.resources.hold_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn unknown_ids_beyond_memory_share_are_not_remembered() {
    let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny).with_slots(4), window(100_000));
    for number in 0..10_000 {
        let settled = settle(&memory, check(key("k"), &limit, 1), &number.to_string(), NOW);
        assert_eq!((settled.outcome, settled.uncharged), (SettleOutcome::Unknown, 0));
    }
    assert_eq!(left(&memory, key("k"), &limit), 90_000);
    assert!(memory.tables.resources.hold_bytes.load(Ordering::Relaxed) <= BYTES_MIN as usize / SHARE_DIVISOR);
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
    let forgotten = memory.events().ids_forgotten.get();
    let kept = ids - forgotten;
    assert!((IDS_MAX as u64..IDS_MAX as u64 + 256).contains(&kept), "{kept}");
    let bytes = memory.tables.resources.hold_bytes.load(Ordering::Relaxed);
    assert!(bytes < 1 << 20, "{bytes}");
    // The newest are answered as the first time, and the oldest are unknown.
    for number in forgotten..ids {
        settle(number, at(ids));
    }
    assert_eq!(left(&memory, key("k"), &limit), limit.allowance() - ids);
    settle(0, at(ids));
    assert_eq!(left(&memory, key("k"), &limit), limit.allowance() - ids - 1);
}

/// Charges once for a request, as the limiter does. Returns whether the charge passes; `None` without room for its id.
fn charge_once(memory: &Memory, limit: &Limit, request: u64, now: Timestamp) -> Option<bool> {
    let id = HoldId::for_request(&request.to_string()).unwrap();
    let terms = HoldTerms { id, ..terms("", HOLD_TTL_DEFAULT, OnExpiry::Charge) };
    let checks = Checks::from_slice(&[check(key("k"), limit, 1)]);
    let reserved = memory.reserve(&checks, &terms, now, any_refused).unwrap()?;
    memory.settle(&checks, &terms.id, UnknownId::Remember, now).unwrap();
    Some(reserved.is_held)
}

#[test]
fn repeated_request_is_not_charged_again_for_its_time() {
    const REQUESTS: u64 = Room::REQUEST_IDS_MAX as u64;
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1_000_000));
    let used = || limit.allowance() - left(&memory, key("k"), &limit);
    for request in 0..REQUESTS {
        assert_eq!(charge_once(&memory, &limit, request, NOW), Some(true));
    }
    assert_eq!(charge_once(&memory, &limit, REQUESTS, NOW), None);
    assert!(reserve(&memory, &[check(key("k"), &limit, 1)], "reservation", NOW));
    settle(&memory, check(key("k"), &limit, 0), "reservation", NOW);
    let repeated = NOW.after(HOLD_TTL_DEFAULT);
    for request in (0..REQUESTS).step_by(1_000) {
        assert_eq!(charge_once(&memory, &limit, request, repeated), Some(true));
    }
    assert_eq!((used(), memory.events().ids_forgotten.get()), (REQUESTS, 0));
    let forgotten = repeated.after(HOLD_RETENTION).plus(SECOND);
    assert_eq!(charge_once(&memory, &limit, REQUESTS, forgotten), Some(true));
    assert_eq!(used(), REQUESTS + 1);
}

#[test]
fn expired_holds_stay_known_while_settled_ones_are_forgotten() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1_000_000));
    let short = terms("expired", Duration::from_millis(1), OnExpiry::Release);
    memory
        .reserve(&Checks::from_slice(&[check(key("k"), &limit, 5)]), &short, NOW, any_refused)
        .unwrap()
        .unwrap();
    let later = NOW.plus(SECOND);
    for number in 0..10_000 {
        settle(&memory, check(key("k"), &limit, 1), &number.to_string(), later);
    }
    assert!(memory.events().ids_forgotten.get() > 0);
    let settled = settle(&memory, check(key("k"), &limit, 5), "expired", later);
    assert_eq!(settled.outcome, SettleOutcome::Released);
}

#[test]
fn replaced_counter_drops_its_holds() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    let left_after = |after: Decision| (memory.stats().holds_open, after.remaining);
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", NOW));
    assert_eq!(
        left_after(memory.operate(key("k"), &limit, &CounterOperation::Set(0), NOW).unwrap().decision),
        (0, 10)
    );
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
    memory.reserve(&checks, &terms, NOW, any_refused).unwrap().unwrap();
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
    assert_eq!(error, NotLocal::Leased(key("k")));
    assert!(reserve(&memory, &[check(key("k"), &limit, 5)], "b", NOW));
    let more = Checks::from_slice(&[check(key("k"), &limit, 6)]);
    assert_eq!(memory.settle(&more, &id("b"), UnknownId::Remember, NOW), Err(NotLocal::Leased(key("k"))));
    assert!(memory.leases().lease(key("k"), &limit, 1, NOW).is_none(), "held hits are not lent");
    assert_eq!(settle(&memory, check(key("k"), &limit, 5), "b", NOW).outcome, SettleOutcome::Open);
}

#[test]
fn reservation_settled_long_ago_is_forgotten_first() {
    let (memory, limit) = (sharing(), window(1_000_000));
    let slot = memory.slot(key("k"));
    let day = terms("long", HOLD_TTL_MAX, OnExpiry::Release);
    memory
        .reserve(&Checks::from_slice(&[check(key("k"), &limit, 5)]), &day, NOW, any_refused)
        .unwrap()
        .unwrap();
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
    assert!(memory.events().ids_forgotten.get() > 0);
    let again = settle(&memory, check(key("k"), &limit, 5), "long", NOW);
    assert_eq!(again.outcome, SettleOutcome::Unknown);
    let youngest = settle(&memory, check(key("k"), &limit, 9), "4399", NOW);
    assert_eq!(youngest.remaining, limit.allowance() - 4_405);
}

#[test]
fn hold_made_by_a_clock_that_was_ahead_expires_after_its_time() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(10));
    let shown = NOW.plus(30 * DAY);
    assert!(reserve(&memory, &[check(key("k"), &limit, 4)], "a", shown));
    memory.give_up_lead(crate::Lead { at: NOW, until: shown });
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
            memory.give_up_lead(crate::Lead { at: NOW, until: shown });
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
