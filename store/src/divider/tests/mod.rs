//! Tests of the divider, over histories of reports, with a counter in memory beside it.

use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, QuotaTerms, Rate, TokenBucket, Window},
    time::SECOND,
};

use crate::{OwnTerms, operation::CounterOperation, side_data::own::OwnLimitChange};

mod laws;
mod world;

use world::{START, World, id};

const MINUTE: u64 = 60 * SECOND;

fn bucket(per_second: u64, burst: u64) -> Limit {
    let one = NonZeroU64::new(SECOND).unwrap();
    let rate = Rate::new(NonZeroU64::new(per_second).unwrap(), one);
    Limit::TokenBucket(TokenBucket { rate, burst, excess: Excess::Refuse })
}

fn window(limit: u64, nanos: u64) -> Limit {
    Limit::FixedWindow(FixedWindow {
        limit,
        window: Window::from_nanos(nanos).unwrap(),
        excess: Excess::Refuse,
    })
}

#[test]
fn rate_is_divided_by_demand_and_follows_a_shift() {
    let mut world = World::new(bucket(100, 20));
    world.run(10.0, &[(1, 150.0), (2, 60.0), (3, 5.0)], 0.0);
    let each = world.run(10.0, &[(1, 150.0), (2, 60.0), (3, 5.0)], 0.0);
    assert!(each.iter().sum::<u64>() >= 950, "{each:?}");
    assert!(each[2] >= 45 && each[0].abs_diff(each[1]) <= 60, "{each:?}");
    world.run(10.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    assert!(each.iter().sum::<u64>() >= 950, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        // One more for each client whose part of the burst is below one.
        assert!(most <= 20 + 100 * seconds + 3, "{most} in {seconds} s");
    }
}

#[test]
fn own_limit_of_a_key_is_divided_in_place_of_that_of_its_rule() {
    for limit in [bucket(100, 20), window(1_000, 10 * SECOND)] {
        let smaller = match &limit {
            Limit::TokenBucket(_) => bucket(20, 20),
            _window => window(200, 10 * SECOND),
        };
        let mut world = World::new(limit.clone());
        let demands = [(1, 150.0), (2, 150.0)];
        world.run(20.0, &demands, 0.0);
        let terms = Some(OwnTerms { limit: smaller, requests_per_unit: 20 });
        let change = OwnLimitChange { terms, expires_after: None, record: Box::default(), replaces: None };
        let operation = CounterOperation::SetOwnLimit(Box::new(change));
        world.memory.operate(world.key, &limit, &operation, world.now).unwrap();
        world.run(20.0, &demands, 0.0);
        let passed: u64 = world.run(20.0, &demands, 0.0).iter().sum();
        assert!((340..=420).contains(&passed), "{passed} of 400 by {limit:?}");
    }
}

#[test]
fn time_until_shares_are_adjusted_is_that_of_the_slowest() {
    let mut world = World::new(bucket(100, 20));
    world.run(20.0, &[(1, 150.0)], 0.0);
    let counted = |world: &World| world.dividers.stats().convergence.buckets();
    let before = counted(&world);
    assert!(before.count > 0 && before.sum < 0.1, "nothing waits for others: {before:?}");
    // The newcomer waits until the smaller share of the other one is in force.
    world.run(3.0, &[(1, 150.0), (2, 50.0)], 0.0);
    let shared = counted(&world);
    assert!((0.45..0.65).contains(&(shared.sum - before.sum)), "{shared:?}");
    // The share of a client that has gone is in force for its time.
    world.run(20.0, &[(1, 150.0), (2, 50.0)], 0.0);
    let (before, since) = (counted(&world), world.now);
    world.leave(2);
    world.run(30.0, &[(1, 150.0)], 0.0);
    let after = counted(&world);
    assert!(after.count > before.count, "{:?} since {since:?}", after);
    assert!((5.0..=16.5).contains(&(after.sum - before.sum)), "{:?}", after.sum - before.sum);
}

#[test]
fn demand_beyond_a_share_divides_again_while_other_shares_are_ample() {
    let mut world = World::new(bucket(1_000, 200));
    let demands = [(1, 100.0), (2, 100.0), (3, 100.0)];
    world.run(30.0, &demands, 0.0);
    let run = |clients: &[(u64, f64)], world: &mut World| {
        world.run(11.0, clients, 0.0);
        let granted = world.dividers.granted().rate;
        assert!(granted.per_second <= 1_000 && granted.burst <= 203, "{granted:?}");
        world.run(5.0, clients, 0.0)
    };
    // Within its share a client gets all that it asks for, and so does one that asks for most of the rate.
    for demands in [[(1, 120.0), (2, 80.0), (3, 0.0)], [(1, 700.0), (2, 80.0), (3, 5.0)]] {
        let each = run(&demands, &mut world);
        for ((_, demand), passed) in demands.iter().zip(&each) {
            assert!(*passed as f64 >= 0.98 * demand * 5.0, "{each:?} of {demands:?}");
        }
    }
}

#[test]
fn demand_beyond_a_scarce_share_leaves_it_until_others_need_less() {
    let mut world = World::new(bucket(100, 20));
    let shares = |world: &World| [1, 2, 3, 4].map(|stream| world.clients[&stream].per_second);
    world.run(20.0, &[(1, 60.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    let before = shares(&world);
    for other in [70.0, 150.0, 50.0] {
        world.run(5.0, &[(1, other), (2, other + 10.0), (3, 120.0), (4, 5.0)], 0.0);
        assert_eq!(shares(&world), before);
    }
    let each = world.run(12.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    assert!(each[0] >= 118, "{each:?}");
    let each = world.run(10.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    assert!(each[1] >= 380 && each[2] >= 380 && each[3] >= 49, "{each:?}");
    // Callers get their part of a limit that was settled.
    world.run(12.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 20.0);
    let each = world.run(10.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 20.0);
    assert!(each[4] >= 190 && each.iter().sum::<u64>() >= 950, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 4, "{most} in {seconds} s");
    }
}

#[test]
fn subscribers_are_listed_by_demand_until_their_parts_end() {
    let mut world = World::new(bucket(100, 20));
    assert_eq!(world.dividers.subscribers(world.key, 2, world.now), None);
    world.run(20.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    world.leave(3);
    let listed = world.dividers.subscribers(world.key, 2, world.now).unwrap();
    assert_eq!(listed.number, 3);
    let [first, second] = listed.first[..] else { panic!("{listed:?}") };
    assert_eq!((first.id.stream, first.has_ended), (3, true));
    assert_eq!((second.id.stream, second.has_ended), (2, false));
    assert!((145.0..=155.0).contains(&first.demand), "{first:?}");
    assert!(
        matches!(first.part, LimitPart::Share(rate) if (40..=60).contains(&rate.per_second)),
        "{first:?}"
    );
    world.leave(2);
    world.run(20.0, &[(1, 5.0)], 3.0);
    let listed = world.dividers.subscribers(world.key, 2, world.now).unwrap();
    assert_eq!((listed.number, listed.first[0].id.stream), (1, 1));
    assert!((2.0..=4.0).contains(&listed.callers), "{listed:?}");
}

#[test]
fn single_client_gets_the_whole_rate_after_its_first_report() {
    let mut world = World::new(bucket(100, 20));
    let first = world.run(4.0, &[(1, 150.0)], 0.0)[0];
    assert!((190..=230).contains(&first), "{first}");
    world.run(2.0, &[(1, 150.0)], 0.0);
    let then = world.run(10.0, &[(1, 150.0)], 0.0)[0];
    assert!(then >= 990, "{then}");
}

#[test]
fn rate_is_shared_by_clients_and_callers() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0)], 150.0);
    let each = world.run(20.0, &[(1, 150.0)], 150.0);
    let sum: u64 = each.iter().sum();
    assert!((1_800..=2_020).contains(&sum) && each[0] >= 800 && each[1] >= 800, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 1, "{most} in {seconds} s");
    }
}

#[test]
fn share_of_ended_client_returns_after_its_time() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0), (2, 150.0)], 0.0);
    world.leave(1);
    let before = world.run(10.0, &[(2, 150.0)], 0.0)[0];
    assert!(before <= 600, "{before}");
    world.run(8.0, &[(2, 150.0)], 0.0);
    let after = world.run(10.0, &[(2, 150.0)], 0.0)[0];
    assert!(after >= 950, "{after}");
}

