//! Tests of holds that two owners of a slot have changed.

use super::*;

/// Two owners of the counter of `key("k")` that have continued from this copy, with the hold `a` of 4 hits.
fn parted(limit: &Limit) -> (Memory, Memory, SlotData) {
    parted_with(limit, OnExpiry::Release)
}

/// Two stores that have parted after a hold with this end, and the slot data that both have.
fn parted_with(limit: &Limit, on_expiry: OnExpiry) -> (Memory, Memory, SlotData) {
    let (one, other) = (sharing(), Memory::new(BYTES, OnFull::Deny).with_slots(SLOTS.into()).shared());
    let terms = terms("a", HOLD_TTL_DEFAULT, on_expiry);
    let checks = Checks::from_slice(&[check(key("k"), limit, 4)]);
    assert!(one.reserve(&checks, &terms, NOW, any_refused).unwrap().unwrap().is_held);
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
