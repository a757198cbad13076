//! How often a window that estimates its count decides differently from the exact log.
//!
//! Replays a day of generated traffic and prints two Markdown tables; `--write` puts them into docs/algorithms.md.
//! Exits with an error if an algorithm breaks a promise of that page.
//!
//!     cargo bench -p tollgate-limiter --bench accuracy -- [--requests N] [--seed N] [--write]

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::{collections::VecDeque, fmt::Write, num::NonZeroU64};

use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, SlidingLog, SlidingWindow, Span, Window},
    time::{SECOND, Timestamp},
};

// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithms.md");
const BEGIN: &str =
    "<!-- accuracy: written by `cargo bench -p tollgate-limiter --bench accuracy -- --write` -->\n";
const END: &str = "<!-- accuracy: end -->\n";

const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;
/// A midnight.
const START: Timestamp = Timestamp::from_nanos(20_718 * DAY);

const LIGHT: Population = Population {
    share: 0.28,
    demand: Demand::Zipf { mean: 36.0, exponent: 0.8 },
    visit: Visit { hits: 4.0, interval: 0.5, start: Start::Anytime },
};

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "light users, a generous limit", limit: 200, populations: &[LIGHT] },
    Scenario { name: "light users, half that limit", limit: 100, populations: &[LIGHT] },
    Scenario {
        name: "users near the limit",
        limit: 20,
        populations: &[Population {
            share: 0.18,
            demand: Demand::OfLimit { from: 0.5, to: 1.1 },
            visit: Visit { hits: 3.0, interval: 1.0, start: Start::Anytime },
        }],
    },
    Scenario {
        name: "attackers over the limit",
        limit: 20,
        populations: &[
            Population {
                share: 0.08,
                demand: Demand::Zipf { mean: 20_000.0, exponent: 0.5 },
                visit: Visit { hits: 3_000.0, interval: 0.3, start: Start::Anytime },
            },
            Population {
                share: 0.07,
                demand: Demand::Zipf { mean: 20_000.0, exponent: 0.5 },
                visit: Visit { hits: 600.0, interval: 2.0, start: Start::Anytime },
            },
            Population { share: 0.04, ..LIGHT },
        ],
    },
    Scenario {
        name: "jobs at the round minute",
        limit: 20,
        populations: &[Population {
            share: 0.07,
            demand: Demand::OfLimit { from: 0.3, to: 0.9 },
            visit: Visit { hits: 12.0, interval: 0.4, start: Start::AroundTheMinute },
        }],
    },
];

/// Generated traffic and the limit per minute that is applied to it.
struct Scenario {
    name: &'static str,
    limit: u64,
    populations: &'static [Population],
}

/// Users of one kind.
struct Population {
    /// The share of all requests of all scenarios.
    share: f64,
    demand: Demand,
    visit: Visit,
}

/// How many requests each user of a crowd sends in a day.
enum Demand {
    /// In proportion to `rank^-exponent`, `mean` on average.
    Zipf { mean: f64, exponent: f64 },
    /// Uniform between these shares of the limit.
    OfLimit { from: f64, to: f64 },
}

/// Users send hits in visits; a visit is a short series of hits.
struct Visit {
    /// Hits per visit on average; geometrically distributed.
    hits: f64,
    /// Seconds between two hits on average; exponentially distributed.
    interval: f64,
    start: Start,
}

/// When visits begin. Nine times as many begin at the daily peak as at the nightly minimum.
#[derive(PartialEq)]
enum Start {
    Anytime,
    /// Within five seconds of a round minute, before or after.
    AroundTheMinute,
}

/// A random number generator with a fixed seed (SplitMix64).
struct Rng(u64);

/// A limit under test and the exact limit that it is compared with.
struct Comparison {
    name: &'static str,
    excess: Excess,
    limit: Limit,
    exact: Limit,
}

/// The counts of one comparison.
#[derive(Clone, Default)]
struct Stats {
    requests: u64,
    refused_by_exact: u64,
    wrongly_allowed: u64,
    wrongly_refused: u64,
    /// Allowed requests that were above the limit, counting only what the limit under test had admitted.
    above: u64,
    /// Refused requests that were within the limit by the same count.
    below: u64,
    /// The most requests admitted within a minute, in parts of the limit.
    most: f64,
}

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in 0..1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed.
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}

