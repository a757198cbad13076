//! Tests of what may not be evicted: it asks for room first, and a sweep without effect waits.

use super::*;
use crate::memory::tables::shedding::{SHED_PAUSE, SHED_SLOTS_MAX};

/// A store full of keys of `limit`, each with `hits`, which refuse and may not be evicted. Returns their number.
fn full_of_refused(memory: &Memory, limit: &Limit) -> u64 {
    let mut keys = 0;
    while memory.tables.refused_full.get() < 100 {
        charge(memory, number(keys), limit, NOW);
        keys += 1;
    }
    keys
}

fn sweep_all(memory: &Memory, now: Timestamp) {
    (0..SWEEP_PARTS).for_each(|part| memory.sweep_part(part, now));
}

#[test]
fn refusals_without_room_are_counted_and_not_recorded() {
    for limit in [window(1), bucket(1)] {
        let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny), with_penalty(limit, SECOND));
        let keys = full_of_refused(&memory, &limit);
        for index in 0..3 * keys {
            assert!(!charge(&memory, number(index % keys), &limit, NOW));
            assert!(memory.tables.resources.budget.used() as u64 <= BYTES_MIN);
        }
        let stats = memory.stats();
        assert!(stats.refusals_unrecorded > 0, "{stats:?}");
        // The plain limit decides on a key of which nothing is remembered.
        let unrecorded = (0..keys).map(number).find(|key| {
            memory.tables.lock(memory.slot(*key)).get(*key).is_some_and(|packed| !packed.has_record())
        });
        let check = Check {
            key: unrecorded.unwrap(),
            limit: &limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::Keep,
            origin: LimitOrigin::Rule,
        };
        let [with_penalty, plain] =
            [&limit, limit.plain()].map(|limit| memory.apply_single(&Check { limit, ..check }, NOW).unwrap());
        let shown =
            |decided: &CheckDecision<Infallible>| (decided.verdict, decided.remaining, decided.reset_after);
        assert_eq!(shown(&with_penalty), shown(&plain));
    }
}

#[test]
fn penalty_evicts_unused_counters_of_other_keys() {
    let (memory, limit) = (Memory::new(BYTES_MIN, OnFull::Deny), with_penalty(window(1), SECOND));
    (0..60_000).for_each(|index| assert!(charge(&memory, number(index), &window(1_000), NOW)));
    for _ in 0..200 {
        charge(&memory, key("eve"), &limit, NOW);
    }
    let penalty = memory.peek(key("eve"), &limit, NOW).details.penalty;
    assert!(penalty.is_some_and(|penalty| penalty.penalties > 0), "{:?}", memory.stats());
}

#[test]
fn log_without_room_to_grow_follows_on_full() {
    let span = Span::from_nanos(3_600 * SECOND).unwrap();
    let log = SlidingLog { limit: 1_000, span, sub_window: NonZeroU64::MIN, excess: Excess::Refuse };
    let log = Limit::SlidingLog(log);
    for (on_full, passes) in [(OnFull::Deny, false), (OnFull::Allow, true)] {
        let memory = Memory::new(BYTES_MIN, on_full);
        let one = key("log");
        assert!(charge(&memory, one, &log, NOW));
        let budget = &memory.tables.resources.budget;
        budget.change(0, budget.free());
        let passed = (1..900).filter(|hit| charge(&memory, one, &log, NOW.plus(*hit))).count();
        assert_eq!(passed == 899, passes, "{passed}");
        assert!(memory.stats().refused_full > 800);
        let stats = memory.stats();
        assert!(stats.bytes as u64 <= BYTES_MIN, "{stats:?}");
        let counted = memory.peek(one, &log, NOW.plus(900)).peek.remaining;
        assert!(passes || counted == 999 - passed as u64, "each hit that passed is counted");
    }
}

#[test]
fn sweep_that_frees_nothing_ends_and_waits() {
    let memory = Memory::new(BYTES_MIN, OnFull::Deny);
    full_of_refused(&memory, &window(1));
    // What other replicas send may take more than the limit.
    memory.tables.resources.budget.change(0, BYTES_MIN as usize);
    let turns: Vec<usize> = (0..1_000).map(|_| memory.tables.shed_some(NOW)).collect();
    assert!(turns.iter().all(|slots| *slots <= SHED_SLOTS_MAX));
    assert_eq!(turns.iter().sum::<usize>(), 5 * SLOTS, "once for each cost");
    memory.shed(Slot(0), NOW);
    assert_eq!(memory.tables.shed_some(NOW.after(SHED_PAUSE).minus(1)), 0);
    assert!(memory.tables.shed_some(NOW.after(SHED_PAUSE)) > 0);
}

#[test]
fn sweeps_of_overfull_memory_evict_until_it_fits() {
    let memory = Memory::new(BYTES_MIN, OnFull::Deny);
    (0..60_000).for_each(|index| assert!(charge(&memory, number(index), &window(1_000), NOW)));
    memory.tables.resources.budget.change(0, BYTES_MIN as usize / 2);
    for round in 0..10 {
        sweep_all(&memory, NOW.plus(round * SECOND));
    }
    assert!(!memory.is_overfull(), "{:?}", memory.stats());
}
