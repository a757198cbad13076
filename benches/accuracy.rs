//! How often a window that estimates decides otherwise than the log that knows.
//!
//! Replays a day of generated traffic and prints two Markdown tables; `--write` puts them into docs/algorithms.md.
//!
//!     cargo bench --bench accuracy -- [--requests N] [--seed N] [--write]

#![allow(clippy::unwrap_used, reason = "a measurement without its limits has nothing to measure")]

use std::{collections::VecDeque, fmt::Write, num::NonZeroU64};

use tollgate::{
    algorithm::{Excess, FixedWindow, Limit, Operation, SlidingLog, SlidingWindow, Span, Window},
    time::{SECOND, Timestamp},
};

// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/algorithms.md");
const BEGIN: &str = "<!-- accuracy: written by `cargo bench --bench accuracy -- --write` -->\n";
const END: &str = "<!-- accuracy: end -->\n";

const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;
/// A midnight.
const START: Timestamp = Timestamp::from_nanos(20_718 * DAY);

const LIGHT: Crowd = Crowd {
    share: 0.28,
    demand: Demand::Zipf { mean: 36.0, exponent: 0.8 },
    visit: Visit { hits: 4.0, pause: 0.5, start: Start::Anytime },
};

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "light users, a generous limit", limit: 200, crowds: &[LIGHT] },
    Scenario { name: "light users, half that limit", limit: 100, crowds: &[LIGHT] },
    Scenario {
        name: "users near the limit",
        limit: 20,
        crowds: &[Crowd {
            share: 0.18,
            demand: Demand::OfLimit { from: 0.5, to: 1.1 },
            visit: Visit { hits: 3.0, pause: 1.0, start: Start::Anytime },
        }],
    },
    Scenario {
        name: "attackers over the limit",
        limit: 20,
        crowds: &[
            Crowd {
                share: 0.08,
                demand: Demand::Zipf { mean: 20_000.0, exponent: 0.5 },
                visit: Visit { hits: 3_000.0, pause: 0.3, start: Start::Anytime },
            },
            Crowd {
                share: 0.07,
                demand: Demand::Zipf { mean: 20_000.0, exponent: 0.5 },
                visit: Visit { hits: 600.0, pause: 2.0, start: Start::Anytime },
            },
            Crowd { share: 0.04, ..LIGHT },
        ],
    },
    Scenario {
        name: "jobs at the round minute",
        limit: 20,
        crowds: &[Crowd {
            share: 0.07,
            demand: Demand::OfLimit { from: 0.3, to: 0.9 },
            visit: Visit { hits: 12.0, pause: 0.4, start: Start::AroundTheMinute },
        }],
    },
];

/// Traffic with the limit, in a minute, that is held against it.
struct Scenario {
    name: &'static str,
    limit: u64,
    crowds: &'static [Crowd],
}

/// Users of one kind.
struct Crowd {
    /// Its share of all requests of all scenarios.
    share: f64,
    demand: Demand,
    visit: Visit,
}

/// How much each user of a crowd asks in a day.
enum Demand {
    /// In proportion to `rank^-exponent`, `mean` on average.
    Zipf { mean: f64, exponent: f64 },
    /// Anything between these shares of the limit.
    OfLimit { from: f64, to: f64 },
}

/// Users come in visits, and each visit is a few hits one after another.
struct Visit {
    /// How many on average; geometrically distributed.
    hits: f64,
    /// Seconds between two on average; exponentially distributed.
    pause: f64,
    start: Start,
}

/// When visits begin. There are nine times as many at the height of the day as in the depth of the night.
#[derive(PartialEq)]
enum Start {
    Anytime,
    /// Within five seconds of a round minute, before or after.
    AroundTheMinute,
}

/// A dice that always rolls the same (SplitMix64).
struct Dice(u64);

/// What is measured, and what knows the truth about it.
struct Contest {
    name: &'static str,
    excess: Excess,
    limit: Limit,
    truth: Limit,
}

