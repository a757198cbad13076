//! What clients that decide by themselves let pass while the cluster changes.

use std::time::Duration;

use crate::sim::{
    Step::{self, Cut, Drain, Envoys, Heal, Kill, Pass, Settle, Start},
    World,
    world::{
        CRASH_WINDOW,
        envoys::{BUDGET_HITS, Quota, RATE},
    },
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The callers of three clients, and what they request in a second.
const APART: [(u32, u32); 3] = [(1, 100), (2, 60), (3, 5)];
const OF_ONE_CALLER: [(u32, u32); 3] = [(1, 100), (1, 60), (1, 5)];

fn played_by(envoys: &'static [(u32, u32)], seed: u64, steps: &[Step]) -> World {
    let mut world = World::new(seed);
    // Three replicas, and clients that have what they are assigned.
    world.run(&[Start(3), Settle, Pass(seconds(17)), Envoys(envoys), Pass(seconds(15))]);
    world.run(steps);
    world
}

fn played(seed: u64, steps: &[Step]) -> World {
    played_by(&APART, seed, steps)
}

/// One replica after the other is replaced.
fn roll() -> Vec<Step> {
    [0, 1, 2].map(|number| [Start(1), Settle, Drain(number), Settle, Pass(seconds(2))]).concat()
}

/// Checks that no more passes than the limits allow, and `more` of the budget.
fn assert_bounds(world: &World, seed: u64, more: u64) {
    let passed = world.passed_since(Quota::Budget, 0);
    assert!(passed <= BUDGET_HITS + more, "seed {seed}: {passed} of a budget of {BUDGET_HITS} + {more}");
    for time in [1, 5, 10] {
        let most = world.most_in(Quota::Rate, seconds(time));
        let bound = RATE.burst + RATE.per_second * time;
        // A share that is cut is in force until the cut arrives.
        let late = RATE.per_second / 20;
        assert!(most <= bound + late, "seed {seed}: {most} in {time} s, the bound is {bound} + {late}");
    }
}

#[test]
fn quotas_of_calm_cluster_use_the_limits_and_no_more() {
    for seed in 0..3 {
        let world = played(seed, &[Pass(seconds(45))]);
        assert_bounds(&world, seed, 0);
        let used = world.passed_since(Quota::Rate, world.now() - 20_000_000_000);
        assert!(used >= 1_900, "seed {seed}: {used} in 20 s");
        assert_eq!(world.passed_since(Quota::Budget, 0), BUDGET_HITS, "seed {seed}");
    }
}

#[test]
fn quotas_stay_while_replicas_join_and_leave() {
    for seed in 0..10 {
        let world = played(seed, &roll());
        assert_bounds(&world, seed, 0);
        let passed = world.passed_since(Quota::Rate, world.now() - 5_000_000_000);
        let time = RATE.per_second * 5;
        assert!(passed * 10 >= time * 7, "seed {seed}: {passed} of {time} in the last 5 s of a roll");
        let mut world = world;
        world.run(&[Pass(seconds(10))]);
        let passed = world.passed_since(Quota::Rate, world.now() - 5_000_000_000);
        assert!(passed * 100 >= time * 95, "seed {seed}: {passed} of {time} after a roll");
        // The streams of a replica that leaves end: other streams get their slices.
        world.run(&[Pass(seconds(10))]);
        let passed = world.passed_since(Quota::Budget, 0);
        assert!(
            passed * 100 >= BUDGET_HITS * 90,
            "seed {seed}: {passed} of a budget of {BUDGET_HITS} in a roll"
        );
        assert_bounds(&world, seed, 0);
    }
}

#[test]
fn quotas_of_one_caller_are_whole_once_all_its_clients_are_back() {
    for seed in 0..10 {
        let mut world = played_by(&OF_ONE_CALLER, seed, &roll());
        // Until each client has reported, and for a second more, any may have the bucket of another one. A smaller burst
        // is held for that, and then comes back.
        world.run(&[Pass(seconds(20))]);
        let passed = world.passed_since(Quota::Rate, world.now() - 5_000_000_000);
        assert!(passed >= 475, "seed {seed}: {passed} of 500 after a roll");
        assert_bounds(&world, seed, 0);
    }
}

#[test]
fn quotas_of_killed_replica_are_learnt() {
    for seed in 0..10 {
        let mut world = played(seed, &[]);
        let killed_at = world.now();
        world.run(&[Kill((seed % 3) as usize), Pass(seconds(40))]);
        // What was assigned just before is not in the backups.
        let more = world.sliced_between(killed_at - CRASH_WINDOW, killed_at + CRASH_WINDOW);
        assert_bounds(&world, seed, more);
        let passed = world.passed_since(Quota::Rate, world.now() - 10_000_000_000);
        assert!(passed >= 950, "seed {seed}: {passed} of 1000 from 30 s after a crash on");
    }
}

#[test]
fn quotas_of_cut_off_replica_end() {
    for seed in 0..10 {
        let mut world = played(seed, &[]);
        let cut_at = world.now();
        world.run(&[Cut(vec![(seed % 3) as usize]), Pass(seconds(40)), Heal, Settle, Pass(seconds(30))]);
        // Until it is isolated, a replica assigns what no backup has.
        let more = world.sliced_between(cut_at - CRASH_WINDOW, cut_at + 2_000_000_000);
        assert_bounds(&world, seed, more);
        let passed = world.passed_since(Quota::Rate, world.now() - 10_000_000_000);
        assert!(passed >= 950, "seed {seed}: {passed} of 1000 after a cut");
    }
}
