//! Tests of leased hits: no more passes than the limit allows, whatever happens to a lease.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{
        Classic, Excess, FixedWindow, Rate, SlidingWindow, Span, SteppedBucket, TokenBucket, Verdict, Window,
    },
    store::{
        OnFull, OnRefusal, Slot, SlotData,
        memory::tests::{BYTES, NOW, bucket, key, second_of, window},
    },
    time::SECOND,
};

fn sharing() -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2).shared();
    for slot in [0, 1] {
        memory.acquire(Slot(slot), SlotData::default(), NOW);
    }
    memory
}

fn charge(memory: &Memory, limit: &Limit, hits: u64, now: Timestamp) -> Result<Decision, NotLocal> {
    let check =
        Check { key: key("one"), limit, operation: Operation::Charge(hits), on_refusal: OnRefusal::TakeBack };
    memory.apply(&[check], now, |_| false).map(|decisions| decisions[0])
}

#[test]
fn leased_hits_count_as_charged_until_returned() {
    for limit in [window(10), bucket(10)] {
        let (memory, name) = (sharing(), key("one"));
        assert_eq!(memory.lend(name, &limit, 6, NOW).unwrap().remaining, 4);
        assert!(memory.lend(name, &limit, 5, NOW).is_none());
        assert_eq!(charge(&memory, &limit, 1, NOW).unwrap().remaining, 3);
        assert_eq!(charge(&memory, &limit, 4, NOW), Err(NotLocal::Lent(name)));
        let never = charge(&memory, &limit, 11, NOW).unwrap();
        assert_eq!(never.verdict, Verdict::Refuse { retry_after: None });

        assert!(memory.charge_lent(name, &limit, UsedHits { hits: 2, at: NOW }, NOW));
        assert_eq!(memory.reserved(name), 4);
        assert!(memory.reclaim(name, 4));
        assert_eq!((memory.reserved(name), memory.stats().backup_bytes), (0, 0));
        assert_eq!(charge(&memory, &limit, 4, NOW).unwrap().remaining, 3);
    }
}

#[test]
fn call_refused_only_for_leased_hits_charges_nothing() {
    let (memory, limit, name) = (sharing(), window(10), key("one"));
    memory.lend(name, &limit, 10, NOW).unwrap();
    let check =
        |key| Check { key, limit: &limit, operation: Operation::Charge(1), on_refusal: OnRefusal::Keep };
    let any_refused = |decisions: &[Decision]| decisions.iter().any(|decision| !decision.verdict.passes());
    let checks = [check(key("other")), check(name)];
    assert_eq!(memory.apply(&checks, NOW, any_refused).unwrap_err(), NotLocal::Lent(name));
    assert_eq!(memory.stats().live, 0);
}

#[test]
fn released_slot_drops_leases_and_next_owner_sets_them() {
    let (memory, limit, name) = (sharing(), window(10), key("one"));
    let slot = memory.slot(name);
    memory.lend(name, &limit, 6, NOW).unwrap();
    let (data, _) = memory.release(slot).unwrap();
    assert!(!memory.set_reserved(name, 6));
    memory.acquire(slot, data, NOW);
    assert_eq!(memory.reserved(name), 0);
    assert!(memory.set_reserved(name, 6));
    assert!(memory.lend(name, &limit, 5, NOW).is_none());
    assert!(memory.lend(name, &limit, 4, NOW).is_some());
}

#[test]
fn unleasable_limits_and_stores_without_cluster_lease_nothing() {
    let memory = sharing();
    // Overdraft, count_denied, sub-windows, a log, steps with a debt, a queue.
    for index in [3, 5, 8, 9, 12, 14] {
        assert!(memory.lend(key("one"), &second_of(index), 1, NOW).is_none(), "{:?}", second_of(index));
    }
    assert!(Memory::new(BYTES, OnFull::Deny).lend(key("one"), &window(9), 1, NOW).is_none());
}