fn terms(weight: u32, floor: u64) -> QuotaTerms {
    QuotaTerms { weight: NonZeroU32::new(weight).unwrap(), floor }
}

#[test]
fn scarce_rate_is_divided_by_weight() {
    let mut world = World::new(bucket(100, 20));
    world.terms = [(1, terms(3, 0)), (2, terms(1, 0))].into();
    world.run(12.0, &[(1, 150.0), (2, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 150.0), (2, 150.0)], 0.0);
    assert!(each[0].abs_diff(750) <= 40 && each[1].abs_diff(250) <= 40, "{each:?}");
    // What the heavier one does not need is for the other.
    world.run(12.0, &[(1, 20.0), (2, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 20.0), (2, 150.0)], 0.0);
    assert!(each[0] >= 190 && each[1] >= 700, "{each:?}");
}

#[test]
fn floor_of_idle_client_passes_at_once() {
    let mut world = World::new(bucket(100, 20));
    world.terms = [(1, terms(1, 30))].into();
    world.run(12.0, &[(1, 1.0), (2, 200.0)], 0.0);
    world.run(20.0, &[(1, 0.0), (2, 200.0)], 0.0);
    let each = world.run(4.0, &[(1, 60.0), (2, 200.0)], 0.0);
    assert!(each[0] >= 4 * 30 - 5, "{each:?}");
}

