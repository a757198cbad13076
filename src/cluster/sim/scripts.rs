//! What must hold after a script, whatever happened in it.

use std::time::Duration;

use crate::{
    algorithm::Operation,
    cluster::sim::{
        Step::{
            self, Cut, Drain, DrainOwner, FreezeBorrower, Heal, Hot, Kill, Pass, Resume, Settle, Skew, Start,
            Thaw, Traffic,
        },
        World,
        keys::{Asked, LIMIT},
        world::BUDGET,
    },
    cluster::{
        message::{Deed, Question},
        node::{Action, Ticket, Wish},
    },
    rules::OnOwnerUnavailable,
    time::SECOND,
};

/// The most members of a simulated cluster.
const MEMBERS_MAX: u64 = 8;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What happened, which decides what may be lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Troubles {
    /// Only what was planned.
    None,
    /// A clock gave up a lead that is shorter than the time in which a hit comes back: a debt may be that much too large.
    Lead,
    Crashes,
    /// One cut, of so many of so many members.
    Partition {
        minority: u64,
        members: u64,
    },
}

/// Plays a script out, spends all that is left, and says what was promised and did not hold.
pub(super) fn play(seed: u64, steps: &[Step], troubles: Troubles) -> Result<World, String> {
    let mut world = World::new(seed);
    world.do_all(steps);
    world.do_all(&[Traffic(0), Heal, Settle]);
    if let Some(why) = world.unsettled() {
        return Err(format!("not settled: {why}"));
    }
    let degraded = world.books.degraded;
    world.do_all(&[Traffic(1_500), Pass(millis(1_500)), Traffic(0), Pass(millis(1_500))]);
    if 0 < world.unanswered() {
        return Err(format!("{} calls were not answered", world.unanswered()));
    }
    let slowest = world.books.slowest;
    if BUDGET + SECOND / 10 < slowest {
        return Err(format!("a call was answered after {} ms", slowest / 1_000_000));
    }
    if troubles == Troubles::None && 0 < degraded {
        return Err(format!("{degraded} answers were degraded"));
    }
    for key in 0..world.keys.len() {
        let (passed, limit) = (world.passed(key), &world.keys[key].limit);
        let most = match troubles {
            Troubles::None | Troubles::Lead => LIMIT,
            Troubles::Crashes => LIMIT + world.slack(key),
            Troubles::Partition { minority, members } => {
                let cut_at = world.books.cut_at.unwrap_or(world.now());
                let before = world.passed_between(key, 0, cut_at);
                // Until a cut is noticed everybody goes on.
                let unnoticed = world.passed_between(key, cut_at, cut_at + 2 * SECOND);
                before + LIMIT + (LIMIT * minority).div_ceil(members) + MEMBERS_MAX + unnoticed
            }
        };
        if most < passed {
            return Err(format!("{passed} hits passed where {most} may, of {limit:?}"));
        }
        let least = match troubles {
            Troubles::None => LIMIT,
            Troubles::Lead => LIMIT - 1,
            Troubles::Crashes | Troubles::Partition { .. } => 0,
        };
        if passed < least {
            return Err(format!("only {passed} hits of {least} passed, of {limit:?}"));
        }
    }
    Ok(world)
}

fn holds(seed: u64, steps: &[Step], troubles: Troubles) -> World {
    match play(seed, steps, troubles) {
        Ok(world) => world,
        Err(why) => panic!("seed {seed}: {why}"),
    }
}

const BEGIN: [Step; 3] = [Start(3), Settle, Traffic(60)];

fn after_begin(steps: &[Step]) -> Vec<Step> {
    [&BEGIN, steps].concat()
}

#[test]
fn a_lone_replica_serves_alone() {
    let world = holds(1, &[Start(1), Settle, Traffic(60), Pass(millis(500))], Troubles::None);
    assert_eq!(world.serving(), [0]);
}

#[test]
fn three_replicas_answer_as_one() {
    for seed in 0..5 {
        let world = holds(seed, &after_begin(&[Pass(millis(3_000))]), Troubles::None);
        assert_eq!(world.serving().len(), 3);
    }
}

