//! One limit for two and three regions with 80 ms between them, by three designs: an owner in one region, the same with
//! leases, and a share of the limit for each region that follows its demand. The first two are the product; the third is
//! a model. docs/dev/regions.md has the figures of `regions_keep_one_limit`.

use std::{iter::zip, time::Duration};

use tollgate_counter::{
    algorithm::{Limit, Operation, laws::every_limit},
    time::SECOND,
};

use crate::{
    replica::node_settings,
    sim::{
        Step::{Cut, Pass, Settle, Start},
        World,
        record::Entry,
        world::{MILLISECOND, REGION_DELAY, Shape},
    },
    tuning::Tuning,
};

const WINDOW: u64 = 10 * SECOND;
const WINDOWS: u64 = 2;
/// Hits of a window: 500 a second.
const LIMIT: u64 = 5_000;
const REPLICAS_OF_REGION: usize = 2;
const STEP: u64 = 5 * MILLISECOND;
/// How long an owner that is cut off goes on.
const UNNOTICED: u64 = 1_100 * MILLISECOND;

/// Calls a second of each region in a second of a scenario.
type Demand = fn(second: u64, region: usize, regions: usize) -> u64;

/// The scenarios, by what the regions ask for.
const SCENARIOS: [(&str, Demand); 4] = [
    ("equal, 60 %", |_, _, regions| 300 / regions as u64),
    ("90:10, 80 %", |_, region, regions| if region == 0 { 360 } else { 40 / (regions as u64 - 1) }),
    ("90:10, 200 %", |_, region, regions| if region == 0 { 900 } else { 100 / (regions as u64 - 1) }),
    (
        "one region, then another, 80 %",
        |second, region, _| {
            if region == usize::from(second % 10 >= 5) { 400 } else { 0 }
        },
    ),
];

/// What a scenario came to.
struct Played {
    owner: usize,
    passed: Vec<u64>,
    /// Of the calls in other regions than the owner's, those that waited for it, in percent.
    waited: f64,
    /// The median of these waits, and the longest, in milliseconds.
    waits: (u64, u64),
    messages_per_call: f64,
}

/// Calls of a region in a step, so that those of a second are exact.
fn calls(demand: Demand, at: u64, region: usize, regions: usize) -> u64 {
    let a_second = demand(at / SECOND, region, regions);
    let until = |at: u64| a_second * at / SECOND;
    until(at % SECOND + STEP) - until(at % SECOND)
}

/// A world of regions whose first key has the limit, at the beginning of a window.
fn world(regions: usize, lease_from: Option<u64>) -> World {
    let settings = node_settings(Tuning {
        backup_interval: Some(Duration::from_millis(100)),
        lease_from,
        ..Tuning::FOR_TESTS
    });
    let mut world = World::with_shape(Shape { settings, delay_max: MILLISECOND, regions, ..Shape::SMALL }, 1);
    let limit = every_limit(LIMIT, WINDOW).into_iter().find(|limit| matches!(limit, Limit::FixedWindow(_)));
    world.keys[0].limit = limit.expect("there is one of each algorithm");
    world.run(&[Start(1), Settle, Start(regions * REPLICAS_OF_REGION - 1), Settle]);
    let begun = world.now() % WINDOW;
    world.run(&[Pass(Duration::from_nanos(WINDOW - begun))]);
    world
}

/// Plays the demand of these windows. Each region's calls go to its replicas by turns.
fn play(world: &mut World, regions: usize, demand: Demand) {
    let begin = world.now();
    let mut turn = 0;
    while world.now() < begin + WINDOWS * WINDOW {
        for region in 0..regions {
            for _ in 0..calls(demand, world.now() - begin, region, regions) {
                turn += 1;
                let replica = region + regions * (turn % REPLICAS_OF_REGION);
                let check = world.check(replica, 0, Operation::Charge(1));
                world.call(replica, vec![check]);
            }
        }
        world.run(&[Pass(Duration::from_nanos(STEP))]);
    }
    world.run(&[Pass(Duration::from_secs(1))]);
}