#[test]
fn budget_is_divided_by_weight() {
    let mut world = World::new(window(500, MINUTE));
    world.terms = [(1, terms(4, 0)), (2, terms(1, 0))].into();
    let each = world.run(59.9, &[(1, 100.0), (2, 100.0)], 0.0);
    assert_eq!(each.iter().sum::<u64>(), 500, "{each:?}");
    assert!(each[0] > 2 * each[1], "{each:?}");
}

#[test]
fn floor_of_budget_is_kept_for_a_client_that_waits() {
    let mut world = World::new(window(500, MINUTE));
    world.terms = [(1, terms(1, 100))].into();
    world.run(1.0, &[(1, 1.0)], 0.0);
    world.run(40.0, &[(1, 0.0), (2, 100.0), (3, 100.0)], 0.0);
    let each = world.run(18.9, &[(1, 20.0), (2, 100.0), (3, 100.0)], 0.0);
    assert!(each[0] >= 100 - 1, "{each:?}");
    assert_eq!(world.passed.len(), 500);
}

#[test]
fn client_goes_on_with_its_share_over_another_stream() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0), (2, 20.0)], 0.0);
    world.resume(1, 3);
    let each = world.run(5.0, &[(3, 150.0), (2, 20.0)], 0.0);
    assert!(each[0] >= 350 && each[1] >= 90, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 2, "{most} in {seconds} s");
    }
}

/// Instants move with the division to another clock, so that it is the one that this clock would have made.
#[test]
fn division_is_the_same_under_the_clock_of_another_replica() {
    // Windows are the same for all replicas.
    const AHEAD: u64 = 7 * 1_440 * MINUTE;
    for limit in [bucket(100, 20), window(6_000, MINUTE)] {
        let run = |begun| {
            let mut world = World::starting_at(begun, limit.clone());
            world.run(12.0, &[(1, 30.0), (2, 150.0)], 5.0);
            world.leave(2);
            let slot = world.memory.slot(world.key);
            world.dividers.learn(slot, world.now);
            (world.dividers.take_slot(slot, world.now), slot, world.now)
        };
        let ((sent, slot, _), (expected, _, now)) = (run(START), run(START.plus(AHEAD)));
        let sent: SlotDivisions = postcard::from_bytes(&postcard::to_stdvec(&sent).unwrap()).unwrap();
        let other = Dividers::new(World::new(limit).memory);
        other.add_slot(slot, sent, now);
        assert_eq!(other.divisions_of(slot, now), expected);
    }
}

