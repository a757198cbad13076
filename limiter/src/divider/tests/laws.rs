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

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rate_is_kept_over_any_history(
        per_second in 10..100_u64,
        burst in 6..30_u64,
        phases in prop::collection::vec((demands(), 0..40_u32), 1..4),
        terms in any_terms(),
    ) {
        let mut world = World::new(bucket(per_second, burst));
        world.terms = terms;
        for (demands, calls) in phases {
            world.run(12.0, &demands, f64::from(calls));
            let granted = world.dividers.granted().rate;
            prop_assert!(granted.per_second <= per_second && granted.burst <= burst + 6, "{:?}", granted);
        }
        for seconds in [1, 5, 10] {
            let most = world.most_in(seconds * SECOND);
            // A share whose part of the burst is below one has a burst of one.
            prop_assert!(most <= burst + per_second * seconds + 6, "{} in {} s", most, seconds);
        }
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
        phases in prop::collection::vec((demands(), 0..10_u32), 1..4),
        terms in any_terms(),
    ) {
        let mut world = World::new(window(limit, MINUTE));
        world.terms = terms;
        for (demands, calls) in phases {
            let sum: u64 = world.run(60.0, &demands, f64::from(calls)).iter().sum();
            prop_assert!(sum <= limit, "{} of {}", sum, limit);
        }
    }
}
