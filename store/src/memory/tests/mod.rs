//! Tests of the store: exactness under concurrency, atomicity of check sets, and the memory limit.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::{
        Calendar, CalendarUnit, Classic, Excess, FixedWindow, Granted, HitRate, LeakyQueue, Limit, Operation,
        Rate, SlidingLog, SlidingWindow, Span, SteppedBucket, TokenBucket, Verdict, Window,
        laws::{any_limit, with_penalty},
    },
    descriptor::{Entry, KeyText, Secret},
    time::SECOND,
};

use crate::{
    budget::BYTES_MIN,
    check::{Check, Checks, LimitOrigin, OnRefusal},
    memory::grants::Turn,
    slot_copy::Epoch,
};

pub(crate) const BYTES: u64 = 1 << 30;
pub(crate) const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

pub(super) fn key(name: &str) -> Key {
    let mut text = KeyText::new("test");
    text.entry(Entry::new("name", name));
    text.key(&[], &Secret::from_bytes([1; 16]))
}

pub(super) fn window(limit: u64) -> Limit {
    let window = Window::from_nanos(3_600 * SECOND).unwrap();
    Limit::FixedWindow(FixedWindow { limit, window, excess: Excess::Refuse })
}

pub(super) fn bucket(burst: u64) -> Limit {
    let rate = Rate::new(NonZeroU64::new(1).unwrap(), NonZeroU64::new(3_600 * SECOND).unwrap());
    Limit::TokenBucket(TokenBucket { rate, burst, excess: Excess::Refuse })
}

fn any_refused(decisions: &[CheckDecision]) -> bool {
    decisions.iter().any(|decision| !decision.verdict.passes())
}

pub(super) fn left(memory: &Memory, key: Key, limit: &Limit) -> u64 {
    memory
        .apply(
            &[Check {
                key,
                limit,
                operation: Operation::Peek,
                on_refusal: OnRefusal::TakeBack,
                origin: LimitOrigin::Rule,
            }],
            NOW,
            |_| false,
        )
        .unwrap()[0]
        .remaining
}

fn race(callers: u64, call: impl Fn(u64) -> bool + Sync) -> u64 {
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for caller in 0..callers {
            let (passed, call) = (&passed, &call);
            scope.spawn(move || passed.fetch_add(call(caller).into(), Ordering::Relaxed));
        }
    });
    passed.into_inner()
}

#[test]
fn concurrent_callers_admit_exactly_the_limit() {
    for limit in [window(100), bucket(100)] {
        let memory = Memory::new(BYTES, OnFull::Deny);
        let check = Check {
            key: key("one"),
            limit: &limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        };
        let passed = race(256, |_| memory.apply_single(&check, NOW).unwrap().decision.verdict.passes());
        assert_eq!(passed, 100);
    }
}

#[test]
fn concurrent_check_sets_admit_exactly_the_tightest_limit() {
    let (memory, group, user) = (Memory::new(BYTES, OnFull::Deny), window(100), bucket(30));
    let passed = race(300, |caller| {
        let user_key = key(&format!("user {}", caller % 5));
        let mut checks = [
            Check {
                key: key("group"),
                limit: &group,
                operation: Operation::Charge(1),
                on_refusal: OnRefusal::TakeBack,
                origin: LimitOrigin::Rule,
            },
            Check {
                key: user_key,
                limit: &user,
                operation: Operation::Charge(1),
                on_refusal: OnRefusal::TakeBack,
                origin: LimitOrigin::Rule,
            },
        ];
        if caller % 2 == 0 {
            checks.reverse();
        }
        !any_refused(&memory.apply(&Checks::from(checks), NOW, any_refused).unwrap())
    });
    assert_eq!(passed, 100);
    assert_eq!(left(&memory, key("group"), &group), 0);
    let users = (0..5).map(|user_index| 30 - left(&memory, key(&format!("user {user_index}")), &user));
    assert_eq!(users.sum::<u64>(), 100);
}

#[test]
fn refused_call_reports_remaining_without_its_charges() {
    let (memory, wide, narrow) = (Memory::new(BYTES, OnFull::Deny), window(10), window(1));
    let checks = Checks::from([
        Check {
            key: key("wide"),
            limit: &wide,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        },
        Check {
            key: key("narrow"),
            limit: &narrow,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        },
    ]);
    assert!(!any_refused(&memory.apply(&checks, NOW, any_refused).unwrap()));
    let refused = memory.apply(&checks, NOW, any_refused).unwrap();
    assert_eq!((refused[0].verdict, refused[0].remaining), (Verdict::Pass, 9));
    assert_eq!(refused[1].remaining, 0);
    assert_eq!(left(&memory, key("wide"), &wide), 9);
}