#[test]
fn division_goes_on_in_another_replica() {
    for limit in [bucket(100, 20), window(6_000, MINUTE)] {
        let mut world = World::new(limit);
        let demands = [(1, 30.0), (2, 150.0)];
        world.run(12.0, &demands, 5.0);
        let slot = world.memory.slot(world.key);
        let bytes = postcard::to_stdvec(&world.dividers.take_slot(slot, world.now)).unwrap();
        let divisions: SlotDivisions = postcard::from_bytes(&bytes).unwrap();
        assert!(world.dividers.is_empty() && divisions.subscribers() == 2);
        world.memory.grants().end(world.key, world.now);
        world.dividers = Dividers::new(world.memory.clone());
        world.dividers.add_slot(slot, divisions, world.now);
        let each = world.run(10.0, &demands, 5.0);
        world.run(37.9, &demands, 5.0);
        if world.limit.hit_rate().is_some() {
            assert!((900..=1_020).contains(&each.iter().sum::<u64>()), "{each:?}");
            let most = world.most_in(10 * SECOND);
            assert!(most <= 20 + 1_000 + 2, "{most} in 10 s");
        } else {
            assert!(each[0] >= 290 && each[1] >= 1_400, "{each:?}");
            assert!((5_950..=6_000).contains(&world.passed.len()), "{}", world.passed.len());
        }
    }
}

#[test]
fn hits_of_lost_reports_are_charged_with_the_next_one() {
    let world = World::new(window(500, MINUTE));
    let report = |usage, after: u64| {
        world.dividers.report(&world.of(1, DividerReport::Usage(usage)), START.plus(after * SECOND));
        world.memory.peek(world.key, &world.limit, START.plus(after * SECOND)).peek.remaining
    };
    assert_eq!(report(SubscriberUsage { denied: 1, ..SubscriberUsage::default() }, 1), 500);
    // A report of 15 hits is lost. The refusal proves that nothing is left of the slice.
    assert_eq!(report(SubscriberUsage { allowed: 2, denied: 0, allowed_before: 15 }, 11), 483);
    assert_eq!(report(SubscriberUsage { allowed: 3, denied: 1, allowed_before: 17 }, 16), 480);
}

#[test]
fn division_moves_between_clocks() {
    let mut divisions = SlotDivisions::default();
    let world = World::new(bucket(100, 20));
    world.dividers.report(
        &world.of(1, DividerReport::Usage(SubscriberUsage { allowed: 1, ..SubscriberUsage::default() })),
        START,
    );
    let slot = world.memory.slot(world.key);
    divisions.extend(world.dividers.take_slot(slot, START));
    world.dividers.add_slot(slot, divisions, START.plus(MINUTE));
    // As much of its time is left as before.
    world.dividers.turn(START.plus(MINUTE + 15 * SECOND), |_| true);
    assert!(!world.dividers.is_empty());
    world.dividers.turn(START.plus(MINUTE + 17 * SECOND), |_| true);
    assert!(world.dividers.is_empty());
}

#[test]
fn budget_is_used_exactly_in_a_fresh_window() {
    let mut world = World::new(window(500, MINUTE));
    let each = world.run(59.9, &[(1, 14.0), (2, 6.0), (3, 1.5)], 0.0);
    assert_eq!(each.iter().sum::<u64>(), 500, "{each:?}");
}

#[test]
fn budget_is_used_while_streams_end() {
    let (mut world, demands) = (World::new(window(500, MINUTE)), [(1, 14.0), (2, 6.0), (3, 1.5)]);
    for _ in 0..3 {
        world.run(9.0, &demands, 0.0);
        (1..4).for_each(|stream| world.reopen(stream));
    }
    world.run(32.9, &demands, 0.0);
    assert!((475..=500).contains(&world.passed.len()), "{}", world.passed.len());
}

/// The streams of all clients end at one instant, at another point between their reports each time.
#[test]
fn budget_is_used_over_a_restart() {
    let demands = [(1, 14.0), (2, 6.0), (3, 1.5)];
    // What is left of the slice of a client whose report is lost meanwhile is not used.
    for (down, at_least) in [(0.0, 460), (0.3, 450), (1.0, 390)] {
        let mut each = vec![];
        for step in 0..40 {
            let after = 2.5 + f64::from(step) * 0.73;
            let mut world = World::new(window(500, MINUTE));
            world.run(1.0, &demands[..1], 0.0);
            world.run(1.5, &demands[..2], 0.0);
            world.run(after, &demands, 0.0);
            world.restart_from_snapshot(down, &demands);
            world.run(57.4 - after - down, &demands, 0.0);
            each.push(world.passed.len());
        }
        let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
        let mean = each.iter().sum::<usize>() / each.len();
        println!("{least} to {most} of 500, {mean} in the mean, with {down} s without a server");
        assert!(*least >= at_least && mean >= 475 && *most <= 500, "{each:?}");
    }
}

