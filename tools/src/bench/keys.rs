//! Selects the key and the hits of each request.

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Zipf};

/// A sequence of key numbers, from 0.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    number: u64,
    order: KeyOrder,
}

#[derive(Clone, Debug)]
enum KeyOrder {
    /// Every key once before any repeats, scattered so that caches cannot predict the next.
    Round { at: u64, step: u64 },
    /// Zipf's law: the frequency of the key of rank r is proportional to 1 / r^skew; rank 1 is key 0.
    Skewed { law: Zipf<f64>, rng: Box<SmallRng> },
}

impl Keys {
    /// `number` keys, at least one. A `skew` of 0 selects all equally often. Fails for an invalid skew.
    pub(crate) fn new(number: u64, skew: f64, seed: u64) -> Result<Self, rand_distr::ZipfError> {
        let law = Zipf::new(number as f64, skew)?;
        let order = if skew == 0.0 {
            KeyOrder::Round { at: 0, step: stride(number) }
        } else {
            KeyOrder::Skewed { law, rng: Box::new(SmallRng::seed_from_u64(seed)) }
        };
        Ok(Self { number, order })
    }

    /// The key of the next request.
    pub(crate) fn next(&mut self) -> u64 {
        match &mut self.order {
            KeyOrder::Round { at, step } => {
                let key = *at;
                // No overflow: both are less than `number`, which is at most `KEYS_MAX`.
                *at = (key + *step) % self.number;
                key
            }
            // Ranks are integers from 1 to `number`.
            KeyOrder::Skewed { law, rng } => law.sample(rng) as u64 - 1,
        }
    }
}

/// The maximum number of keys: an `f64` represents each exactly.
pub(crate) const KEYS_MAX: u64 = 1 << 50;

/// A step that visits each of `number` keys once before any repeats; near the golden ratio, which scatters best.
fn stride(number: u64) -> u64 {
    let golden = (number as f64 * 0.618_033_988_75) as u64;
    (golden.max(1)..)
        .find(|step| common(*step, number) == 1)
        .expect("`number` and the number after it share no divisor")
        % number.max(1)
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// A fixed number of hits, or a uniformly random one within bounds.
#[derive(Clone, Debug)]
pub(crate) struct HitDistribution {
    pub min: u32,
    pub max: u32,
    rng: Box<SmallRng>,
}

impl HitDistribution {
    /// Hits from `min` to `max`, both included.
    pub(crate) fn new(min: u32, max: u32, seed: u64) -> Self {
        Self { min, max, rng: Box::new(SmallRng::seed_from_u64(seed)) }
    }

    /// The hits of the next request.
    pub(crate) fn next(&mut self) -> u32 {
        if self.min == self.max { self.min } else { self.rng.random_range(self.min..=self.max) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn counted(mut keys: Keys, requests: u32) -> HashMap<u64, u32> {
        let mut counts = HashMap::new();
        for _ in 0..requests {
            *counts.entry(keys.next()).or_default() += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn without_skew_every_key_occurs_once_per_round(number in 1_u32..2_000) {
            let counts = counted(Keys::new(u64::from(number), 0.0, 1).unwrap(), 2 * number);
            prop_assert_eq!(counts.len(), number as usize);
            prop_assert!(counts.into_iter().all(|(key, count)| key < u64::from(number) && count == 2));
        }
    }

    #[test]
    fn skewed_keys_follow_the_law_of_zipf() {
        const REQUESTS: u32 = 200_000;
        for skew in [0.5, 1.0, 1.5] {
            let counts = counted(Keys::new(1_000, skew, 7).unwrap(), REQUESTS);
            let whole: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-skew)).sum();
            for rank in [1_u32, 2, 10, 100] {
                let share = f64::from(rank).powf(-skew) / whole;
                let expected = share * f64::from(REQUESTS);
                // Five standard deviations of a count.
                let slack = 5.0 * (expected * (1.0 - share)).sqrt();
                let found = f64::from(counts[&u64::from(rank - 1)]);
                assert!(
                    (found - expected).abs() < slack,
                    "skew {skew}, rank {rank}: {found}, not {expected}"
                );
            }
            assert!(counts.keys().all(|key| *key < 1_000));
        }
    }

    #[test]
    fn same_seed_yields_same_keys_and_hits() {
        let keys = || Keys::new(50, 1.1, 3).unwrap();
        assert_eq!(counted(keys(), 100), counted(keys(), 100));
        let hits = || {
            let mut hits = HitDistribution::new(2, 9, 5);
            std::iter::repeat_with(move || hits.next()).take(100).collect::<Vec<_>>()
        };
        assert_eq!(hits(), hits());
        assert!(hits().iter().all(|hits| (2..=9).contains(hits)));
    }
}