#[test]
fn two_checks_of_one_counter_charge_twice_or_not_at_all() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(3));
    let twice = Checks::from(
        [Check {
            key: key("one"),
            limit: &limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        }; 2],
    );
    assert!(!any_refused(&memory.apply(&twice, NOW, any_refused).unwrap()));
    assert!(any_refused(&memory.apply(&twice, NOW, any_refused).unwrap()));
    assert_eq!(left(&memory, key("one"), &limit), 1);
}

#[test]
fn check_set_may_lock_every_slot() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1));
    let checks: Checks<'_> = (0..10_000)
        .map(|index| Check {
            key: key(&index.to_string()),
            limit: &limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        })
        .collect();
    assert!(!any_refused(&memory.apply(&checks, NOW, any_refused).unwrap()));
    assert!(
        memory.apply(&checks, NOW, any_refused).unwrap().iter().all(|decision| !decision.verdict.passes())
    );
}

#[test]
fn peek_stores_no_counter() {
    let (memory, limit) = (Memory::new(BYTES, OnFull::Deny), window(1));
    assert_eq!(left(&memory, key("one"), &limit), 1);
    assert_eq!(memory.stats().live, 0);
}

#[test]
fn sweep_evicts_idle_counters_only() {
    let (memory, window, bucket) = (Memory::new(BYTES, OnFull::Deny), window(1), bucket(4));
    for index in 0..1_000 {
        let key = key(&index.to_string());
        let (limit, hits) = if index % 2 == 0 { (&window, 1) } else { (&bucket, 4) };
        let check = Check {
            key,
            limit,
            operation: Operation::Charge(hits),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        };
        memory.apply_single(&check, NOW).unwrap();
    }
    let sweep = |hours: u64| {
        (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, NOW.plus(hours * 3_600 * SECOND)))
    };
    sweep(0);
    assert_eq!(memory.stats().live, 1_000);
    sweep(1);
    assert_eq!(memory.stats().live, 500, "the buckets are full after four hours");
    sweep(4);
    assert_eq!(memory.stats().live, 0);
    assert_eq!(memory.stats().bytes, 0, "the memory of evicted counters is released");
}

pub(super) fn second_of(index: u64) -> Limit {
    let rate = |hits, nanos| Rate::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
    let window = || Window::from_nanos(SECOND).unwrap();
    let span = Span::from_nanos(SECOND).unwrap();
    let odd = Span::from_nanos(1_234_567).unwrap();
    let number = |number| NonZeroU64::new(number).unwrap();
    let calendar = || Window::Calendar(Calendar::new(CalendarUnit::Month, "Europe/Berlin").unwrap());
    let (refuse, owes) = (Excess::Refuse, Excess::Overdraft(25));
    let all = [
        Limit::Classic(Classic::new(10, window())),
        Limit::Classic(Classic::new(10, calendar())),
        Limit::FixedWindow(FixedWindow { limit: 10, window: window(), excess: refuse }),
        Limit::FixedWindow(FixedWindow { limit: 10, window: window(), excess: owes }),
        Limit::FixedWindow(FixedWindow { limit: u64::MAX, window: calendar(), excess: refuse }),
        Limit::SlidingWindow(SlidingWindow { limit: 10, span, excess: Excess::Count }),
        Limit::SlidingWindow(SlidingWindow { limit: u64::MAX / 2, span: odd, excess: refuse }),
        Limit::SlidingWindow(SlidingWindow { limit: 7, span: odd, excess: owes }),
        Limit::SlidingLog(SlidingLog { limit: 10, span, sub_window: number(SECOND / 10), excess: refuse }),
        Limit::SlidingLog(SlidingLog { limit: 10, span, sub_window: number(1), excess: Excess::Count }),
        Limit::TokenBucket(TokenBucket { rate: rate(3, SECOND), burst: 10, excess: refuse }),
        Limit::TokenBucket(TokenBucket { rate: rate(u64::MAX, SECOND), burst: 1 << 40, excess: refuse }),
        Limit::SteppedBucket(SteppedBucket {
            amount: number(3),
            interval: number(SECOND),
            burst: 10,
            excess: owes,
        }),
        Limit::LeakyBucket(TokenBucket { rate: rate(7, SECOND), burst: 4, excess: Excess::Count }),
        Limit::LeakyQueue(LeakyQueue {
            rate: rate(5, SECOND),
            burst: Some(4),
            max_delay: None,
            timeout: None,
        }),
    ];
    // The second half has penalties.
    let (limit, index) = (&all[index as usize % all.len()], index as usize % (2 * all.len()));
    if index < all.len() { limit.clone() } else { with_penalty(limit.clone(), SECOND) }
}

