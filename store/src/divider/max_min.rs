//! Max-min fair division by weight.

/// The claim of one subscriber to hits of a limit (`wants` in Doorman).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SubscriberClaim {
    /// The most that the subscriber can use.
    pub(super) hits: f64,
    /// The weight of the subscriber if the limit is below the sum of demands. Above zero.
    pub(super) weight: f64,
    /// What the subscriber gets of its demand before any gets more than its floor.
    pub(super) floor: f64,
}

impl SubscriberClaim {
    fn floor(&self) -> f64 {
        self.floor.min(self.hits)
    }
}

/// The max-min fair parts of `limit`, in the order of `claims`. No part is above its demand, and none below its floor:
/// if floors are above the limit, each gets the same part of its floor. If the limit is below the sum of demands, what
/// is above floors is divided by weight: there is a level of which each part is the multiple by its weight, within its
/// floor and its demand.
pub(super) fn divide(limit: f64, claims: &[SubscriberClaim]) -> Vec<f64> {
    let floors: f64 = claims.iter().map(SubscriberClaim::floor).sum();
    if floors >= limit.max(0.0) {
        let retained = if floors > 0.0 { limit.max(0.0) / floors } else { 0.0 };
        return claims.iter().map(|claim| claim.floor() * retained).collect();
    }
    // At these levels a part begins to grow, and ends to.
    let begins = claims.iter().map(|claim| (claim.floor() / claim.weight, claim.weight));
    let ends = claims.iter().map(|claim| (claim.hits / claim.weight, -claim.weight));
    let mut changes: Vec<(f64, f64)> = begins.chain(ends).collect();
    changes.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut left = limit - floors;
    let mut level = 0.0;
    let mut growth = 0.0;
    for (at, change) in changes {
        let needed = growth * (at - level);
        if growth > 0.0 && needed >= left {
            level += left / growth;
            break;
        }
        (left, level, growth) = (left - needed, at, growth + change);
    }
    claims.iter().map(|claim| (level * claim.weight).clamp(claim.floor(), claim.hits)).collect()
}

/// `parts` in whole hits, whose sum is at most `limit`. The remainders of fractions are added in ones, in this `order`,
/// to parts that are below their demand.
pub(super) fn whole(limit: u64, parts: &[f64], claims: &[SubscriberClaim], order: &[usize]) -> Vec<u64> {
    // A part that rounding errors put just below a whole number is that number.
    let mut each: Vec<u64> = parts.iter().map(|part| (part + 1e-6).floor() as u64).collect();
    let given: u64 = each.iter().fold(0, |sum, part| sum.saturating_add(*part));
    let fractions: f64 = parts.iter().zip(&each).map(|(part, whole)| (part - *whole as f64).max(0.0)).sum();
    let mut left = ((fractions + 1e-6).floor() as u64).min(limit.saturating_sub(given));
    for index in order {
        if left > 0 && (each[*index] as f64) < claims[*index].hits {
            each[*index] += 1;
            left -= 1;
        }
    }
    each
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> impl Strategy<Value = Vec<SubscriberClaim>> {
        let claim =
            (0..2_000_u32, 1..5_u32, prop_oneof![Just(0), 1..100_u32]).prop_map(|(hits, weight, floor)| {
                SubscriberClaim {
                    hits: f64::from(hits) / 4.0,
                    weight: f64::from(weight),
                    floor: f64::from(floor),
                }
            });
        prop::collection::vec(claim, 1..20)
    }

    #[test]
    fn scarce_limit_is_divided_as_in_the_published_example() {
        let claims = [1_000.0, 50.0, 10.0].map(|hits| SubscriberClaim { hits, weight: 1.0, floor: 0.0 });
        assert_eq!(divide(120.0, &claims), [60.0, 50.0, 10.0]);
    }

    proptest! {
        #[test]
        fn parts_are_at_most_the_limit_and_the_wants(limit in 0..1_000_u64, claims in claims()) {
            let parts = divide(limit as f64, &claims);
            let order: Vec<usize> = (0..claims.len()).collect();
            let whole = whole(limit, &parts, &claims, &order);
            prop_assert!(parts.iter().sum::<f64>() <= limit as f64 + 1e-6);
            prop_assert!(whole.iter().sum::<u64>() <= limit);
            for (claim, (part, whole)) in claims.iter().zip(parts.iter().zip(&whole)) {
                prop_assert!(*part <= claim.hits);
                prop_assert!(*whole as f64 <= claim.hits.ceil() && (*whole as f64 - part).abs() < 1.0 + 1e-6);
            }
        }

        #[test]
        fn parts_above_floors_are_max_min_by_weight(beyond in 0..1_000_u32, claims in claims()) {
            let limit = claims.iter().map(SubscriberClaim::floor).sum::<f64>() + f64::from(beyond);
            let parts = divide(limit, &claims);
            let all: f64 = claims.iter().map(|claim| claim.hits).sum();
            // The whole limit is divided unless all demands are met.
            prop_assert!((parts.iter().sum::<f64>() - all.min(limit)).abs() < 1e-6);
            for (one, part) in claims.iter().zip(&parts) {
                prop_assert!(*part >= one.floor() - 1e-6);
                if *part < one.hits - 1e-6 {
                    // A part below its demand is, for its weight, at least as large as any other above its floor.
                    for (other, others) in claims.iter().zip(&parts) {
                        prop_assert!(
                            others / other.weight <= part / one.weight + 1e-6 || *others <= other.floor() + 1e-6
                        );
                    }
                }
            }
        }

        #[test]
        fn floors_above_the_limit_are_cut_in_proportion(retained in 0.0..1.0_f64, claims in claims()) {
            let limit = claims.iter().map(SubscriberClaim::floor).sum::<f64>() * retained;
            for (claim, part) in claims.iter().zip(divide(limit, &claims)) {
                prop_assert!((part - claim.floor() * retained).abs() < 1e-6);
            }
        }

        #[test]
        fn part_grows_with_its_want(limit in 1..1_000_u64, claims in claims(), more in 1..500_u32) {
            let before = divide(limit as f64, &claims)[0];
            let mut greater = claims.clone();
            greater[0].hits += f64::from(more);
            prop_assert!(divide(limit as f64, &greater)[0] >= before - 1e-6);
        }
    }
}
