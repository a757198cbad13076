//! Max-min fair division by weight.

/// The demand of one subscriber for hits of a limit (Doorman's `wants`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Want {
    /// The most that the subscriber can use.
    pub(super) hits: f64,
    /// Its weight if the limit is below the sum of demands. Above zero.
    pub(super) weight: f64,
}

/// The max-min fair parts of `limit`, in the order of `wants`. No part is above its demand. If the
/// limit is below the sum of demands, it is divided by weight.
pub(super) fn divide(limit: f64, wants: &[Want]) -> Vec<f64> {
    let level = |want: &Want| want.hits / want.weight;
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|one, other| level(&wants[*one]).total_cmp(&level(&wants[*other])));
    let (mut left, mut weights) = (limit.max(0.0), wants.iter().map(|want| want.weight).sum::<f64>());
    let mut parts = vec![0.0; wants.len()];
    for index in order {
        let Want { hits, weight } = wants[index];
        let fair = if weights > weight { left * weight / weights } else { left };
        parts[index] = hits.min(fair);
        left = (left - parts[index]).max(0.0);
        weights -= weight;
    }
    parts
}

/// These parts in whole hits, whose sum is at most `limit`. The remainders of fractions are added in ones, in this
/// `order`, to parts that are below their demand.
pub(super) fn whole(limit: u64, parts: &[f64], wants: &[Want], order: &[usize]) -> Vec<u64> {
    // A part that rounding errors put just below a whole number is that number.
    let mut each: Vec<u64> = parts.iter().map(|part| (part + 1e-6).floor() as u64).collect();
    let given: u64 = each.iter().fold(0, |sum, part| sum.saturating_add(*part));
    let fractions: f64 = parts.iter().zip(&each).map(|(part, whole)| (part - *whole as f64).max(0.0)).sum();
    let mut left = ((fractions + 1e-6).floor() as u64).min(limit.saturating_sub(given));
    for index in order {
        if left > 0 && (each[*index] as f64) < wants[*index].hits {
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

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let want = (0..2_000_u32, 1..5_u32)
            .prop_map(|(hits, weight)| Want { hits: f64::from(hits) / 4.0, weight: f64::from(weight) });
        prop::collection::vec(want, 1..20)
    }

    #[test]
    fn scarce_limit_is_divided_as_in_the_published_example() {
        let wants = [1_000.0, 50.0, 10.0].map(|hits| Want { hits, weight: 1.0 });
        assert_eq!(divide(120.0, &wants), [60.0, 50.0, 10.0]);
    }

    proptest! {
        #[test]
        fn parts_are_at_most_the_limit_and_the_wants(limit in 0..1_000_u64, wants in wants()) {
            let parts = divide(limit as f64, &wants);
            let order: Vec<usize> = (0..wants.len()).collect();
            let whole = whole(limit, &parts, &wants, &order);
            prop_assert!(parts.iter().sum::<f64>() <= limit as f64 + 1e-6);
            prop_assert!(whole.iter().sum::<u64>() <= limit);
            for (want, (part, whole)) in wants.iter().zip(parts.iter().zip(&whole)) {
                prop_assert!(*part <= want.hits);
                prop_assert!(*whole as f64 <= want.hits.ceil() && (*whole as f64 - part).abs() < 1.0 + 1e-6);
            }
        }

        #[test]
        fn parts_are_max_min_by_weight(limit in 1..1_000_u64, wants in wants()) {
            let parts = divide(limit as f64, &wants);
            let all: f64 = wants.iter().map(|want| want.hits).sum();
            // The whole limit is divided unless all demands are met.
            prop_assert!((parts.iter().sum::<f64>() - all.min(limit as f64)).abs() < 1e-6);
            for (one, part) in wants.iter().zip(&parts) {
                if *part < one.hits - 1e-6 {
                    // A part below its demand is, for its weight, at least as large as any other.
                    for (other, others) in wants.iter().zip(&parts) {
                        prop_assert!(others / other.weight <= part / one.weight + 1e-6);
                    }
                }
            }
        }

        #[test]
        fn part_grows_with_its_want(limit in 1..1_000_u64, wants in wants(), more in 1..500_u32) {
            let before = divide(limit as f64, &wants)[0];
            let mut greater = wants.clone();
            greater[0].hits += f64::from(more);
            prop_assert!(divide(limit as f64, &greater)[0] >= before - 1e-6);
        }
    }
}
