//! The checker finds every kind of broken promise: a fault that the replicas do not know of breaks each once.

use std::time::Duration;

use crate::cluster::sim::{
    Step::{self, Cut, Drain, Hold, Pass, Settle, Start, Tamper, Traffic},
    Tamper::{CancelHolds, SetHits, ShrinkMemory, Stall},
    keys,
    record::Faults,
    scripts::play,
};

const SECOND: Step = Pass(Duration::from_secs(1));

/// Plays a script with a fault, and asserts that the checker finds it.
fn finds(steps: &[Step], faults: Faults, problem: &str) {
    let all = [&[Start(3), Settle, Traffic(400), SECOND], steps].concat();
    match play(1, &all, faults) {
        Ok(_) => panic!("not found: {problem}"),
        Err(found) => assert!(found.contains(problem), "{found}, not {problem}"),
    }
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
fn needless_refusals_are_found() {
    finds(&[Traffic(0), Tamper(SetHits(key(false), 60))], Faults::None, "hits passed, the least is");
}

#[test]
fn held_hits_that_are_given_away_are_found() {
    let hold = [Traffic(60), Hold(200), SECOND, Traffic(0)];
    let give_away: Vec<Step> = (0..keys::all().len()).map(|key| Tamper(CancelHolds(key))).collect();
    let spend = [Traffic(3_000), Pass(Duration::from_millis(600))];
    finds(&[&hold[..], &give_away, &spend].concat(), Faults::None, "hits passed, the most is");
}

#[test]
fn forgotten_reservations_are_found() {
    let long = keys::all().into_iter().filter(|key| !key.is_short).count();
    let forget: Vec<Step> = (0..long).map(|key| Tamper(SetHits(key, 60))).collect();
    let steps = [&[Hold(200), SECOND][..], &forget, &[SECOND]].concat();
    finds(&steps, Faults::None, "hits were settled as");
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
