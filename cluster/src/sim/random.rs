//! Random scripts, each from its seed.
//!
//! `SIMULATION_SEEDS=FROM..TO` in the environment plays other seeds of each kind, `SIMULATION_FLOOD_EVERY=N` more or fewer
//! floods; `tests/simulate` plays many.

use std::{env::VarError, ops::Range, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tollgate_store::BYTES_MIN;

use crate::sim::{
    Step::{
        self, AgeSnapshots, Cut, CutOneWay, Delay, Drain, DrainTogether, Flood, Freeze, Heal, Hold, Hot,
        Kill, KillTogether, LoseSnapshots, Mixed, Own, Pass, Resume, Rules, Settle, Skew, Start, Store,
        Stranger, Thaw, Traffic,
    },
    World,
    record::Faults,
    scripts::play_in,
};

/// The seeds of each kind of script. They are few, because every `cargo test` plays them.
const SEEDS: Range<u64> = 0..20;
/// One of this many scripts has reservations.
const HOLDS_EVERY: u64 = 3;
/// Of each of these numbers of scripts, the fifth has limits of their own.
const OWN_EVERY: [u64; 2] = [6, 7];
/// In one of this many scripts a process that is no member is at a seed.
const STRANGER_EVERY: u64 = 4;
/// One of this many scripts has a flood of keys, and little memory. Such a script takes as long as twenty others.
/// `tests/simulate --flood-every 5` plays many more of them each week.
const FLOOD_EVERY: u64 = 40;
/// The keys of a flood. So many counters and their backups take more than the memory of two to four replicas.
const FLOOD_KEYS: Range<usize> = 20_000..40_000;
/// The longest step of a clock, in milliseconds.
const CLOCK_STEP_MAX: i64 = 3_600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plan,
    Clock,
    Crash,
    Late,
    Partition,
    Stop,
    /// Most replicas leave at once, as when a cluster is scaled down.
    ScaleDown,
}

/// A script in the making.
struct Writer {
    rng: StdRng,
    steps: Vec<Step>,
    there: Vec<usize>,
    started: usize,
}

impl Writer {
    fn pause(&mut self, millis_max: u64) {
        let millis = self.rng.random_range(0..millis_max);
        self.steps.push(Pass(Duration::from_millis(millis)));
    }

    fn start(&mut self) {
        self.steps.push(Start(1));
        self.there.push(self.started);
        self.started += 1;
    }

    fn any(&mut self) -> usize {
        self.there[self.rng.random_range(0..self.there.len())]
    }

    fn take_any(&mut self) -> usize {
        let index = self.rng.random_range(0..self.there.len());
        self.there.swap_remove(index)
    }