/// What came of one contest.
#[derive(Clone, Default)]
struct Tally {
    requests: u64,
    refused_by_truth: u64,
    wrongly_allowed: u64,
    wrongly_refused: u64,
    /// Of those that it allowed, how many were above the limit by what it had itself let in.
    above: u64,
    /// Of those that it refused, how many were not.
    below: u64,
    /// The most that it let in within a minute, in parts of the limit.
    most: f64,
}

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to less than 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed.
    fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

impl Demand {
    /// The average of a crowd, in hits a day.
    fn mean(&self, limit: u64) -> f64 {
        match self {
            Self::Zipf { mean, .. } => *mean,
            Self::OfLimit { from, to } => (from + to) / 2.0 * limit as f64 * (DAY / MINUTE) as f64,
        }
    }

    /// Hits a day of each of so many users.
    fn each(&self, limit: u64, users: usize, dice: &mut Dice) -> Vec<f64> {
        match self {
            Self::Zipf { mean, exponent } => {
                let weights: Vec<f64> = (1..=users).map(|rank| (rank as f64).powf(-exponent)).collect();
                let unit = mean * users as f64 / weights.iter().sum::<f64>();
                weights.into_iter().map(|weight| weight * unit).collect()
            }
            Self::OfLimit { from, to } => {
                let most = limit as f64 * (DAY / MINUTE) as f64;
                (0..users).map(|_| most * (from + (to - from) * dice.share())).collect()
            }
        }
    }
}

impl Visit {
    /// The instants, in order, at which a user asks who does so `hits_a_day` times on average.
    fn instants(&self, hits_a_day: f64, dice: &mut Dice, instants: &mut Vec<u64>) {
        instants.clear();
        let gap = DAY as f64 / (hits_a_day / self.hits * 1.8);
        let mut at = dice.wait(gap);
        while at < DAY as f64 {
            // As many as at the height of the day, of which a part then stays away.
            let light = (1.0 - 0.8 * (at / DAY as f64 * std::f64::consts::TAU).cos()) / 1.8;
            if dice.share() < light {
                let begin = match self.start {
                    Start::Anytime => at,
                    Start::AroundTheMinute => {
                        let minute = (at / MINUTE as f64).ceil() * MINUTE as f64;
                        minute + (dice.share() - 0.5) * 10.0 * SECOND as f64
                    }
                };
                self.hits(begin, dice, instants);
            }
            at += dice.wait(gap);
        }
        instants.sort_unstable();
    }

    fn hits(&self, begin: f64, dice: &mut Dice, instants: &mut Vec<u64>) {
        let mut at = begin;
        loop {
            if at < DAY as f64 {
                instants.push(at as u64);
            }
            if dice.share() < 1.0 / self.hits {
                return;
            }
            at += dice.wait(self.pause * SECOND as f64);
        }
    }
}

impl Contest {
    fn all(limit: u64) -> Vec<Self> {
        let span = Span::of_nanos(MINUTE).unwrap();
        let log = |grain, excess| SlidingLog { limit, span, grain: NonZeroU64::new(grain).unwrap(), excess };
        let sub_windows = |parts| Limit::SubWindows(log(MINUTE / parts, Excess::Refuse));
        let sliding = |excess| Limit::SlidingWindow(SlidingWindow { limit, span, excess });
        let fixed = FixedWindow { limit, window: Window::Aligned(span), excess: Excess::Refuse };
        let against =
            |name, limit, excess| Self { name, excess, limit, truth: Limit::SlidingLog(log(1, excess)) };
        vec![
            against("`sliding_window`", sliding(Excess::Refuse), Excess::Refuse),
            against("the same, 10 `sub_windows`", sub_windows(10), Excess::Refuse),
            against("the same, 60 `sub_windows`", sub_windows(60), Excess::Refuse),
            against("`fixed_window`", Limit::FixedWindow(fixed), Excess::Refuse),
            against("`sliding_window`, `count_denied`", sliding(Excess::Count), Excess::Count),
        ]
    }

