//! What holds over any history of demands.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The terms of the clients 1 to 5, with floors of at most 5.
fn any_terms() -> impl Strategy<Value = BTreeMap<u64, QuotaTerms>> {
    prop::collection::vec((1..1_000_u32, 0..=5_u64), 5).prop_map(|each| {
        (1..).zip(each).map(|(stream, (weight, floor))| (stream, terms(weight, floor))).collect()
    })
}

fn demands() -> impl Strategy<Value = Vec<(u64, f64)>> {
    prop::collection::vec(0..120_u32, 1..6)
        .prop_map(|each| (1..).zip(each).map(|(stream, demand)| (stream, f64::from(demand))).collect())
}

/// A part of a history.
#[derive(Clone, Debug)]
enum Phase {
    /// Demands of clients, and of callers.
    Demand(Vec<(u64, f64)>, u32),
    /// Nothing is asked for.
    Idle(u32),
    /// A client asks for so much of the burst at once.
    Burst(u64, f64),
    /// Callers ask for so much of it.
    Calls(f64),
    /// The clients end, and others go on with the same demands.
    Follow(Vec<(u64, f64)>),
    /// The streams of all clients end, and each opens another one.
    Reopen(Vec<(u64, f64)>),
    /// Another process goes on, and callers come when clients have reported.
    Restart(Vec<(u64, f64)>),
    /// Another process goes on with the snapshot of the last one, after so many tenths of a second.
    Snapshot(Vec<(u64, f64)>, u32),
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        3 => (demands(), 0..40_u32).prop_map(|(demands, calls)| Phase::Demand(demands, calls)),
        3 => prop_oneof![3 => 1..20_u32, 1 => 60..80_u32].prop_map(Phase::Idle),
        4 => (1..6_u64, 0.1..2.0).prop_map(|(stream, part)| Phase::Burst(stream, part)),
        2 => (0.1..2.0).prop_map(Phase::Calls),
        1 => demands().prop_map(Phase::Follow),
        2 => demands().prop_map(Phase::Reopen),
        1 => demands().prop_map(Phase::Restart),
        2 => (demands(), prop_oneof![3 => 0..80_u32, 1 => 150..300_u32])
            .prop_map(|(demands, tenths)| Phase::Snapshot(demands, tenths)),
    ]
}

fn play(world: &mut World, phase: &Phase, burst: f64) {
    // The hits are asked for within a tenth of a second. Clients report that within 5 s.
    let at_once = |part: &f64| (part * burst).min(20_000.0) * 10.0;
    match phase {
        Phase::Demand(demands, calls) => drop(world.run(12.0, demands, f64::from(*calls))),
        Phase::Idle(seconds) => drop(world.run(f64::from(*seconds), &[], 0.0)),
        Phase::Burst(stream, part) => {
            world.run(0.1, &[(*stream, at_once(part))], 0.0);
            world.run(5.9, &[], 0.0);
            world.run(0.1, &[(*stream, at_once(part))], 0.0);
        }
        Phase::Calls(part) => {
            world.run(0.1, &[], at_once(part));
            world.run(0.9, &[], 0.0);
        }
        Phase::Follow(demands) => {
            (1..6).for_each(|stream| world.end(stream));
            world.run(6.0, demands, 5.0);
        }
        Phase::Reopen(demands) => {
            (1..6).for_each(|stream| world.reopen(stream));
            world.run(8.0, demands, 5.0);
        }
        Phase::Restart(demands) => {
            world.restart();
            world.run(6.0, demands, 0.0);
        }
        Phase::Snapshot(demands, tenths) => {
            world.restart_from_snapshot(f64::from(*tenths) / 10.0, demands);
            world.run(8.0, demands, 5.0);
        }
    }
}

