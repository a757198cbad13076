//! What must hold after a script, whatever its faults.

use std::time::Duration;

use crate::sim::{
    Step::{
        self, Cut, Delay, Distrust, Drain, DrainOwner, Flood, FreezeBorrower, Heal, Hold, Hot, Kill, Pass,
        Resume, Settle, Skew, Start, Stranger, Thaw, Traffic,
    },
    World,
    keys::{SHORT, TestKey},
    record::Faults,
};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs a script, spends everything that is left, and returns the first broken promise.
pub(super) fn play(seed: u64, steps: &[Step], faults: Faults) -> Result<World, String> {
    play_in(World::new(seed), steps, faults)
}

/// Runs a script in `world`, spends everything that is left, and returns the first broken promise.
pub(super) fn play_in(mut world: World, steps: &[Step], faults: Faults) -> Result<World, String> {
    world.faults = Some(faults);
    for step in steps {
        run_checked(&mut world, step)?;
    }
    for step in [Traffic(0), Delay(20), Heal, Thaw, Settle] {
        run_checked(&mut world, &step)?;
    }
    if let Some(problem) = world.unsettled() {
        return Err(format!("not settled: {problem}"));
    }
    // A window that is far ahead is cut at the next check of its key.
    for step in [Traffic(900), Pass(millis(300)), Traffic(0)] {
        run_checked(&mut world, &step)?;
    }
    // Everything comes back that is lent, and every short period ends.
    run_checked(&mut world, &Pass(millis(3 * SHORT / 1_000_000 + 1_000)))?;
    let spent_from = world.now();
    for step in [Traffic(1_500), Pass(millis(1_500)), Traffic(0), Pass(millis(1_500))] {
        run_checked(&mut world, &step)?;
    }
    if let Some(wrong) = world.wrong_own_limit() {
        return Err(wrong);
    }
    if world.unanswered() > 0 {
        return Err(format!("{} calls were not answered", world.unanswered()));
    }
    for (key, TestKey { limit, is_short, .. }) in world.keys.iter().enumerate() {
        let (passed, least) = if *is_short {
            let limit = limit.share(world.divided_by());
            (world.record.passed_between(key, spent_from, world.now()), limit.allowance())
        } else {
            (world.record.passed(key), world.record.least(key, limit, faults))
        };
        if passed < least {
            return Err(format!("only {passed} hits passed, the least is {least}: {limit:?}"));
        }
    }
    Ok(world)
}

/// Runs a step. The promises are checked while its time passes and after it.
fn run_checked(world: &mut World, step: &Step) -> Result<(), String> {
    world.run_step(step);
    let during = |problem| format!("{problem} (in {step:?})");
    world.broken().map_or(Ok(()), |problem| Err(during(problem)))
}

fn owns(seed: u64, steps: &[Step], faults: Faults) -> World {
    match play(seed, steps, faults) {
        Ok(world) => world,
        Err(problem) => panic!("seed {seed}: {problem}"),
    }
}

const BEGIN: [Step; 3] = [Start(3), Settle, Traffic(60)];

fn after_begin(steps: &[Step]) -> Vec<Step> {
    [&BEGIN, steps].concat()
}

#[test]
fn single_replica_bootstraps_and_serves() {
    let world = owns(1, &[Start(1), Settle, Traffic(60), Pass(millis(500))], Faults::None);
    assert_eq!(world.serving(), [0]);
}

#[test]
fn hot_key_with_leases_never_exceeds_its_limit() {
    for seed in 0..5 {
        let world = owns(seed, &[Start(3), Settle, Hot(2_000), Pass(millis(300))], Faults::None);
        assert!(world.totals.by_lease > 0, "no call was decided from a lease");
    }
}

#[test]
fn frozen_borrower_returns_unused_hits_when_heard_again() {
    // Shorter and longer than the time after which a silent member has departed.
    for frozen_for in [600, 4_000, 20_000] {
        for seed in 0..20 {
            let steps = [Start(3), Settle, Hot(300), FreezeBorrower, Pass(millis(frozen_for)), Thaw, Settle];
            owns(seed, &steps, Faults::None);
        }
    }
}

#[test]
fn frozen_borrower_returns_unused_hits_to_next_owner() {
    for seed in 0..20 {
        let steps = [Start(4), Settle, Hot(300), FreezeBorrower, Pass(millis(700)), DrainOwner];
        let rest = [Pass(millis(1_500)), Thaw, Pass(millis(500)), Settle];
        owns(seed, &[&steps[..], &rest].concat(), Faults::None);
    }
}

#[test]
fn reservations_leave_what_was_used_charged() {
    for seed in 0..5 {
        owns(seed, &after_begin(&[Hold(100), Pass(millis(3_000))]), Faults::None);
    }
}

#[test]
fn reservations_survive_a_rolling_replacement() {
    let roll = |number| [Start(1), Pass(millis(700)), Drain(number), Pass(millis(900))];
    let steps = [&[Hold(60)][..], &[roll(0), roll(1), roll(2)].concat()].concat();
    for seed in 0..5 {
        owns(seed, &after_begin(&steps), Faults::None);
    }
}