#[test]
fn new_client_takes_no_share_of_one_that_has_ended() {
    let mut world = World::new(bucket(5, 100));
    world.run(8.0, &[(1, 10.0)], 5.0);
    // The first report of the second client is lost.
    world.restart_from_snapshot(2.6, &[(1, 2.0), (2, 9.0)]);
    world.run(8.0, &[(1, 2.0), (2, 9.0)], 5.0);
    let most = world.most_beyond(5.0);
    assert!(most <= 103.0, "{most} beyond the rate");
}

/// Each client is taken for the other one if the share is chosen by what has passed.
#[test]
fn clients_that_come_back_with_other_demands_keep_the_rate() {
    let mut world = World::new(bucket(11, 55));
    world.terms = [(1, terms(368, 0)), (2, terms(10, 4))].into();
    world.run(8.0, &[(1, 11.0), (2, 4.0)], 5.0);
    world.restart_from_snapshot(2.1, &[(1, 5.0), (2, 13.0)]);
    world.run(8.0, &[(1, 5.0), (2, 13.0)], 5.0);
    let most = world.most_beyond(11.0);
    assert!(most <= 55.0 + 3.0, "{most} beyond the rate");
}

/// The next process does not know what the client has. It must not keep that beside what callers get.
#[test]
fn client_that_was_idle_over_a_restart_keeps_the_rate() {
    let mut world = World::new(bucket(6, 6));
    world.run(12.0, &[(1, 1.0)], 0.0);
    world.restart();
    world.run(6.0, &[(1, 0.0)], 0.0);
    world.reopen(1);
    world.run(8.0, &[(1, 3.0)], 5.0);
    let most = world.most_beyond(6.0);
    assert!(most <= 6.0 + 3.0, "{most} beyond the rate");
}

/// After the restart the whole rate would have filled the counter, but a part of it was granted.
#[test]
fn callers_get_their_part_of_the_rate_over_a_restart() {
    let mut world = World::new(bucket(13, 26));
    world.run(12.0, &[(1, 11.0)], 7.0);
    world.restart_from_snapshot(1.1, &[(1, 18.0)]);
    world.run(8.0, &[(1, 18.0)], 5.0);
    let most = world.most_beyond(13.0);
    assert!(most <= 26.0 + 3.0, "{most} beyond the rate");
}

#[test]
fn budget_is_never_exceeded_in_any_window() {
    let mut world = World::new(window(500, MINUTE));
    for minute in 0..5 {
        let demands = [(1, 14.0), (2 + minute % 2, 30.0), (7, 1.5)];
        let sum: u64 = world.run(60.0, &demands, 3.0).iter().sum();
        assert!((400..=500).contains(&sum), "{sum} in minute {minute}");
    }
}

#[test]
fn budget_below_the_demand_refuses_only_the_first_requests() {
    let mut world = World::new(window(500, MINUTE));
    let each = world.run(60.0, &[(1, 3.0), (2, 2.0), (3, 1.5)], 0.0);
    assert!(each.iter().sum::<u64>() >= 385 - 10, "{each:?}");
}

#[test]
fn many_clients_use_a_limit_and_do_not_exceed_it() {
    // So many that most reports wait for the next division. Each has a bucket of one, which passes every second request.
    let demands: Vec<(u64, f64)> = (1..=100).map(|stream| (stream, 4.0)).collect();
    let mut world = World::new(bucket(200, 20));
    world.run(10.0, &demands, 0.0);
    let each = world.run(10.0, &demands, 0.0);
    assert!(each.iter().sum::<u64>() >= 1_700, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 200 * seconds + 100, "{most} in {seconds} s");
    }
    let mut world = World::new(window(1_000, MINUTE));
    let passed: u64 = world.run(59.9, &demands, 20.0).iter().sum();
    assert!((800..=1_000).contains(&passed), "{passed}");
}