/// The hits by which the bursts that are granted may be more than the whole burst. A share without room has a burst of one
/// and not of nothing, because a bucket of nothing lets nothing pass: one for each subscriber, and for callers. Clients
/// that have ended are subscribers until their shares are over, beside those that follow them.
fn one_for_each(world: &World) -> u64 {
    let subscribers = world.dividers.subscribers(world.key, 0, world.now);
    subscribers.map_or(0, |subscribers| subscribers.number as u64) + 1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rate_is_kept_over_any_history(
        per_second in 1..60_u64,
        seconds in prop::sample::select(&[1_u64, 2, 5, 20, 100, 1_000][..]),
        phases in prop::collection::vec(phase(), 2..8),
        terms in any_terms(),
    ) {
        let burst = per_second * seconds;
        let mut world = World::new(bucket(per_second, burst));
        world.terms = terms;
        for phase in &phases {
            play(&mut world, phase, burst as f64);
            let granted = world.dividers.granted().rate;
            let most = burst + one_for_each(&world);
            prop_assert!(granted.per_second <= per_second && granted.burst <= most, "{:?}", granted);
        }
        // A share whose part of the burst is below one has a burst of one. A hit comes up to a tick late.
        let (most, rate) = (world.most_beyond(per_second as f64), per_second as f64);
        prop_assert!(most <= burst as f64 + 6.0 + rate / 50.0, "{} beyond the rate, the burst is {}", most, burst);
    }

    #[test]
    fn client_with_demand_gets_something_within_two_reports(
        per_second in 10..100_u64, demands in demands(), terms in any_terms(),
    ) {
        let mut world = World::new(bucket(per_second, 20));
        world.terms = terms;
        world.run(11.0, &demands, 20.0);
        for _ in 0..2 {
            let each = world.run(11.0, &demands, 20.0);
            for ((_, demand), passed) in demands.iter().zip(&each) {
                prop_assert!(*demand < 1.0 || *passed > 0, "{:?} of {:?}", each, demands);
            }
        }
    }

    #[test]
    fn all_with_demand_get_hits_by_turns(
        per_minute in prop::sample::select(&[30_u64, 60, 120, 180][..]),
        burst in 1..20_u64,
        clients in 2..5_u64,
        calls in prop::sample::select(&[0_u32, 2, 20][..]),
    ) {
        let rate = Rate::new(NonZeroU64::new(per_minute).unwrap(), NonZeroU64::new(MINUTE).unwrap());
        let mut world = World::new(Limit::TokenBucket(TokenBucket { rate, burst, excess: Excess::Refuse }));
        let demands: Vec<(u64, f64)> = (1..=clients).map(|stream| (stream, 2.0)).collect();
        world.run(20.0, &demands, f64::from(calls));
        // Two reports for each, and one until the first demand is known.
        let reports = 2 * (clients + u64::from(calls > 0)) + 1;
        for _ in 0..3 {
            let each = world.run(5.0 * reports as f64, &demands, f64::from(calls));
            let some = if calls > 0 { &each[..] } else { &each[..demands.len()] };
            prop_assert!(some.iter().all(|passed| *passed > 0), "{:?} in {} reports", each, reports);
        }
    }

    #[test]
    fn floor_is_kept_while_all_floors_fit(
        per_second in 31..100_u64, demands in demands(), terms in any_terms(), calls in 0..100_u32,
    ) {
        // A floor of at most 5 for each of five clients, and one hit for callers.
        let mut world = World::new(bucket(per_second, 40));
        world.terms = terms.clone();
        world.run(16.0, &demands, f64::from(calls));
        for (stream, _) in demands.iter().filter(|(_, demand)| *demand > 0.0) {
            let share = world.clients[stream].per_second;
            prop_assert!(share >= terms[stream].floor as f64, "{} of {:?} with {:?}", share, demands, terms);
        }
    }

    #[test]
    fn budget_is_kept_over_any_history(
        limit in 20..400_u64,
        phases in prop::collection::vec((demands(), 0..10_u32, 0..60_u32, 0..80_u32), 1..4),
        terms in any_terms(),
    ) {
        let mut world = World::new(window(limit, MINUTE));
        world.terms = terms;
        for (demands, calls, reopened_at, down) in phases {
            let before = world.passed.len();
            let left = f64::from(60 - reopened_at);
            world.run(f64::from(reopened_at), &demands, f64::from(calls));
            // Every other time the whole process restarts.
            let down = if down % 2 == 0 { f64::from(down / 10).min(left) } else { 0.0 };
            if down > 0.0 {
                world.restart_from_snapshot(down, &demands);
            } else {
                (1..6).for_each(|stream| world.reopen(stream));
            }
            world.run(left - down, &demands, f64::from(calls));
            let sum = (world.passed.len() - before) as u64;
            prop_assert!(sum <= limit, "{} of {}", sum, limit);
        }
    }
}