impl Demand {
    /// The average of a crowd, in hits per day.
    fn mean(&self, limit: u64) -> f64 {
        match self {
            Self::Zipf { mean, .. } => *mean,
            Self::OfLimit { from, to } => (from + to) / 2.0 * limit as f64 * (DAY / MINUTE) as f64,
        }
    }

    /// Hits per day of each of `users` users.
    fn hits_per_day(&self, limit: u64, users: usize, rng: &mut Rng) -> Vec<f64> {
        match self {
            Self::Zipf { mean, exponent } => {
                let weights: Vec<f64> = (1..=users).map(|rank| (rank as f64).powf(-exponent)).collect();
                let unit = mean * users as f64 / weights.iter().sum::<f64>();
                weights.into_iter().map(|weight| weight * unit).collect()
            }
            Self::OfLimit { from, to } => {
                let most = limit as f64 * (DAY / MINUTE) as f64;
                (0..users).map(|_| most * (from + (to - from) * rng.uniform())).collect()
            }
        }
    }
}

impl Visit {
    /// The instants, in order, of the requests of a user who sends `hits_a_day` on average.
    fn instants(&self, hits_a_day: f64, rng: &mut Rng, instants: &mut Vec<u64>) {
        instants.clear();
        let gap = DAY as f64 / (hits_a_day / self.hits * 1.8);
        let mut at = rng.exponential(gap);
        while at < DAY as f64 {
            // Thinning: visits are drawn at the peak rate, and a part of them is dropped.
            let light = (1.0 - 0.8 * (at / DAY as f64 * std::f64::consts::TAU).cos()) / 1.8;
            if rng.uniform() < light {
                let begin = match self.start {
                    Start::Anytime => at,
                    Start::AroundTheMinute => {
                        let minute = (at / MINUTE as f64).ceil() * MINUTE as f64;
                        minute + (rng.uniform() - 0.5) * 10.0 * SECOND as f64
                    }
                };
                self.hits(begin, rng, instants);
            }
            at += rng.exponential(gap);
        }
        instants.sort_unstable();
    }

    fn hits(&self, begin: f64, rng: &mut Rng, instants: &mut Vec<u64>) {
        let mut at = begin;
        loop {
            if at < DAY as f64 {
                instants.push(at as u64);
            }
            if rng.uniform() < 1.0 / self.hits {
                return;
            }
            at += rng.exponential(self.interval * SECOND as f64);
        }
    }
}

impl Comparison {
    fn all(limit: u64) -> Vec<Self> {
        let span = Span::from_nanos(MINUTE).unwrap();
        let log = |sub_window, excess| SlidingLog {
            limit,
            span,
            sub_window: NonZeroU64::new(sub_window).unwrap(),
            excess,
        };
        let sub_windows = |parts| Limit::SlidingLog(log(MINUTE / parts, Excess::Refuse));
        let sliding = |excess| Limit::SlidingWindow(SlidingWindow { limit, span, excess });
        let fixed = FixedWindow { limit, window: Window::Aligned(span), excess: Excess::Refuse };
        let compare =
            |name, limit, excess| Self { name, excess, limit, exact: Limit::SlidingLog(log(1, excess)) };
        vec![
            compare("`sliding_window`", sliding(Excess::Refuse), Excess::Refuse),
            compare("10 `sub_windows`", sub_windows(10), Excess::Refuse),
            compare("60 `sub_windows`", sub_windows(60), Excess::Refuse),
            compare("`fixed_window`", Limit::FixedWindow(fixed), Excess::Refuse),
            compare("`sliding_window`, `count_denied`", sliding(Excess::Count), Excess::Count),
        ]
    }