    /// One user's day.
    fn replay(&self, instants: &[u64], tally: &mut Tally) {
        let (mut counter, mut known) = (self.limit.fresh(), self.truth.fresh());
        // What was let in less than a minute ago.
        let mut inside: VecDeque<u64> = VecDeque::new();
        let most = self.limit.allowance() as usize;
        for &instant in instants {
            let now = START.plus(instant);
            let passes = self.limit.decide(&mut counter, now, Operation::Charge(1)).verdict.passes();
            let should = self.truth.decide(&mut known, now, Operation::Charge(1)).verdict.passes();
            while inside.front().is_some_and(|oldest| oldest + MINUTE <= instant) {
                inside.pop_front();
            }
            tally.requests += 1;
            tally.refused_by_truth += u64::from(!should);
            tally.wrongly_allowed += u64::from(passes && !should);
            tally.wrongly_refused += u64::from(!passes && should);
            tally.above += u64::from(passes && most <= inside.len());
            tally.below += u64::from(!passes && inside.len() < most);
            if passes {
                inside.push_back(instant);
                tally.most = tally.most.max(inside.len() as f64 / most as f64);
            }
        }
    }
}

impl Tally {
    fn percent(&self, number: u64) -> String {
        format!("{:.3} %", number as f64 / self.requests as f64 * 100.0)
    }

    fn row(&self, traffic: &str, contest: &Contest) -> String {
        // Where refused hits count, what was let in says nothing.
        let own = |number| match contest.excess {
            Excess::Count => "-".to_owned(),
            Excess::Refuse | Excess::Overdraft(_) => self.percent(number),
        };
        format!(
            "| {traffic} | {} | {} | {} | {} | {} | {:.2} |\n",
            contest.name,
            self.percent(self.wrongly_allowed),
            self.percent(self.wrongly_refused),
            own(self.above),
            own(self.below),
            self.most,
        )
    }
}

/// What `--name N` says, or `default`.
fn argument(name: &str, default: u64) -> u64 {
    let value = std::env::args().skip_while(|argument| argument != name).nth(1);
    value.map_or(default, |value| value.replace('_', "").parse().unwrap())
}

/// The users of a scenario and the tally of each contest, in their order.
fn measure(scenario: &Scenario, requests: f64, dice: &mut Dice) -> (usize, Vec<Tally>) {
    let contests = Contest::all(scenario.limit);
    let (mut all, mut tallies) = (0, vec![Tally::default(); contests.len()]);
    let mut instants = Vec::new();
    for crowd in scenario.crowds {
        let users = (crowd.share * requests / crowd.demand.mean(scenario.limit)).ceil() as usize;
        for hits in crowd.demand.each(scenario.limit, users, dice) {
            crowd.visit.instants(hits, dice, &mut instants);
            for (contest, tally) in contests.iter().zip(&mut tallies) {
                contest.replay(&instants, tally);
            }
        }
        all += users;
    }
    (all, tallies)
}

fn tables(requests: u64, seed: u64) -> String {
    let mut traffic = String::from("| traffic | users | requests | limit a minute | refused by the log |\n");
    traffic += "|---|---|---|---|---|\n";
    let mut figures = String::from(
        "| traffic | algorithm | wrongly allowed | wrongly refused | above by its own count | below by its own \
         count | most in a minute, of the limit |\n|---|---|---|---|---|---|---|\n",
    );
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let mut dice = Dice(seed.wrapping_add(number as u64));
        let (users, tallies) = measure(scenario, requests as f64, &mut dice);
        let (limit, first) = (scenario.limit, &tallies[0]);
        let refused = first.percent(first.refused_by_truth);
        writeln!(traffic, "| {} | {users} | {} | {limit} | {refused} |", scenario.name, first.requests)
            .unwrap();
        for (contest, tally) in Contest::all(limit).iter().zip(&tallies) {
            figures += &tally.row(scenario.name, contest);
        }
    }
    format!("{traffic}\n{figures}")
}

fn main() {
    let tables = tables(argument("--requests", 34_000_000), argument("--seed", 1));
    print!("{tables}");
    if std::env::args().any(|argument| argument == "--write") {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        std::fs::write(PAGE, format!("{before}{BEGIN}\n{tables}\n{END}{after}")).unwrap();
    }
}