fn by_owner(regions: usize, lease_from: Option<u64>, demand: Demand) -> Played {
    let mut world = world(regions, lease_from);
    let begin = world.now();
    let messages = world.totals.messages;
    let owner = world.region(world.owner(world.keys[0].key).expect("every key has an owner"));
    play(&mut world, regions, demand);
    let window = |number| {
        let from = begin + number * WINDOW;
        // A charge on its way at the end of a window may count in the next one.
        world
            .record
            .of(0)
            .iter()
            .filter(|it| (from..from + WINDOW).contains(&it.called_at))
            .map(Entry::passed)
            .sum()
    };
    let all = || (0..WINDOWS * WINDOW / STEP).map(|step| step * STEP);
    let of_region = |region| all().map(|at| calls(demand, at, region, regions)).sum::<u64>();
    let elsewhere: u64 = (0..regions).filter(|region| *region != owner).map(of_region).sum();
    let mut waits: Vec<u64> = world.record.of(0).iter().map(|it| it.answered_at - it.called_at).collect();
    waits.retain(|wait| *wait >= 2 * REGION_DELAY);
    waits.sort_unstable();
    let total = (0..regions).map(of_region).sum::<u64>() as f64;
    assert_eq!(world.totals.degraded, 0, "every call is decided by its owner or a lease");
    let of_waits = |index: usize| waits.get(index).map_or(0, |wait| wait / MILLISECOND);
    Played {
        owner: owner + 1,
        passed: (0..WINDOWS).map(window).collect(),
        waited: 100.0 * waits.len() as f64 / elsewhere as f64,
        waits: (of_waits(waits.len() / 2), of_waits(waits.len().saturating_sub(1))),
        messages_per_call: (world.totals.messages - messages) as f64 / total,
    }
}

/// The share of each region: what it asks for if all of that fits, otherwise at most an equal part of the rest.
fn max_min(total: u64, asked: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by_key(|region| asked[*region]);
    let mut shares = vec![0; asked.len()];
    let mut left = total;
    for (done, region) in order.into_iter().enumerate() {
        shares[region] = asked[region].min(left / (asked.len() - done) as u64);
        left -= shares[region];
    }
    // What no region asks for is divided too, so that a region that begins to ask has something.
    shares.iter().map(|share| share + left / asked.len() as u64).collect()
}

/// Shares by demand: what passes in each window. Every two seconds a coordinator divides what is left of the window by
/// what the regions have asked for since; a region gives up first, and another one gets it a round trip later.
fn by_shares(regions: usize, adjusts: bool, demand: Demand, cut_at: u64) -> Vec<u64> {
    const EVERY: u64 = 2 * SECOND;
    let mut most = Vec::new();
    let mut used = Vec::new();
    let mut asked = Vec::new();
    let mut weights = vec![1; regions];
    let mut planned: Option<(u64, Vec<u64>)> = None;
    let mut passed = Vec::new();
    for at in (0..WINDOWS * WINDOW).step_by(STEP as usize) {
        if at % WINDOW == 0 {
            let all: u64 = weights.iter().sum();
            most = weights.iter().map(|weight| LIMIT * weight / all).collect();
            (used, asked, planned) = (vec![0; regions], vec![0; regions], None);
            passed.push(0);
        } else if adjusts && at % EVERY == 0 && at < cut_at {
            let expected: Vec<u64> = asked.iter().map(|it| it * (WINDOW - at % WINDOW) / EVERY).collect();
            let left = max_min(LIMIT - used.iter().sum::<u64>(), &expected);
            let whole: Vec<u64> = asked.iter().map(|it| it * WINDOW / EVERY).collect();
            weights = max_min(LIMIT, &whole);
            planned = Some((at, zip(&used, left).map(|(used, left)| used + left).collect()));
            asked = vec![0; regions];
        }
        if let Some((since, wanted)) = &planned {
            if at == since + 2 * REGION_DELAY {
                // Nothing that is used meanwhile is given up.
                let kept =
                    zip(zip(&most, wanted), &used).map(|((most, wanted), used)| *most.min(wanted.max(used)));
                most = kept.collect();
            } else if at == since + 4 * REGION_DELAY {
                let mut free = LIMIT - most.iter().sum::<u64>();
                for (most, wanted) in zip(&mut most, wanted) {
                    let more = wanted.saturating_sub(*most).min(free);
                    (*most, free) = (*most + more, free - more);
                }
            }
        }
        for region in 0..regions {
            let asks = calls(demand, at, region, regions);
            let passes = asks.min(most[region] - used[region]);
            used[region] += passes;
            asked[region] += asks;
            *passed.last_mut().expect("a window has begun") += passes;
        }
    }
    passed
}