    fn begin(seed: u64, kind: Kind) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5EED);
        let count = match kind {
            Kind::ScaleDown => 3 + 2 * rng.random_range(0..=1),
            Kind::Plan | Kind::Clock | Kind::Crash | Kind::Late | Kind::Partition | Kind::Stop => {
                rng.random_range(2..=4)
            }
        };
        let calls = rng.random_range(20..160);
        let traffic = if rng.random_bool(0.7) { Mixed(calls) } else { Traffic(calls) };
        let steps = vec![Start(count), Settle, traffic];
        let mut script = Self { rng, steps, there: (0..count).collect(), started: count };
        if seed.is_multiple_of(HOLDS_EVERY) {
            script.steps.push(Hold(30));
        }
        if OWN_EVERY.iter().any(|every| seed % every == 4) {
            script.steps.push(Own(60));
        }
        if seed.is_multiple_of(STRANGER_EVERY) {
            script.steps.push(Stranger);
        }
        if script.rng.random_bool(0.2) {
            let calls = script.rng.random_range(200..3_000);
            script.steps.push(Hot(calls));
        }
        script.pause(600);
        script
    }

    /// A planned change, or none.
    fn change(&mut self) {
        match self.rng.random_range(0..5) {
            0 if self.there.len() < 6 => self.start(),
            1 if self.there.len() > 2 => {
                let number = self.take_any();
                self.steps.push(Drain(number));
            }
            2 => {
                let divided_by = self.rng.random_range(1..=3);
                self.steps.push(Rules(divided_by));
            }
            3 => {
                let millis = self.rng.random_range(1..=30);
                self.steps.push(Delay(millis));
            }
            _ => {}
        }
        self.pause(400);
    }

    fn step_clock(&mut self) {
        let number = self.any();
        let step = self.rng.random_range(0..CLOCK_STEP_MAX);
        self.steps.push(Skew(number, step));
        self.pause(700);
        if self.rng.random_bool(0.6) {
            let back = self.rng.random_range(0..CLOCK_STEP_MAX);
            self.steps.push(Skew(number, -back));
            self.pause(300);
        }
    }

    fn crash(&mut self) {
        if self.there.len() > 3 && self.rng.random_bool(0.3) {
            let together = vec![self.take_any(), self.take_any()];
            self.steps.push(KillTogether(together));
        } else if self.there.len() > 2 {
            let number = self.take_any();
            self.steps.push(Kill(number));
        }
        // Copies that the dead one kept for others are backed up again before the next crash.
        self.pause(100);
        self.steps.extend([Settle, Pass(Duration::from_millis(250))]);
    }

    fn come_late(&mut self) {
        if self.rng.random_bool(0.5) {
            let millis = self.rng.random_range(30..400);
            self.steps.push(Delay(millis));
            self.pause(1_500);
            self.steps.extend([Delay(20), Settle]);
        } else {
            let number = self.any();
            let millis = self.rng.random_range(10..900);
            self.steps.extend([Freeze(number), Pass(Duration::from_millis(millis)), Thaw]);
        }
        self.pause(500);
    }

    fn cut(&mut self) -> Faults {
        self.steps.push(Settle);
        let members = self.there.len();
        let minority = self.rng.random_range(1..=members / 2);
        let apart = self.there[..minority].to_vec();
        let one_way = self.rng.random_bool(0.3);
        self.steps.push(if one_way { CutOneWay(apart) } else { Cut(apart) });
        if members > 2 && self.rng.random_bool(0.5) {
            self.pause(5_000);
            let number = self.take_any();
            self.steps.push(if members > 3 && self.rng.random_bool(0.5) {
                Kill(number)
            } else {
                Drain(number)
            });
        }
        let millis = self.rng.random_range(100..14_000);
        self.steps.extend([Pass(Duration::from_millis(millis)), Heal]);
        self.pause(600);
        // A replica that leaves meanwhile makes the local shares of the others larger.
        let members = self.there.len();
        Faults::Partition { minority: minority as u64, members: members as u64 }
    }

    /// Leaves one or two of three replicas and of five, right after the last answer or up to a second later.
    fn scale_down(&mut self) {
        let staying = if self.there.len() > 3 { self.rng.random_range(1..=2) } else { 1 };
        let leaving = (staying..self.there.len()).map(|_| self.take_any()).collect();
        if self.rng.random_bool(0.5) {
            self.pause(1_000);
        }
        self.steps.push(DrainTogether(leaving));
        self.pause(1_500);
    }

    fn stop(&mut self) -> Faults {
        // Replicas that leave for good have gone, so that only those of the full stop leave snapshots.
        self.steps.extend([Settle, Pass(Duration::from_millis(1_200)), Store]);
        self.pause(600);
        self.steps.extend([Traffic(0), Pass(Duration::from_millis(600))]);
        let all = self.there.len();
        let mut faults = Faults::None;
        let fault = self.rng.random_range(0..6);
        if fault == 0 {
            let number = self.take_any();
            self.steps.push(Kill(number));
            self.pause(100);
            faults = Faults::Crashes;
        }
        while !self.there.is_empty() {
            let number = self.take_any();
            self.steps.push(Drain(number));
            self.pause(100);
        }
        self.steps.push(Pass(Duration::from_secs(5)));
        let count = self.rng.random_range(1..=all);
        match fault {
            1 => self.steps.push(LoseSnapshots(count)),
            2 => self.steps.push(AgeSnapshots),
            _ => {}
        }
        let first = self.rng.random_range(1..=all);
        self.steps.push(Resume(first));
        self.pause(2_000);
        self.steps.extend([Resume(all - first), Settle]);
        if fault < 3 { Faults::Crashes } else { faults }
    }
}

/// A script, and the faults in it.
fn script(seed: u64, kind: Kind) -> (Vec<Step>, Faults) {
    let mut script = Writer::begin(seed, kind);
    let mut faults = Faults::None;
    if kind == Kind::ScaleDown {
        script.scale_down();
    }
    for _ in 0..script.rng.random_range(1..=5) {
        script.change();
        match kind {
            Kind::Plan | Kind::Partition | Kind::Stop | Kind::ScaleDown => {}
            Kind::Clock => {
                faults = Faults::Lead;
                script.step_clock();
            }
            Kind::Crash => {
                faults = Faults::Crashes;
                script.crash();
            }
            Kind::Late => {
                faults = Faults::Late;
                script.come_late();
            }
        }
    }
    match kind {
        Kind::Partition => faults = script.cut(),
        Kind::Stop => faults = script.stop(),
        Kind::Plan | Kind::Clock | Kind::Crash | Kind::Late | Kind::ScaleDown => {}
    }
    (script.steps, faults)
}

