//! Scripts made by chance, each from its seed.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::cluster::sim::{
    Step::{self, Cut, Drain, Heal, Hot, Kill, Pass, Resume, Settle, Skew, Start, Traffic},
    scripts::{Faults, play},
};

/// How many seeds of each kind are played; `SIMULATION_SEEDS=FROM..TO` in the environment plays others.
const SEEDS: std::ops::Range<u64> = 0..334;

/// A script, and the troubles that are in it.
fn script(seed: u64, kind: Kind) -> (Vec<Step>, Faults) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5EED);
    let mut steps = vec![Start(rng.random_range(2..=4)), Settle, Traffic(rng.random_range(20..120))];
    if rng.random_bool(0.3) {
        steps.push(Hot(rng.random_range(200..3_000)));
    }
    steps.push(pause(&mut rng, 600));
    let mut there: Vec<usize> = (0..match steps[0] {
        Start(count) => count,
        _ => 0,
    })
        .collect();
    let mut next = there.len();
    let mut faults = Faults::None;
    for _ in 0..rng.random_range(1..=5) {
        match rng.random_range(0..4) {
            0 if there.len() < 6 => {
                steps.push(Start(1));
                there.push(next);
                next += 1;
            }
            1 if 2 < there.len() => steps.push(Drain(there.swap_remove(rng.random_range(0..there.len())))),
            // (A snapshot of a clock that is ahead holds what is as much later.)
            2 if kind != Kind::Stop => {
                steps.push(Skew(there[rng.random_range(0..there.len())], rng.random_range(0..5_000)))
            }
            _ => {}
        }
        steps.push(pause(&mut rng, 400));
        if kind == Kind::Crash && 2 < there.len() {
            faults = Faults::Crashes;
            steps.push(Kill(there.swap_remove(rng.random_range(0..there.len()))));
            // One at a time: what the dead has kept for others is backed up anew.
            steps.extend([pause(&mut rng, 100), Settle, Pass(Duration::from_millis(250))]);
        }
    }
    if kind == Kind::Partition {
        steps.push(Settle);
        let members = there.len();
        let minority = rng.random_range(1..=members / 2);
        let apart = there[..minority].to_vec();
        faults = Faults::Partition { minority: minority as u64, members: members as u64 };
        steps.extend([Cut(apart), Pass(Duration::from_millis(rng.random_range(100..14_000))), Heal]);
        steps.push(pause(&mut rng, 600));
    }
    if kind == Kind::Stop {
        steps.extend([Settle, Traffic(0), Pass(Duration::from_millis(600))]);
        let all = there.len();
        while !there.is_empty() {
            steps.push(Drain(there.swap_remove(rng.random_range(0..there.len()))));
            steps.push(pause(&mut rng, 100));
        }
        steps.push(Pass(Duration::from_secs(5)));
        let first = rng.random_range(1..=all);
        steps.extend([Resume(first), pause(&mut rng, 2_000), Resume(all - first), Settle]);
    }
    (steps, faults)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plan,
    Crash,
    Partition,
    Stop,
}

fn pause(rng: &mut StdRng, millis_max: u64) -> Step {
    Pass(Duration::from_millis(rng.random_range(0..millis_max)))
}

#[expect(clippy::disallowed_methods, reason = "this is how a seed is played again")]
fn seeds() -> std::ops::Range<u64> {
    let test_key = std::env::var("SIMULATION_SEEDS").ok();
    let range = test_key.as_deref().and_then(|text| text.split_once(".."));
    match range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?)) {
        Some(seeds) => seeds,
        None => SEEDS,
    }
}

fn all_hold(kind: Kind, seeds: impl Iterator<Item = u64>) {
    let mut broken = Vec::new();
    for seed in seeds {
        let (steps, faults) = script(seed, kind);
        if let Err(problem) = play(seed, &steps, faults) {
            broken.push(format!("{kind:?} {seed}: {problem}\n    {steps:?}"));
        }
    }
    assert!(broken.is_empty(), "{} broke:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn planned_changes_by_chance_admit_exactly_the_limit() {
    all_hold(Kind::Plan, seeds());
}

#[test]
fn crashes_by_chance_forget_no_more_than_the_last_backups() {
    all_hold(Kind::Crash, seeds());
}

#[test]
fn full_stops_by_chance_forget_nothing() {
    // Those have found a fault: transfers that cross twice, two who claim at once, what is told late of a slice.
    all_hold(Kind::Stop, seeds().chain([6_068, 7_312, 7_705]));
}

#[test]
fn partitions_by_chance_are_bounded_and_heal() {
    all_hold(Kind::Partition, seeds());
}
