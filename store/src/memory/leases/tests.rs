//! Tests of leased hits: no more passes than the limit allows, whatever happens to a lease.

use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::{SteppedBucket, Verdict, laws::every_limit},
    time::SECOND,
};

use crate::{
    check::{Check, Checks, LimitOrigin, OnFull, OnRefusal},
    decisions::CheckDecision,
    memory::{
        NotLocal,
        tests::{BYTES, NOW, bucket, key, second_of, window},
    },
    slot::Slot,
    slot_data::SlotData,
};

fn sharing() -> Memory {
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2).shared();
    for slot in [0, 1] {
        memory.acquire(Slot(slot), SlotData::default(), NOW);
    }
    memory
}

fn charge(
    memory: &Memory,
    limit: &Limit,
    hits: u64,
    now: Timestamp,
) -> Result<Decision<Infallible>, NotLocal> {
    let check = Check {
        key: key("one"),
        limit,
        operation: Operation::Charge(hits),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    };
    memory.apply_single(&check, now).map(|decided| decided.decision)
}

#[test]
fn leased_hits_count_as_charged_until_returned() {
    for limit in [window(10), bucket(10)] {
        let (memory, name) = (sharing(), key("one"));
        assert_eq!(memory.leases().lease(name, &limit, 6, NOW).unwrap().remaining, 4);
        assert!(memory.leases().lease(name, &limit, 5, NOW).is_none());
        assert_eq!(charge(&memory, &limit, 1, NOW).unwrap().remaining, 3);
        assert_eq!(charge(&memory, &limit, 4, NOW), Err(NotLocal::Leased(name)));
        let never = charge(&memory, &limit, 11, NOW).unwrap();
        assert_eq!(never.verdict, Verdict::Refuse { retry_after: None });

        assert!(memory.leases().charge_leased(name, &limit, UsedHits { hits: 2, at: NOW }, NOW));
        assert_eq!(memory.leases().leased(name), 4);
        assert!(memory.leases().reclaim(name, 4));
        assert_eq!((memory.leases().leased(name), memory.stats().backup_bytes), (0, 0));
        assert_eq!(charge(&memory, &limit, 4, NOW).unwrap().remaining, 3);
    }
}

#[test]
fn call_refused_only_for_leased_hits_charges_nothing() {
    let (memory, limit, name) = (sharing(), window(10), key("one"));
    memory.leases().lease(name, &limit, 10, NOW).unwrap();
    let check = |key| Check {
        key,
        limit: &limit,
        operation: Operation::Charge(1),
        on_refusal: OnRefusal::Keep,
        origin: LimitOrigin::Rule,
    };
    let any_refused =
        |decisions: &[CheckDecision]| decisions.iter().any(|decision| !decision.verdict.passes());
    let checks = Checks::from([check(key("other")), check(name)]);
    assert_eq!(memory.apply(&checks, NOW, any_refused).unwrap_err(), NotLocal::Leased(name));
    assert_eq!(memory.stats().live, 0);
}

#[test]
fn released_slot_drops_leases_and_next_owner_sets_them() {
    let (memory, limit, name) = (sharing(), window(10), key("one"));
    let slot = memory.slot(name);
    memory.leases().lease(name, &limit, 6, NOW).unwrap();
    let (data, _) = memory.release(slot).unwrap();
    assert!(!memory.leases().set_leased(name, 6));
    memory.acquire(slot, data, NOW);
    assert_eq!(memory.leases().leased(name), 0);
    assert!(memory.leases().set_leased(name, 6));
    assert!(memory.leases().lease(name, &limit, 5, NOW).is_none());
    assert!(memory.leases().lease(name, &limit, 4, NOW).is_some());
}

#[test]
fn unleasable_limits_and_stores_without_cluster_lease_nothing() {
    let memory = sharing();
    // Overdraft, count_denied, sub-windows, a log, steps with a debt, a queue.
    for index in [3, 5, 8, 9, 12, 14] {
        assert!(
            memory.leases().lease(key("one"), &second_of(index), 1, NOW).is_none(),
            "{:?}",
            second_of(index)
        );
    }
    assert!(Memory::new(BYTES, OnFull::Deny).leases().lease(key("one"), &window(9), 1, NOW).is_none());
}