#[test]
fn slow_rate_goes_from_one_client_to_the_next() {
    let half = Rate::new(NonZeroU64::new(30).unwrap(), NonZeroU64::new(MINUTE).unwrap());
    let limit = Limit::TokenBucket(TokenBucket { rate: half, burst: 10, excess: Excess::Refuse });
    let mut world = World::new(limit);
    let each = world.run(120.0, &[(1, 1.0), (2, 1.0), (3, 1.0)], 0.0);
    let sum: u64 = each.iter().sum();
    assert!((50..=70).contains(&sum) && each[..3].iter().all(|one| *one >= 12), "{each:?}");
    for seconds in [1, 10, 60] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 10 + seconds / 2, "{most} in {seconds} s");
    }
}

#[test]
fn divider_without_its_ledger_grants_nothing_unknown() {
    let mut world = World::new(window(500, MINUTE));
    world.run(20.0, &[(1, 10.0), (2, 10.0)], 0.0);
    // Another process takes over: the counter is known, the grants are not.
    world.memory.grants().end(world.key, world.now);
    world.dividers = Dividers::new(world.memory.clone()).after_restart(world.now);
    let sum: u64 = world.run(39.9, &[(1, 10.0), (2, 10.0)], 0.0).iter().sum();
    let before = world.passed.len() as u64 - sum;
    assert!(before + sum <= 500, "{before} + {sum}");
}

#[test]
fn shares_of_merged_divisions_are_in_force_until_clients_report() {
    let at = |seconds: f64| START.after(Duration::from_secs_f64(seconds));
    let view = CounterView { free: 20, free_after: None, requested: 0 };
    let report = |divider: &mut Divider, stream, seconds: f64| {
        let usage = SubscriberUsage { allowed: 250, denied: 50, ..SubscriberUsage::default() };
        let report = DividerReport::Usage(usage);
        divider.report(id(stream), QuotaTerms::default(), report, view, at(seconds));
    };
    // The client has the whole rate, or half of it.
    let divider = |streams: u64, last_report: f64| {
        let mut divider = Divider::new(bucket(100, 20), Timestamp::EPOCH, at(0.0));
        for seconds in [1.0, 6.0, 11.0, last_report] {
            (1..=streams).for_each(|stream| report(&mut divider, stream, seconds));
        }
        divider
    };
    let share = |divider: &Divider| {
        let of_first = |each: &&SubscriberState| each.id == id(1);
        let all = divider.subscribers(9, at(12.5)).first;
        let LimitPart::Share(rate) = all.iter().find(of_first).unwrap().part else { panic!("a slice") };
        rate.per_second
    };
    let held = |divider: &mut Divider| {
        divider.turn(view, at(14.0));
        divider.granted().rate.per_second
    };
    for (half, whole) in [(11.1, 12.0), (12.0, 11.1)] {
        let (mut merged, other) = (divider(2, half), divider(1, whole));
        assert_eq!((share(&merged), share(&other)), (50, 100));
        merged.add(other, at(12.5));
        let last = if half < whole { 100 } else { 50 };
        assert_eq!(share(&merged), last, "that of the last report");
        assert!(held(&mut merged) >= 150, "the client may have the other one");
        (1..=2).for_each(|stream| report(&mut merged, stream, 16.0));
        merged.turn(view, at(20.0));
        assert_eq!((share(&merged), merged.granted().rate.per_second), (50, 100), "after reports");
    }
}

/// What is left of the rate has paid for the tokens, at the counter that was divided then.
#[test]
fn merged_division_returns_no_tokens_of_another_counter() {
    let at = |seconds: f64| START.after(Duration::from_secs_f64(seconds));
    let report = |divider: &mut Divider, stream, allowed: u64, seconds: f64| {
        // Callers leave a part of the rate, which pays the counter.
        let view = CounterView { free: 200, free_after: None, requested: 100 };
        let report = DividerReport::Usage(SubscriberUsage { allowed, ..SubscriberUsage::default() });
        divider.report(id(stream), QuotaTerms::default(), report, view, at(seconds)).turn.returned
    };
    let mut divider = Divider::new(bucket(100, 200), Timestamp::EPOCH, at(0.0));
    for seconds in [1.0, 6.0, 11.0, 16.0] {
        report(&mut divider, 1, 50, seconds);
    }
    // The first client loses a part of its share, and with it tokens.
    report(&mut divider, 2, 400, 17.0);
    let of_one = report(&mut divider.clone(), 1, 0, 18.1);
    let mut merged = Divider::new(bucket(100, 200), Timestamp::EPOCH, at(17.1));
    merged.add(divider, at(17.1));
    let of_merged = report(&mut merged, 1, 0, 18.1);
    assert_eq!((of_one, of_merged), (0, 0));
}