proptest! {
    #[test]
    fn stored_counter_answers_like_the_algorithm(
        limit in any_limit(),
        operations in prop::collection::vec(
            (prop_oneof![Just(0), 0..SECOND, 0..4 * SECOND], prop_oneof![
                1 => Just(Operation::Peek),
                6 => (1..9_u64).prop_map(Operation::Charge),
                1 => any::<u64>().prop_map(Operation::Charge),
                1 => (1..9_u64).prop_map(Operation::Refund),
            ]),
            1..60,
        ),
    ) {
        let (memory, mut now) = (Memory::new(BYTES, OnFull::Deny), NOW);
        let mut counter = limit.fresh();
        for (step, (pause, operation)) in operations.into_iter().enumerate() {
            now = now.plus(pause);
            let check = Check { key: key("one"), limit: &limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule };
            let kept = memory.apply_single(&check, now).unwrap().decision;
            let expected = limit.decide(&mut counter, now, operation);
            prop_assert_eq!(kept.verdict, expected.verdict);
            prop_assert_eq!((kept.remaining, kept.reset_after), (expected.remaining, expected.reset_after));
            if step % 7 == 0 {
                (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, now));
            }
        }
        (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, Timestamp::MAX));
        prop_assert_eq!((memory.stats().live, memory.stats().bytes), (0, 0));
    }
}

pub(super) fn charge(memory: &Memory, key: Key, limit: &Limit, now: Timestamp) -> bool {
    let check = Check {
        key,
        limit,
        operation: Operation::Charge(1),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    };
    memory.apply_single(&check, now).unwrap().decision.verdict.passes()
}

/// What a snapshot has of a slot.
pub(super) fn stored(memory: &Memory, slot: Slot, now: Timestamp) -> SlotData {
    let encoded = memory.copy(slot, Epoch::default())(now).encode(now);
    encoded.map(|encoded| encoded.decode(now).unwrap().data).unwrap_or_default()
}

#[test]
fn snapshot_has_granted_hits_as_charged() {
    let (limit, turn) = (window(10), |used, hits| Turn {
        used,
        granted: Granted { hits, ..Granted::default() },
        ..Turn::default()
    });
    for charged in [0, 3] {
        let (memory, key) = (Memory::new(BYTES, OnFull::Deny), key("one"));
        (0..charged).for_each(|_| assert!(charge(&memory, key, &limit, NOW)));
        memory.grants().turn(key, &limit, NOW, |_| turn(0, 4));
        let slot = memory.slot(key);
        let restarted = Memory::new(BYTES, OnFull::Deny);
        restarted.restore(stored(&memory, slot, NOW), NOW);
        let left = |memory: &Memory| (0..20).filter(|_| charge(memory, key, &limit, NOW)).count();
        assert_eq!(left(&restarted), 6 - charged);
        // The memory itself gets what is proved unused back.
        memory.grants().turn(key, &limit, NOW, |_| turn(1, 0));
        assert_eq!(left(&memory), 9 - charged);
    }
}

#[test]
fn snapshot_has_what_a_divided_bucket_lacks() {
    let rate = Rate::new(NonZeroU64::new(10).unwrap(), NonZeroU64::new(SECOND).unwrap());
    let limit = Limit::TokenBucket(TokenBucket { rate, burst: 20, excess: Excess::Refuse });
    for per_second in [4, 10] {
        let (memory, key) = (Memory::new(BYTES, OnFull::Deny), key("one"));
        (0..15).for_each(|_| assert!(charge(&memory, key, &limit, NOW)));
        let granted = Granted { rate: HitRate { per_second, burst: 3 }, hits: 0 };
        memory.grants().turn(key, &limit, NOW, |view| {
            assert_eq!(view.free, 5);
            Turn { granted, ..Turn::default() }
        });
        memory.grants().turn(key, &limit, NOW, |view| {
            assert_eq!(view.free, 2, "the bucket lacks as many hits, whatever its rate is");
            Turn { spent: 3, returned: 1, ..Turn::default() }
        });
        memory.grants().turn(key, &limit, NOW, |_| Turn { granted, ..Turn::default() });
        let slot = memory.slot(key);
        let restarted = Memory::new(BYTES, OnFull::Deny);
        restarted.restore(stored(&memory, slot, NOW), NOW);
        assert_eq!((0..20).filter(|_| charge(&restarted, key, &limit, NOW)).count(), 3);
    }
}