#[test]
fn refund_beyond_charged_hits_waits_for_leased_ones() {
    let (memory, limit, name) = (sharing(), window(10), key("one"));
    charge(&memory, &limit, 1, NOW).unwrap();
    memory.leases().lease(name, &limit, 6, NOW).unwrap();
    let refund = || {
        let (operation, on_refusal) = (Operation::Refund(4), OnRefusal::TakeBack);
        let check = Check { key: name, limit: &limit, operation, on_refusal, origin: LimitOrigin::Rule };
        memory.apply_single(&check, NOW).map(|decided| decided.decision.remaining)
    };
    assert_eq!(refund(), Err(NotLocal::Leased(name)));
    assert!(memory.leases().charge_leased(name, &limit, UsedHits { hits: 4, at: NOW }, NOW));
    assert_eq!(refund(), Ok(10 - 1 - 2));
}

proptest! {
    #[test]
    fn refunded_lease_frees_at_most_what_was_charged(
        limit in any_limit(),
        before in 0..10_u64,
        leased in 1..20_u64,
        used in 0..20_u64,
        pause in prop_oneof![Just(0), 0..3 * SECOND],
    ) {
        let used = used.min(leased);
        let left_after = |charged: u64, returned: u64| {
            let (memory, name) = (sharing(), key("one"));
            charge(&memory, &limit, before, NOW).unwrap();
            memory.leases().charge_leased(name, &limit, UsedHits { hits: charged, at: NOW }, NOW);
            let then = NOW.plus(pause);
            memory.leases().refund_leased(name, &limit, UsedHits { hits: returned, at: NOW }, then);
            memory.peek(name, &limit, then).peek.remaining
        };
        let (returned, never_charged) = (left_after(leased, leased - used), left_after(used, 0));
        prop_assert!(returned <= never_charged);
        if pause == 0 {
            prop_assert_eq!(returned, never_charged);
        }
    }
}

proptest! {
    #[test]
    fn refusal_beside_a_lease_passes_at_its_retry_after(
        limit in any_limit(),
        charges in prop::collection::vec((0..SECOND, 1..10_u64), 0..12),
        leased in 1..10_u64,
        used in 0..10_u64,
        hits in 1..10_u64,
    ) {
        let (memory, name, mut now) = (sharing(), key("one"), NOW);
        memory.leases().lease(name, &limit, leased, now);
        for (pause, hits) in charges {
            now = now.plus(pause);
            // What is refused only for leased hits changes nothing.
            let _ = charge(&memory, &limit, hits, now);
        }
        let refused = charge(&memory, &limit, hits, now).map(|decision| decision.verdict);
        if let Ok(Verdict::Refuse { retry_after: Some(wait) }) = refused {
            let lent = memory.leases().leased(name);
            let used = UsedHits { hits: used.min(lent), at: now };
            memory.leases().charge_leased(name, &limit, used, now);
            memory.leases().reclaim(name, lent);
            let again = charge(&memory, &limit, hits, now.after(wait)).unwrap();
            prop_assert!(again.verdict.passes(), "{again:?} after {wait:?}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Charge(u64),
    Lease(u64),
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
        3 => (1..8_u64).prop_map(Step::Lease),
        2 => (1..6_u64).prop_map(Step::UseAndReport),
        3 => (1..6_u64).prop_map(Step::Use),
        2 => Just(Step::Report),
        1 => (1..6_u64).prop_map(Step::Return),
    ]
}

/// A limit of any algorithm that supports leases.
fn any_limit() -> impl Strategy<Value = Limit> {
    let limits = |allowance, nanos| every_limit(allowance, nanos).into_iter().filter(Limit::is_leasable);
    (1..30_u64, SECOND..10 * SECOND, any::<prop::sample::Index>()).prop_map(
        move |(allowance, nanos, which)| which.get(&limits(allowance, nanos).collect::<Vec<_>>()).clone(),
    )
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
            Step::Lease(hits) => unused += memory.leases().lease(name, limit, hits, now).map_or(0, |_| hits),
            Step::UseAndReport(hits) if unused > 0 => {
                let hits = hits.min(unused);
                unused -= hits;
                admitted.push((now, hits));
                assert!(memory.leases().charge_leased(name, limit, UsedHits { hits, at: now }, now));
            }
            Step::Use(hits) if unused > 0 => {
                let hits = hits.min(unused);
                unused -= hits;
                unreported = UsedHits { hits: unreported.hits + hits, at: now };
                admitted.push((now, hits));
            }
            Step::Report => {
                assert!(memory.leases().charge_leased(name, limit, unreported, now));
                unreported.hits = 0;
            }
            Step::Return(hits) => {
                let hits = hits.min(unused);
                unused -= hits;
                assert!(memory.leases().reclaim(name, hits));
            }
            Step::Use(_) | Step::UseAndReport(_) => {}
        }
        assert_eq!(memory.leases().leased(name), unused + unreported.hits);
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