#[test]
fn new_clients_after_a_restart_share_little_of_the_burst() {
    let at = |seconds: f64| START.after(Duration::from_secs_f64(seconds));
    let view = CounterView { free: 100_000, free_after: None, requested: 0 };
    let mut divider = Divider::new(bucket(10_000, 100_000), at(16.0), at(0.0));
    for seconds in [1.0, 6.0, 11.0] {
        for stream in 1..=3 {
            let report =
                DividerReport::Usage(SubscriberUsage { denied: 5_000, ..SubscriberUsage::default() });
            divider.report(id(stream), QuotaTerms::default(), report, view, at(seconds));
        }
    }
    let bursts: Vec<u64> = divider.subscribers(9, at(11.0)).first.iter().map(burst_of).collect();
    assert!(bursts.len() == 3 && bursts.iter().sum::<u64>() <= 10_000 / 10 + 2, "{bursts:?}");
}

fn burst_of(subscriber: &SubscriberState) -> u64 {
    match subscriber.part {
        LimitPart::Share(rate) => rate.burst,
        LimitPart::Slice { .. } => panic!("a slice"),
    }
}

#[test]
fn slice_that_may_have_ended_is_not_renewed() {
    let world = World::new(window(500, MINUTE));
    let id = id(1);
    let report = |after: u64| {
        let usage = DividerReport::Usage(SubscriberUsage { denied: 1, ..SubscriberUsage::default() });
        world.dividers.report(&world.of(1, usage), START.plus(after * SECOND))
    };
    assert_eq!(report(1), [(id, Assignment::Slice(20))]);
    assert_eq!(report(11), [(id, Assignment::Renewal(20))]);
    assert_eq!(report(26), [(id, Assignment::Slice(20))]);
    // All of the first slice counts as used.
    let free = |now| world.memory.peek(world.key, &world.limit, now).peek.remaining;
    assert_eq!(free(START.plus(26 * SECOND)), 480);
    let listed = world.dividers.subscribers(world.key, 9, START.plus(26 * SECOND)).unwrap();
    assert_eq!(listed.first[0].part, LimitPart::Slice { hits: 20, left: 20 });
}

/// Replicas of one version, and a process after another one, read what the other has written.
#[test]
fn encoding_of_divisions_is_stable() {
    let encoded = |limit: Limit| {
        let mut world = World::new(limit);
        world.run(11.0, &[(1, 30.0)], 5.0);
        let bytes = postcard::to_stdvec(&world.dividers.take_all(world.now)).unwrap();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    // If one of these changes, so does the version of the protocol between replicas.
    assert_eq!(
        encoded(bucket(100, 20)),
        concat!(
            "01e31f80cfc29980f2d6eb180001a101e2ef84a6b9c0ba9dfe01e6d39aecd0f1e5fbde0104648094ebdc031400",
            "0064140100010001000000000000003e40010080efe0cffcf1d6eb180000000000003e40010080efe0cffcf1d6",
            "eb18ac020056110056110080efe0cffcf1d6eb18000080d5feedebf1d6eb1880af939db8f2d6eb1880a7b1afd7",
            "f1d6eb180001000000000000001440010080efe0cffcf1d6eb1801808bc9ffe9f1d6eb18000000000000",
        )
    );
    assert_eq!(
        encoded(window(500, MINUTE)),
        concat!(
            "01e31f80cfc29980f2d6eb1800019001e2ef84a6b9c0ba9dfe01e6d39aecd0f1e5fbde0101f4030080b09dc2df",
            "010001f4030100010001000000000000003e40010080efe0cffcf1d6eb18aa0180efe0cffcf1d6eb18aa01c203",
            "018001c20280efe0cffcf1d6eb180001000080efe0cffcf1d6eb1880af939db8f2d6eb18000000000000001440",
            "010080efe0cffcf1d6eb180180efe0cffcf1d6eb1800000000",
        )
    );
}