#[test]
fn joiners_that_meet_a_leaving_replica_recover_all_slots() {
    // A replica that answers recovery queries waits for them and stays that long.
    let stop = [Pass(millis(400)), Drain(0), Drain(1), Drain(2), Pass(millis(1_500))];
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.run(&after_begin(&[&stop[..], &[Resume(3), Pass(millis(200)), Traffic(0), Settle]].concat()));
        assert_eq!((world.unsettled(), world.serving()), (None, vec![3, 4, 5]), "seed {seed}");
    }
}

#[test]
fn clock_that_gives_up_a_lead_changes_no_budget() {
    for seed in 0..20 {
        let put_right = [Skew(0, 100_000), Pass(millis(500)), Skew(0, -100_000), Pass(millis(500))];
        let steps = [&put_right[..], &[Start(1), Pass(millis(500)), Drain(0), Pass(millis(500))]].concat();
        owns(seed, &after_begin(&steps), Faults::Lead);
    }
}

#[test]
fn exhausted_keys_stay_refused_when_memory_runs_out() {
    for seed in 0..5 {
        let exhausted = [Start(3), Settle, Traffic(1_500), Pass(millis(1_500)), Traffic(60)];
        let rolled = [Start(1), Pass(millis(700)), Drain(0), Pass(millis(900))];
        let steps = [&exhausted[..], &[Flood(20_000)], &rolled].concat();
        if let Err(problem) = play_in(World::with_memory(seed, 1 << 20), &steps, Faults::None) {
            panic!("seed {seed}: {problem}");
        }
    }
}

#[test]
fn short_partition_admits_a_bounded_excess_and_heals() {
    for seed in 0..10 {
        let steps =
            after_begin(&[Pass(millis(500)), Cut(vec![1]), Pass(millis(5_000)), Heal, Pass(millis(500))]);
        let world = owns(seed, &steps, Faults::Partition { minority: 1, members: 3 });
        assert!(world.totals.degraded > 0);
    }
}

#[test]
fn two_single_replica_clusters_merge_when_they_meet() {
    for seed in 0..10 {
        let steps = [Start(1), Cut(vec![0]), Start(1), Pass(millis(1_000)), Heal, Settle, Traffic(60)];
        let world = owns(seed, &steps, Faults::None);
        assert_eq!(world.serving(), [0, 1]);
    }
}

#[test]
fn single_replica_and_cluster_merge_when_they_meet() {
    let alone = [Start(5), Settle, Drain(0), Drain(1), Drain(2), Drain(3), Pass(millis(1_500))];
    // By then clocks show more, so new slots have higher epochs.
    let apart =
        [Cut(vec![4]), Pass(millis(2_500)), Start(1), Pass(millis(1_000)), Start(2), Pass(millis(500))];
    let steps = [&alone[..], &apart, &[Heal, Settle, Traffic(60)]].concat();
    for seed in 0..40 {
        let world = owns(seed, &steps, Faults::None);
        assert_eq!(world.serving(), [4, 5, 6, 7]);
    }
}

#[test]
fn replica_that_has_served_stays_ready_beside_a_stranger() {
    // Shorter and longer than the time after which a silent member has departed.
    for silent_for in [2_000, 12_000] {
        for seed in 0..10 {
            let lose = [Stranger, Cut(vec![1]), Pass(millis(silent_for))];
            let steps = [&[Start(2), Settle, Traffic(60), Pass(millis(500))], &lose[..]].concat();
            let mut world = World::new(seed);
            world.faults = Some(Faults::Partition { minority: 1, members: 2 });
            world.run(&steps);
            assert_eq!((world.broken(), world.ready()), (None, vec![0, 1]), "seed {seed}");
        }
    }
    for seed in 0..10 {
        let steps = after_begin(&[Stranger, Kill(0), Pass(millis(700)), Drain(1), Pass(millis(1_500))]);
        let world = owns(seed, &steps, Faults::Crashes);
        assert_eq!(world.ready(), [2]);
    }
}

#[test]
fn lone_replica_that_never_served_is_not_ready_beside_a_stranger() {
    let alone = [Stranger, Start(1), Settle, Pass(millis(8_000))];
    let mut world = World::new(1);
    world.faults = Some(Faults::None);
    world.run(&alone);
    assert_eq!((world.broken(), world.ready(), world.serving()), (None, vec![], vec![0]));
    world.run(&[Start(1), Settle, Pass(millis(300))]);
    assert_eq!((world.broken(), world.ready()), (None, vec![0, 1]), "a link is up");
}

#[test]
fn of_two_sides_that_reject_each_other_only_one_is_ready() {
    for seed in 0..10 {
        let distrust = [Pass(millis(500)), Distrust(vec![1]), Pass(millis(12_000))];
        let mut world = World::new(seed);
        world.faults = Some(Faults::Partition { minority: 1, members: 3 });
        world.run(&after_begin(&distrust));
        assert_eq!((world.broken(), world.ready()), (None, vec![0, 2]), "seed {seed}");
    }
}