/// What should have passed in each window, and how much less it was, in percent.
fn lost(passed: &[u64], regions: usize, demand: Demand) -> f64 {
    let of_window = |window: u64| {
        let seconds = window * WINDOW / SECOND..(window + 1) * WINDOW / SECOND;
        seconds
            .map(|second| (0..regions).map(|region| demand(second, region, regions)).sum::<u64>())
            .sum::<u64>()
    };
    let ideal: u64 = (0..WINDOWS).map(|window| of_window(window).min(LIMIT)).sum();
    100.0 * ideal.saturating_sub(passed.iter().sum()) as f64 / ideal as f64
}

#[test]
fn regions_keep_one_limit() {
    println!(
        "| regions | demand | design | lost (%) | waited elsewhere (%) | wait (ms) | longest (ms) | messages a call |"
    );
    println!("|---:|---|---|---:|---:|---:|---:|---:|");
    for (regions, (name, demand)) in [2, 3].into_iter().flat_map(|regions| SCENARIOS.map(|it| (regions, it)))
    {
        for (design, lease_from) in [("", None), (", leases", Some(50))] {
            let Played { owner, passed, waited, waits: (median, longest), messages_per_call } =
                by_owner(regions, lease_from, demand);
            let lost = lost(&passed, regions, demand);
            println!(
                "| {regions} | {name} | owner in region {owner}{design} | {lost:.1} | {waited:.0} | {median} | {longest} | {messages_per_call:.2} |"
            );
            assert!(passed.iter().all(|passed| *passed <= LIMIT + LIMIT / 10), "{passed:?}");
        }
        for (design, adjusts) in [("equal shares", false), ("shares by demand", true)] {
            let passed = by_shares(regions, adjusts, demand, u64::MAX);
            println!(
                "| {regions} | {name} | {design} | {:.1} | 0 | 0 | 0 | - |",
                lost(&passed, regions, demand)
            );
            assert!(passed.iter().all(|passed| *passed <= LIMIT), "{passed:?}");
        }
    }
}

#[test]
fn region_that_is_cut_off_admits_a_bounded_excess() {
    println!("| regions | design | admitted of the limit | bound |");
    println!("|---:|---|---:|---:|");
    let demand: Demand = |_, _, _| 1_000;
    for regions in [2, 3] {
        let mut world = world(regions, Some(50));
        let owner = world.owner(world.keys[0].key).expect("every key has an owner");
        // The region of the owner, which is the worst one: it goes on until it notices the cut.
        let cut = world.region(owner);
        let replicas = |region| (0..REPLICAS_OF_REGION).map(move |number| region + regions * number);
        let begin = world.now();
        world.run(&[Cut(replicas(cut).collect())]);
        play(&mut world, regions, demand);
        let passed = |window: u64| {
            let from = begin + window * WINDOW;
            world.record.passed_between(0, from, from + WINDOW)
        };
        let all = (regions * REPLICAS_OF_REGION) as u64;
        // Of two halves either may be the one that goes on.
        let minority = REPLICAS_OF_REGION as u64;
        let shares = minority * LIMIT.div_ceil(all);
        let unnoticed = (demand(0, 0, regions) * UNNOTICED / SECOND).min(LIMIT);
        for (window, bound) in [(0, LIMIT + shares + unnoticed), (1, LIMIT + shares)] {
            let passed = passed(window);
            let of_limit = |hits: u64| hits as f64 / LIMIT as f64;
            println!(
                "| {regions} | owner, window {} | {:.2} | {:.2} |",
                window + 1,
                of_limit(passed),
                of_limit(bound)
            );
            assert!(passed <= bound, "{passed} of {bound} in window {window}");
        }
        let passed = by_shares(regions, true, demand, 0);
        println!("| {regions} | shares by demand | {:.2} | 1.00 |", passed[1] as f64 / LIMIT as f64);
        assert!(passed.iter().all(|passed| *passed <= LIMIT), "{passed:?}");
    }
}

#[test]
fn max_min_gives_small_askers_what_they_ask_for() {
    assert_eq!(max_min(100, &[10, 80, 200]), [10, 45, 45]);
    assert_eq!(max_min(100, &[10, 20]), [45, 55]);
    assert_eq!(max_min(100, &[0, 0]), [50, 50]);
}