    /// One user's day.
    fn replay(&self, instants: &[u64], stats: &mut Stats) {
        let (mut counter, mut exact_counter) = (self.limit.fresh(), self.exact.fresh());
        // Instants of requests admitted less than a minute ago.
        let mut inside: VecDeque<u64> = VecDeque::new();
        let most = self.limit.allowance() as usize;
        for &instant in instants {
            let now = START.plus(instant);
            let passes = self.limit.decide(&mut counter, now, Operation::Charge(1)).verdict.passes();
            let should = self.exact.decide(&mut exact_counter, now, Operation::Charge(1)).verdict.passes();
            while inside.front().is_some_and(|oldest| oldest + MINUTE <= instant) {
                inside.pop_front();
            }
            stats.requests += 1;
            stats.refused_by_exact += u64::from(!should);
            stats.wrongly_allowed += u64::from(passes && !should);
            stats.wrongly_refused += u64::from(!passes && should);
            stats.above += u64::from(passes && inside.len() >= most);
            stats.below += u64::from(!passes && inside.len() < most);
            if passes {
                inside.push_back(instant);
                stats.most = stats.most.max(inside.len() as f64 / most as f64);
            }
        }
    }
}

impl Comparison {
    /// Holds the promises of docs/algorithms.md for what was measured.
    fn check(&self, stats: &Stats) {
        let name = self.name;
        assert!(stats.most <= 2.0, "{name} admitted {} times the limit within a minute", stats.most);
        let estimates = matches!(self.limit, Limit::SlidingWindow(_));
        if !estimates && self.excess == Excess::Refuse {
            assert_eq!(stats.below, 0, "{name} refused requests that were within the limit");
        }
    }
}

impl Stats {
    fn percent(&self, number: u64) -> String {
        format!("{:.3}", number as f64 / self.requests as f64 * 100.0)
    }

    fn row(&self, traffic: &str, comparison: &Comparison) -> String {
        // If refused hits count, the number of admitted hits says nothing.
        let own = |number| match comparison.excess {
            Excess::Count => "-".to_owned(),
            Excess::Refuse | Excess::Overdraft(_) => self.percent(number),
        };
        format!(
            "| {traffic} | {} | {} | {} | {} | {} | {:.2} |\n",
            comparison.name,
            self.percent(self.wrongly_allowed),
            self.percent(self.wrongly_refused),
            own(self.above),
            own(self.below),
            self.most,
        )
    }
}

/// The value of the argument `--name N`, or `default`.
fn argument(name: &str, default: u64) -> u64 {
    let value = std::env::args().skip_while(|argument| argument != name).nth(1);
    value.map_or(default, |value| value.replace('_', "").parse().unwrap())
}

/// The number of users of a scenario, and the stats of each comparison in order.
fn measure(scenario: &Scenario, requests: f64, rng: &mut Rng) -> (usize, Vec<Stats>) {
    let comparisons = Comparison::all(scenario.limit);
    let (mut all, mut all_stats) = (0, vec![Stats::default(); comparisons.len()]);
    let mut instants = Vec::new();
    for population in scenario.populations {
        let users = (population.share * requests / population.demand.mean(scenario.limit)).ceil() as usize;
        for hits in population.demand.hits_per_day(scenario.limit, users, rng) {
            population.visit.instants(hits, rng, &mut instants);
            for (comparison, stats) in comparisons.iter().zip(&mut all_stats) {
                comparison.replay(&instants, stats);
            }
        }
        all += users;
    }
    (all, all_stats)
}

fn tables(requests: u64, seed: u64) -> String {
    let mut traffic =
        String::from("| traffic | users | requests | limit a minute | refused by the log (%) |\n");
    traffic += "|---|---|---|---|---|\n";
    let mut decisions = String::from(
        "| traffic | algorithm | wrongly allowed (%) | wrongly refused (%) | above (%) | below (%) | most in a \
         minute, of the limit |\n|---|---|---|---|---|---|---|\n",
    );
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let mut rng = Rng(seed.wrapping_add(number as u64));
        let (users, all_stats) = measure(scenario, requests as f64, &mut rng);
        let (limit, first) = (scenario.limit, &all_stats[0]);
        let refused = first.percent(first.refused_by_exact);
        writeln!(traffic, "| {} | {users} | {} | {limit} | {refused} |", scenario.name, first.requests)
            .unwrap();
        let mut traffic_name = scenario.name;
        for (comparison, stats) in Comparison::all(limit).iter().zip(&all_stats) {
            comparison.check(stats);
            decisions += &stats.row(traffic_name, comparison);
            // The rows below are of the same traffic.
            traffic_name = "";
        }
    }
    format!("{traffic}\n{decisions}")
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
