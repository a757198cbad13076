//! When requests are due, in an open loop: fixed beforehand, whatever becomes of the answers.

use std::time::Duration;

use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};

const SECOND_NANOS: u128 = 1_000_000_000;

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrivals {
    /// At equal distances.
    Even,
    /// Each independent of the others, as those of many unrelated callers are.
    Poisson,
}

/// What part of a run is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredSpan {
    /// What comes earlier after the start is sent and not measured.
    pub warmup: Duration,
    /// How long is measured; without it, until there are enough requests.
    pub duration: Option<Duration>,
    /// The most requests that are measured.
    pub requests: Option<u64>,
}

impl MeasuredSpan {
    /// When the measured part ends, from the start; `None` where only the number of requests ends it.
    pub(super) fn end(&self) -> Option<Duration> {
        self.duration.map(|duration| self.warmup.saturating_add(duration))
    }
}

/// The instants at which requests are due, from the start of the run, in order. Copies give the same ones.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    rate: u64,
    arrivals: Arrivals,
    span: MeasuredSpan,
    rng: Box<SmallRng>,
    // How many there have been, and of these how many are measured.
    number: u64,
    measured: u64,
    // Invariant: the instant of the last Poisson arrival, in nanoseconds; 0 before the first.
    last: f64,
}

impl Schedule {
    /// `rate` requests a second, at least one.
    pub(super) fn new(rate: u64, arrivals: Arrivals, span: MeasuredSpan, seed: u64) -> Self {
        let rng = Box::new(SmallRng::seed_from_u64(seed));
        Self { rate, arrivals, span, rng, number: 0, measured: 0, last: 0.0 }
    }

    /// Requests a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    fn instant(&mut self) -> Duration {
        match self.arrivals {
            Arrivals::Even => {
                let nanos = u128::from(self.number) * SECOND_NANOS / u128::from(self.rate);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            Arrivals::Poisson => {
                let gap: f64 = Exp1.sample(&mut self.rng);
                self.last += gap * 1e9 / self.rate as f64;
                Duration::from_nanos(self.last as u64)
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.span.requests.is_some_and(|requests| requests <= self.measured) {
            return None;
        }
        let instant = self.instant();
        if self.span.end().is_some_and(|end| end <= instant) {
            return None;
        }
        self.number += 1;
        self.measured += u64::from(self.span.warmup <= instant);
        Some(instant)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(warmup_ms: u64, duration_ms: Option<u64>, requests: Option<u64>) -> MeasuredSpan {
        let warmup = Duration::from_millis(warmup_ms);
        MeasuredSpan { warmup, duration: duration_ms.map(Duration::from_millis), requests }
    }

    proptest! {
        #[test]
        fn whole_seconds_have_exactly_the_rate(rate in 1_u64..20_000, seconds in 1_u64..4) {
            let schedule = Schedule::new(rate, Arrivals::Even, span(0, Some(1_000 * seconds), None), 1);
            prop_assert_eq!(schedule.count() as u64, rate * seconds);
        }

        #[test]
        fn instants_never_decrease_and_end_with_the_span(
            rate in 1_u64..50_000,
            poisson: bool,
            warmup in 0_u64..100,
            duration in 1_u64..200,
            seed: u64,
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Even };
            let span = span(warmup, Some(duration), None);
            let instants: Vec<_> = Schedule::new(rate, arrivals, span, seed).collect();
            prop_assert!(instants.is_sorted());
            prop_assert!(instants.last().is_none_or(|last| *last < span.end().unwrap()));
        }

        #[test]
        fn so_many_requests_are_due_after_the_warmup(requests in 0_u64..500, poisson: bool) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Even };
            let span = span(50, None, Some(requests));
            let instants: Vec<_> = Schedule::new(1_000, arrivals, span, 9).collect();
            let measured = instants.iter().filter(|instant| span.warmup <= **instant).count();
            prop_assert_eq!(measured as u64, requests);
        }

        #[test]
        fn a_copy_has_the_same_instants(seed: u64) {
            let schedule = Schedule::new(3_000, Arrivals::Poisson, span(0, Some(100), None), seed);
            prop_assert!(schedule.clone().eq(schedule));
        }
    }

    #[test]
    fn requests_at_equal_distances_are_due_at_multiples_of_the_distance() {
        let schedule = Schedule::new(3, Arrivals::Even, span(0, Some(1_000), None), 1);
        let nanos: Vec<_> = schedule.map(|instant| instant.as_nanos()).collect();
        assert_eq!(nanos, [0, 333_333_333, 666_666_666]);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_their_law() {
        let schedule = Schedule::new(1_000, Arrivals::Poisson, span(0, Some(100_000), None), 11);
        let mut bins = vec![0_f64; 10_000];
        schedule.for_each(|instant| bins[instant.as_millis() as usize / 10] += 1.0);
        // Ten arrivals are expected in each bin: the mean and the variance of the law of Poisson are the same.
        let mean = bins.iter().sum::<f64>() / bins.len() as f64;
        let variance = bins.iter().map(|bin| (bin - mean).powi(2)).sum::<f64>() / bins.len() as f64;
        assert!((mean - 10.0).abs() < 0.2, "{mean}");
        assert!((variance - 10.0).abs() < 1.0, "{variance}");
    }
}