proptest! {
    #[test]
    fn refunded_lease_frees_at_most_what_was_charged(
        limit in any_limit(),
        before in 0..10_u64,
        lent in 1..20_u64,
        used in 0..20_u64,
        pause in prop_oneof![Just(0), 0..3 * SECOND],
    ) {
        let used = used.min(lent);
        let left_after = |charged: u64, returned: u64| {
            let (memory, name) = (sharing(), key("one"));
            charge(&memory, &limit, before, NOW).unwrap();
            memory.charge_lent(name, &limit, UsedHits { hits: charged, at: NOW }, NOW);
            let then = NOW.plus(pause);
            memory.refund_lent(name, &limit, UsedHits { hits: returned, at: NOW }, then);
            memory.peek(name, &limit, then).peek.remaining
        };
        let (returned, never_charged) = (left_after(lent, lent - used), left_after(used, 0));
        prop_assert!(returned <= never_charged);
        if pause == 0 {
            prop_assert_eq!(returned, never_charged);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Charge(u64),
    Lend(u64),
    /// The borrower uses hits and reports them at once.
    UseAndReport(u64),
    /// The borrower uses hits and reports them later.
    Use(u64),
    Report,
    Return(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6_u64).prop_map(Step::Charge),
        3 => (1..8_u64).prop_map(Step::Lend),
        2 => (1..6_u64).prop_map(Step::UseAndReport),
        3 => (1..6_u64).prop_map(Step::Use),
        2 => Just(Step::Report),
        1 => (1..6_u64).prop_map(Step::Return),
    ]
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let number = |number| NonZeroU64::new(number).unwrap();
    let excess = Excess::Refuse;
    (0..6_usize, 1..30_u64, 1..10_u64).prop_map(move |(which, limit, amount)| {
        let window = Window::of_nanos(SECOND).unwrap();
        let evenly = TokenBucket { rate: Rate::new(number(amount), number(SECOND)), burst: limit, excess };
        match which {
            0 => Limit::Classic(Classic { limit, window }),
            1 => Limit::FixedWindow(FixedWindow { limit, window, excess }),
            2 => Limit::SlidingWindow(SlidingWindow { limit, span: Span::of_nanos(SECOND).unwrap(), excess }),
            3 => Limit::TokenBucket(evenly),
            4 => Limit::LeakyBucket(evenly),
            _ => {
                let (amount, interval) = (number(amount), number(SECOND));
                Limit::SteppedBucket(SteppedBucket { amount, interval, burst: limit, excess })
            }
        }
    })
}

/// All admitted hits of the owner and the borrower, with their times.
fn admitted(limit: &Limit, steps: Vec<(u64, Step)>) -> Vec<(Timestamp, u64)> {
    let (memory, name, mut now) = (sharing(), key("one"), NOW);
    let (mut unused, mut unreported, mut admitted) = (0, UsedHits { hits: 0, at: NOW }, Vec::new());
    for (pause, step) in steps {
        now = now.plus(pause);
        match step {
            Step::Charge(hits) => {
                if charge(&memory, limit, hits, now).is_ok_and(|decision| decision.verdict.passes()) {
                    admitted.push((now, hits));
                }
            }
            Step::Lend(hits) => unused += memory.lend(name, limit, hits, now).map_or(0, |_| hits),
            Step::UseAndReport(hits) if unused > 0 => {
                let hits = hits.min(unused);
                unused -= hits;
                admitted.push((now, hits));
                assert!(memory.charge_lent(name, limit, UsedHits { hits, at: now }, now));
            }
            Step::Use(hits) if unused > 0 => {
                let hits = hits.min(unused);
                unused -= hits;
                unreported = UsedHits { hits: unreported.hits + hits, at: now };
                admitted.push((now, hits));
            }
            Step::Report => {
                assert!(memory.charge_lent(name, limit, unreported, now));
                unreported.hits = 0;
            }
            Step::Return(hits) => {
                let hits = hits.min(unused);
                unused -= hits;
                assert!(memory.reclaim(name, hits));
            }
            Step::Use(_) | Step::UseAndReport(_) => {}
        }
        assert_eq!(memory.reserved(name), unused + unreported.hits);
    }
    admitted
}

proptest! {
    #[test]
    fn leases_admit_no_more_than_the_limit(
        limit in any_limit(),
        steps in prop::collection::vec(
            (prop_oneof![3 => Just(0), 3 => 0..SECOND / 2, 1 => 0..3 * SECOND], any_step()),
            1..80,
        ),
    ) {
        let admitted = admitted(&limit, steps);
        if let Limit::SteppedBucket(SteppedBucket { amount, interval, burst, .. }) = limit {
            // Its steps begin at the first charge, so the bound for any span is checked instead.
            for (index, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (to, hits) in &admitted[index..] {
                    sum += hits;
                    let steps = 1 + to.nanos_since(*from) / interval;
                    prop_assert!(sum <= burst + steps * amount.get(), "{:?}", admitted);
                }
            }
        } else {
            let mut fresh = limit.fresh();
            for (now, hits) in &admitted {
                prop_assert!(limit.decide(&mut fresh, *now, Operation::Charge(*hits)).verdict.passes(), "{:?}", admitted);
            }
        }
    }
}