/// Inserts a flood of keys. The other steps are those of the script without it.
fn flood(seed: u64, steps: &mut Vec<Step>) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xF100D);
    let first_traffic = 3;
    let position = rng.random_range(first_traffic..=steps.len());
    steps.insert(position, Flood(rng.random_range(FLOOD_KEYS)));
}

/// Plays the script of a seed, with a flood in one of `flood_every`, and returns the broken promise, if there is one.
fn problem_of(seed: u64, kind: Kind, flood_every: u64) -> Option<String> {
    let (mut steps, faults) = script(seed, kind);
    let mut world = World::new(seed);
    // A full stop with full memory may forget hits: docs/cluster.md says when.
    if seed.is_multiple_of(flood_every) && kind != Kind::Stop {
        flood(seed, &mut steps);
        world = World::with_memory(seed, BYTES_MIN);
    }
    let problem = play_in(world, &steps, faults).err()?;
    Some(format!("{kind:?} {seed}: {problem}\n    {steps:?}"))
}

/// The seeds that `text` names.
fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let problem = || format!("SIMULATION_SEEDS is {text:?}, not FROM..TO with FROM < TO, such as 0..10000");
    let (from, to) = text.split_once("..").ok_or_else(problem)?;
    let seeds = from.parse().map_err(|_| problem())?..to.parse().map_err(|_| problem())?;
    if seeds.is_empty() { Err(problem()) } else { Ok(seeds) }
}

/// How many scripts have one flood, as `text` says.
fn parse_flood_every(text: &str) -> Result<u64, String> {
    let problem = || format!("SIMULATION_FLOOD_EVERY is {text:?}, not a number of scripts, such as 5");
    text.parse().ok().filter(|every| *every > 0).ok_or_else(problem)
}

/// What a variable of the environment says, if it is set.
#[expect(clippy::disallowed_methods, reason = "runs scripts again")]
fn variable<T>(name: &str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
    match std::env::var(name) {
        Ok(text) => Some(parse(&text).unwrap_or_else(|problem| panic!("{problem}"))),
        Err(VarError::NotPresent) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Plays the seeds of this kind that the environment names, and otherwise [`SEEDS`] and seeds that have found faults.
fn all_hold(kind: Kind, regressions: &[u64]) {
    let flood_every = variable("SIMULATION_FLOOD_EVERY", parse_flood_every).unwrap_or(FLOOD_EVERY);
    let seeds: Vec<u64> = match variable("SIMULATION_SEEDS", parse_seeds) {
        Some(seeds) => seeds.collect(),
        None => SEEDS.chain(regressions.iter().copied()).collect(),
    };
    let broken: Vec<String> =
        seeds.into_iter().filter_map(|seed| problem_of(seed, kind, flood_every)).collect();
    assert!(broken.is_empty(), "{} seeds broke a promise:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn mistyped_variables_are_an_error() {
    assert_eq!(parse_seeds("0..10"), Ok(0..10));
    for mistyped in ["", "10", "0-10", "0..", "..10", "0..=10", "a..b", "10..10", "-1..2"] {
        assert!(parse_seeds(mistyped).is_err(), "{mistyped}");
    }
    assert_eq!(parse_flood_every("5"), Ok(5));
    for mistyped in ["", "0", "-1", "a"] {
        assert!(parse_flood_every(mistyped).is_err(), "{mistyped}");
    }
}

#[test]
fn random_planned_changes_admit_exactly_the_limit() {
    all_hold(Kind::Plan, &[800]);
}

#[test]
fn random_scale_downs_admit_exactly_the_limit() {
    all_hold(Kind::ScaleDown, &[]);
}

#[test]
fn random_clock_steps_lose_at_most_one_hit() {
    all_hold(Kind::Clock, &[315, 435, 516, 869]);
}

#[test]
fn random_crashes_lose_at_most_the_last_backups() {
    all_hold(Kind::Crash, &[]);
}

#[test]
fn random_late_replicas_admit_at_most_their_shares() {
    all_hold(Kind::Late, &[]);
}

#[test]
fn random_full_stops_keep_all_counters() {
    all_hold(Kind::Stop, &[]);
}

#[test]
fn random_partitions_admit_a_bounded_excess_and_heal() {
    all_hold(Kind::Partition, &[903, 950, 1_085, 1_277, 1_525]);
}