/// Clients with these weights and floors.
fn world_of(per_second: u64, burst: u64, each: [(u32, u64); 5]) -> World {
    let mut world = World::new(bucket(per_second, burst));
    world.terms = (1..).zip(each).map(|(stream, (weight, floor))| (stream, terms(weight, floor))).collect();
    world
}

/// Plays the phases of a history in which more passed once than the rate and the burst. Returns what passed beyond the
/// rate.
fn most_beyond_in(per_second: u64, seconds: u64, each: [(u32, u64); 5], phases: &[Phase]) -> f64 {
    let burst = per_second * seconds;
    let mut world = world_of(per_second, burst, each);
    phases.iter().for_each(|phase| play(&mut world, phase, burst as f64));
    world.most_beyond(per_second as f64)
}

#[test]
fn burst_that_a_smaller_share_gives_back_after_it_was_paid_counts_once() {
    let each = [(558, 4), (401, 4), (229, 1), (564, 1), (803, 5)];
    let phases = [
        Phase::Burst(4, 0.7770277722239722),
        Phase::Idle(13),
        Phase::Calls(1.436817406181458),
        Phase::Demand(vec![(1, 88.0), (2, 92.0), (3, 59.0), (4, 7.0)], 14),
    ];
    let most = most_beyond_in(18, 20, each, &phases);
    assert!(most <= 360.0 + 6.0 + 0.36, "{most}");
}

#[test]
fn clients_that_come_back_for_one_another_get_no_larger_bursts() {
    let each = [(220, 4), (387, 0), (905, 4), (767, 1), (43, 5)];
    let phases = [
        Phase::Calls(1.498514738318374),
        Phase::Calls(1.4629303695375047),
        Phase::Snapshot(vec![(1, 42.0), (2, 49.0), (3, 56.0)], 11),
        Phase::Snapshot(vec![(1, 74.0), (2, 91.0), (3, 86.0)], 27),
        Phase::Calls(1.245256224914967),
    ];
    let most = most_beyond_in(26, 1_000, each, &phases);
    assert!(most <= 26_000.0 + 6.0 + 0.52, "{most}");
}

#[test]
fn clients_that_come_back_with_a_small_burst_get_no_larger_bursts() {
    let each = [(1, 3), (703, 0), (469, 0), (1, 0), (1, 0)];
    let phases = [
        Phase::Calls(1.1649123032756912),
        Phase::Snapshot(vec![(1, 35.0), (2, 8.0), (3, 50.0)], 5),
        Phase::Snapshot(vec![(1, 20.0), (2, 10.0), (3, 6.0)], 46),
    ];
    let most = most_beyond_in(14, 20, each, &phases);
    assert!(most <= 280.0 + 6.0 + 0.28, "{most}");
}

#[test]
fn clients_that_follow_others_after_a_restart_have_one_hit_each_beyond_the_burst() {
    let mut world = world_of(39, 39, [(355, 0), (274, 2), (273, 5), (310, 3), (386, 0)]);
    let phases = [
        Phase::Demand(vec![(1, 18.0), (2, 102.0), (3, 21.0), (4, 22.0)], 39),
        Phase::Restart(vec![(1, 39.0), (2, 62.0), (3, 49.0), (4, 79.0), (5, 106.0)]),
        Phase::Follow(vec![(1, 83.0), (2, 19.0), (3, 88.0), (4, 21.0), (5, 42.0)]),
    ];
    for phase in &phases {
        play(&mut world, phase, 39.0);
        let granted = world.dividers.granted().rate;
        assert!(granted.per_second <= 39 && granted.burst <= 39 + one_for_each(&world), "{granted:?}");
    }
}