#[test]
fn a_hot_key_is_lent_and_never_passes_its_limit() {
    for seed in 0..5 {
        let world = holds(seed, &[Start(3), Settle, Hot(2_000), Pass(millis(300))], Troubles::None);
        assert!(0 < world.books.by_lease, "nothing was lent");
    }
}

#[test]
fn frozen_borrower_gives_unused_hits_back_when_heard_again() {
    // Shorter than the time after which it is forgotten, and longer.
    for frozen_for in [600, 4_000, 20_000] {
        for seed in 0..20 {
            let steps = [Start(3), Settle, Hot(300), FreezeBorrower, Pass(millis(frozen_for)), Thaw, Settle];
            holds(seed, &steps, Troubles::None);
        }
    }
}

#[test]
fn frozen_borrower_gives_unused_hits_back_to_the_next_owner() {
    for seed in 0..20 {
        let steps = [Start(4), Settle, Hot(300), FreezeBorrower, Pass(millis(700)), DrainOwner];
        let rest = [Pass(millis(1_500)), Thaw, Pass(millis(500)), Settle];
        holds(seed, &[&steps[..], &rest].concat(), Troubles::None);
    }
}

#[test]
fn only_a_peers_own_lateness_opens_its_breaker() {
    let mut world = World::new(1);
    world.do_all(&[Start(2), Settle]);
    let (node, mut now, Asked { key, limit }, owner) = world.asker(0);
    let mut calls = 0..;
    let mut openings_after = |leaves: bool, turns: &[u64]| {
        node.heard(owner, now);
        node.turn(now);
        for call in calls.by_ref().take(100) {
            let question = Question { key, limit: limit.clone(), deed: Deed::Ask(Operation::Peek), wish: 0 };
            let wish = Wish { otherwise: OnOwnerUnavailable::Deny, lease: false };
            node.ask(Ticket { call, check: 0 }, question, wish, now.after(millis(20)), now);
        }
        for pause in turns {
            if leaves {
                node.outgoing(owner, usize::MAX, usize::MAX, now);
            }
            now = now.after(millis(*pause));
            node.turn(now);
        }
        let expired = node.actions().iter().filter(|action| matches!(action, Action::Answer(..))).count();
        assert_eq!(expired, 100, "all are answered without the owner");
        node.figures().breaker_openings
    };
    assert_eq!(openings_after(false, &[10, 10, 10]), 0, "the link took none in time");
    assert_eq!(openings_after(true, &[600, 10]), 0, "this replica stood still");
    assert_eq!(openings_after(true, &[10, 10, 10]), 1, "the owner is late");
}

#[test]
fn a_rolling_replacement_admits_exactly_the_rest() {
    let roll = |number| [Start(1), Pass(millis(700)), Drain(number), Pass(millis(900))];
    let steps = [roll(0), roll(1), roll(2)].concat();
    for seed in 0..5 {
        let world = holds(seed, &after_begin(&steps), Troubles::None);
        assert_eq!(world.serving(), [3, 4, 5]);
    }
}

#[test]
fn scaling_from_three_to_five_to_two_admits_nothing_extra() {
    let steps =
        [Start(2), Pass(millis(800)), Drain(0), Drain(3), Pass(millis(600)), Drain(1), Pass(millis(500))];
    for seed in 0..5 {
        let world = holds(seed, &after_begin(&steps), Troubles::None);
        assert_eq!(world.serving().len(), 2);
    }
}

#[test]
fn a_full_stop_and_a_start_forget_nothing() {
    let quiet = [Pass(millis(400)), Traffic(0), Pass(millis(100))];
    let stop = [&quiet[..], &[Drain(0), Drain(1), Drain(2), Pass(millis(1_500))]].concat();
    let together = vec![Resume(3), Settle];
    let one_alone = vec![Resume(1), Settle, Resume(2), Settle];
    for starts in [together, one_alone] {
        for seed in 0..20 {
            let world = holds(seed, &after_begin(&[&stop[..], &starts].concat()), Troubles::None);
            assert_eq!(world.serving(), [3, 4, 5]);
        }
    }
}