fn number(number: u64) -> Key {
    key(&number.to_string())
}

#[test]
fn million_counters_take_at_most_40_bytes_each() {
    let sliding =
        SlidingWindow { limit: 10, span: Span::from_nanos(SECOND * 60).unwrap(), excess: Excess::Refuse };
    for limit in [window(10), bucket(10), Limit::SlidingWindow(sliding)] {
        let memory = Memory::new(BYTES, OnFull::Deny);
        let mut worst = 0.0_f64;
        for index in 0..1_000_000 {
            assert!(charge(&memory, number(index), &limit, NOW));
            if index % 10_000 == 0 && index > 100_000 {
                worst = worst.max(memory.stats().bytes as f64 / (index + 1) as f64);
            }
        }
        assert_eq!(memory.stats().live, 1_000_000);
        assert!(worst <= 40.0, "{worst} bytes a counter");
    }
}

#[test]
fn flood_of_new_keys_stays_in_budget_and_admits_no_refused_key() {
    let bytes_max = 2 * BYTES_MIN;
    for limit in [window(3), bucket(3)] {
        let memory = Memory::new(bytes_max, OnFull::Deny);
        for _ in 0..3 {
            assert!(charge(&memory, key("exhausted"), &limit, NOW));
        }
        assert!(!charge(&memory, key("exhausted"), &limit, NOW));
        for index in 0..200_000 {
            assert!(charge(&memory, number(index), &limit, NOW), "there is always a counter to evict");
            assert!(memory.tables.resources.budget.used() as u64 <= bytes_max);
        }
        let stats = memory.stats();
        assert!(!charge(&memory, key("exhausted"), &limit, NOW));
        assert!(stats.evicted_unexpired > 0 && stats.evicted_idle == 0 && stats.refused_full == 0);
        assert!(bytes_max / 80 < stats.live as u64, "most of the budget is in use: {stats:?}");
    }
}

#[test]
fn idle_counters_are_evicted_first() {
    let (memory, short, long) = (Memory::new(BYTES_MIN, OnFull::Deny), second_of(2), window(1_000));
    for index in 0..5_000 {
        charge(&memory, number(index), &long, NOW);
    }
    // The counters of the flood are idle a second later, when the next thousand arrive.
    for second in 0..100 {
        for index in 0..1_000 {
            charge(&memory, key(&format!("{second} {index}")), &short, NOW.plus(second * SECOND));
        }
    }
    let stats = memory.stats();
    assert!(stats.evicted_idle > 0 && stats.evicted_unexpired == 0, "{stats:?}");
}

#[test]
fn new_keys_without_evictable_counters_follow_on_full() {
    for (on_full, passes) in [(OnFull::Deny, false), (OnFull::Allow, true)] {
        let (memory, tight, other) = (Memory::new(BYTES_MIN, on_full), window(1), window(100));
        charge(&memory, key("other"), &other, NOW);
        let mut kept = 0;
        for index in 0..60_000 {
            kept += u64::from(charge(&memory, number(index), &tight, NOW));
        }
        let stats = memory.stats();
        assert!(stats.refused_full > 0 && stats.live < 60_000, "{stats:?}");
        assert_eq!(kept == 60_000, passes);
        // An admitted key is refused later, whether or not there was memory for it.
        assert!(!charge(&memory, number(0), &tight, NOW));
        assert_eq!(charge(&memory, key("new"), &tight, NOW), passes);
        assert!(stats.bytes as u64 <= BYTES_MIN);
    }
}

#[test]
fn logs_count_in_the_memory_budget() {
    let span = Span::from_nanos(3_600 * SECOND).unwrap();
    let limit = Limit::SlidingLog(SlidingLog {
        limit: 1_000,
        span,
        sub_window: NonZeroU64::MIN,
        excess: Excess::Refuse,
    });
    let memory = Memory::new(BYTES_MIN, OnFull::Deny);
    for index in 0..500 {
        for hit in 0..100 {
            charge(&memory, number(index), &limit, NOW.plus(hit));
        }
    }
    (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, NOW));
    let stats = memory.stats();
    assert!(stats.evicted_unexpired > 0 && stats.bytes as u64 <= BYTES_MIN, "{stats:?}");
    (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, NOW.plus(3_601 * SECOND)));
    assert_eq!(memory.stats().bytes, 0);
}

mod own_limits;
mod room;
