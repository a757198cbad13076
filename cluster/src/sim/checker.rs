//! The checker finds every kind of broken promise: a fault that the replicas do not know of breaks each once.

use std::time::Duration;

use crate::sim::{
    Step::{self, Cut, Delay, Drain, Hold, Kill, Own, Pass, Settle, Skew, Start, Store, Tamper, Traffic},
    Tamper::{CancelHolds, ForgetOwnLimits, RejuvenateCopies, SetHits, ShrinkMemory, Stall},
    keys,
    record::Faults,
    scripts::play,
};

const SECOND: Step = Pass(Duration::from_secs(1));

/// Plays a script with a fault, asserts that the checker finds it, and returns what it says.
fn finds(steps: &[Step], faults: Faults, problem: &str) -> String {
    let all = [&[Start(3), Settle, Traffic(400), SECOND], steps].concat();
    match play(1, &all, faults) {
        Ok(_) => panic!("not found: {problem}"),
        Err(found) => {
            assert!(found.contains(problem), "{found}, not {problem}");
            found
        }
    }
}

/// Lets the owners forget what passed of every key with a long period.
fn forget_long() -> Vec<Step> {
    let long = keys::all().into_iter().filter(|key| !key.is_short).count();
    (0..long).map(|key| Tamper(SetHits(key, 0))).collect()
}

/// The number of a key, and how many hits are nearly all that it allows.
fn key(is_short: bool) -> usize {
    keys::all().iter().position(|key| key.is_short == is_short).expect("a key of each kind") + 1
}

#[test]
fn forgotten_hits_of_a_long_period_are_found() {
    finds(
        &[SECOND, SECOND, Tamper(SetHits(key(false), 0)), SECOND, SECOND],
        Faults::None,
        "hits passed, the most is",
    );
}

#[test]
fn forgotten_hits_of_a_short_period_are_found() {
    let forget = Tamper(SetHits(key(true), 0));
    let steps = vec![[forget, Pass(Duration::from_millis(400))]; 10].concat();
    finds(&steps, Faults::None, " ms, the most is");
}

#[test]
fn forgotten_hits_are_found_while_clocks_step() {
    let forget = Tamper(SetHits(key(true), 0));
    let steps = vec![[forget, Pass(Duration::from_millis(400))]; 10].concat();
    finds(
        &[&[Skew(0, 90_000), Skew(1, 90_000), Skew(2, 90_000)][..], &steps].concat(),
        Faults::Lead,
        " ms, the most is",
    );
}

#[test]
fn promise_is_checked_before_the_end_of_a_step() {
    let steps = [SECOND, SECOND, Tamper(SetHits(key(false), 0)), Pass(Duration::from_secs(15))];
    let found = finds(&steps, Faults::None, "hits passed, the most is");
    let at = found.split_once("(at ").and_then(|(_, rest)| rest.split_once(" ms)"));
    let millis: u64 = at.expect("a time").0.parse().expect("milliseconds");
    assert!(millis < 15_000, "{found}");
}

#[test]
fn hits_beyond_the_bound_of_a_partition_are_found() {
    let forget = forget_long();
    let spend = [Pass(Duration::from_millis(700))];
    let cut = [Traffic(3_000), SECOND, Cut(vec![1])];
    let steps = [&cut[..], &forget, &spend, &forget, &spend].concat();
    finds(&steps, Faults::Partition { minority: 1, members: 3 }, "hits passed, the most is");
}

#[test]
fn needless_refusals_are_found() {
    finds(&[Traffic(0), Tamper(SetHits(key(false), 60))], Faults::None, "hits passed, the least is");
}

#[test]
fn refusals_of_keys_that_no_older_snapshot_has_are_found() {
    let kill = [Store, SECOND, SECOND, Traffic(0), SECOND, SECOND, Kill(2), SECOND, SECOND, SECOND];
    let long = keys::all().into_iter().filter(|key| !key.is_short).count();
    let spend: Vec<Step> = (0..long).map(|key| Tamper(SetHits(key, 60))).collect();
    finds(&[&kill[..], &spend].concat(), Faults::Crashes, "hits passed, the least is");
}

#[test]
fn held_hits_that_are_given_away_are_found() {
    let hold = [Traffic(60), Hold(200), SECOND, Traffic(0)];
    let give_away: Vec<Step> = (0..keys::all().len()).map(|key| Tamper(CancelHolds(key))).collect();
    let spend = [Traffic(3_000), Pass(Duration::from_millis(600))];
    finds(&[&hold[..], &give_away, &spend].concat(), Faults::None, ", the most is");
}

#[test]
fn forgotten_reservations_are_found() {
    let long = keys::all().into_iter().filter(|key| !key.is_short).count();
    let forget: Vec<Step> = (0..long).map(|key| Tamper(SetHits(key, 60))).collect();
    let steps = [&[Hold(200), SECOND][..], &forget, &[SECOND]].concat();
    for faults in [Faults::None, Faults::Late] {
        finds(&steps, faults, "settle");
    }
}

#[test]
fn holds_that_expire_too_late_are_found_beside_late_messages() {
    for millis in [1_000, 3_000] {
        let late = [Hold(200), Delay(150), SECOND, Tamper(RejuvenateCopies(millis)), Drain(0)];
        let steps = [&late[..], &[Pass(Duration::from_millis(4_000))]].concat();
        finds(&steps, Faults::Late, "hits were settled as");
    }
}

#[test]
fn call_that_waits_too_long_is_found() {
    let faults = Faults::Partition { minority: 1, members: 3 };
    finds(&[Cut(vec![1]), Tamper(Stall(1)), SECOND], faults, "a call waits for");
}

#[test]
fn degraded_answers_without_a_fault_are_found() {
    finds(&[Cut(vec![1]), SECOND], Faults::None, "answers were degraded");
}

#[test]
fn slots_that_do_not_settle_are_found() {
    finds(&[Traffic(0), SECOND, Drain(2), Tamper(Stall(2))], Faults::Late, "not settled");
}

#[test]
fn counters_beyond_the_memory_are_found() {
    finds(&[Tamper(ShrinkMemory(1_000))], Faults::None, "bytes, the most is");
}

#[test]
fn forgotten_limits_of_their_own_are_found() {
    finds(&[Own(300), SECOND, Tamper(ForgetOwnLimits), SECOND], Faults::None, "in place of a later one");
}