#[test]
fn those_who_meet_the_last_one_as_it_leaves_claim_what_others_held_before() {
    // Whoever is asked waits for answers, and stays that long.
    let stop = [Pass(millis(400)), Drain(0), Drain(1), Drain(2), Pass(millis(1_500))];
    for seed in 0..20 {
        let mut world = World::new(seed);
        world
            .do_all(&after_begin(&[&stop[..], &[Resume(3), Pass(millis(200)), Traffic(0), Settle]].concat()));
        assert_eq!((world.unsettled(), world.serving()), (None, vec![3, 4, 5]), "seed {seed}");
    }
}

#[test]
fn a_crash_forgets_no_more_than_the_last_backup() {
    for seed in 0..10 {
        let steps = after_begin(&[Pass(millis(800)), Kill(1), Pass(millis(1_000))]);
        let world = holds(seed, &steps, Troubles::Crashes);
        assert_eq!(world.serving(), [0, 2]);
    }
}

#[test]
fn a_crash_during_a_roll_forgets_no_more_either() {
    for seed in 0..10 {
        let steps = after_begin(&[
            Pass(millis(500)),
            Start(1),
            Pass(millis(200)),
            Drain(0),
            Pass(millis(30)),
            Kill(2),
        ]);
        holds(seed, &steps, Troubles::Crashes);
    }
}

#[test]
fn clocks_that_differ_change_no_budget() {
    for seed in 0..5 {
        let steps = after_begin(&[Skew(0, 90_000), Pass(millis(500)), Start(1), Pass(millis(500)), Drain(0)]);
        holds(seed, &steps, Troubles::None);
    }
}

#[test]
fn lead_that_a_replica_gives_up_changes_no_budget() {
    for seed in 0..20 {
        let put_right = [Skew(0, 100_000), Pass(millis(500)), Skew(0, -100_000), Pass(millis(500))];
        let steps = [&put_right[..], &[Start(1), Pass(millis(500)), Drain(0), Pass(millis(500))]].concat();
        holds(seed, &after_begin(&steps), Troubles::Lead);
    }
}

#[test]
fn a_partition_is_bounded_and_heals() {
    for seed in 0..10 {
        let steps =
            after_begin(&[Pass(millis(500)), Cut(vec![1]), Pass(millis(5_000)), Heal, Pass(millis(500))]);
        let world = holds(seed, &steps, Troubles::Partition { minority: 1, members: 3 });
        assert!(0 < world.books.degraded);
    }
}

#[test]
fn a_long_partition_is_bounded_and_heals() {
    for seed in 0..10 {
        let steps =
            after_begin(&[Pass(millis(500)), Cut(vec![1]), Pass(millis(15_000)), Heal, Pass(millis(500))]);
        holds(seed, &steps, Troubles::Partition { minority: 1, members: 3 });
    }
}

#[test]
fn two_that_began_apart_become_one_when_they_meet() {
    for seed in 0..10 {
        let steps = [Start(1), Cut(vec![0]), Start(1), Pass(millis(1_000)), Heal, Settle, Traffic(60)];
        let world = holds(seed, &steps, Troubles::None);
        assert_eq!(world.serving(), [0, 1]);
    }
}

#[test]
fn one_and_several_that_began_apart_become_one_when_they_meet() {
    let alone = [Start(5), Settle, Drain(0), Drain(1), Drain(2), Drain(3), Pass(millis(1_500))];
    // By then clocks show more, so the slots of those who begin now have changed hands more often.
    let apart =
        [Cut(vec![4]), Pass(millis(2_500)), Start(1), Pass(millis(1_000)), Start(2), Pass(millis(500))];
    let steps = [&alone[..], &apart, &[Heal, Settle, Traffic(60)]].concat();
    for seed in 0..40 {
        let world = holds(seed, &steps, Troubles::None);
        assert_eq!(world.serving(), [4, 5, 6, 7]);
    }
}
