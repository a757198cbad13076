//! The schedule of an open loop: fixed in advance, regardless of answers.

use std::time::Duration;

use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};

const SECOND_NANOS: u128 = 1_000_000_000;

/// The distribution of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrivals {
    /// Arrivals at equal intervals.
    Even,
    /// A Poisson process: independent arrivals, like those of many unrelated callers.
    Poisson,
}

/// The measured part of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredSpan {
    /// Requests before the end of the warm-up are sent but not measured.
    pub warmup: Duration,
    /// The duration of the measurement; `None` if only the number of requests ends it.
    pub duration: Option<Duration>,
    /// The maximum number of measured requests.
    pub requests: Option<u64>,
}

impl MeasuredSpan {
    /// The end of the measured part, relative to the start; `None` if only the number of requests ends it.
    pub(super) fn end(&self) -> Option<Duration> {
        self.duration.map(|duration| self.warmup.saturating_add(duration))
    }
}

/// The instants at which requests are due, relative to the start, in order. Clones yield the same instants.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// Requests per second.
    pub(super) rate: u64,
    arrivals: Arrivals,
    span: MeasuredSpan,
    rng: Box<SmallRng>,
    // The number of requests so far, and of those measured.
    number: u64,
    measured: u64,
    // Invariant: the instant of the last Poisson arrival, in nanoseconds; 0 before the first.
    last: f64,
}

impl Schedule {
    /// `rate` requests per second, at least 1.
    pub(crate) fn new(rate: u64, arrivals: Arrivals, span: MeasuredSpan, seed: u64) -> Self {
        let rng = Box::new(SmallRng::seed_from_u64(seed));
        Self { rate, arrivals, span, rng, number: 0, measured: 0, last: 0.0 }
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
        fn even_schedule_has_exactly_the_rate(rate in 1_u64..20_000, seconds in 1_u64..4) {
            let schedule = Schedule::new(rate, Arrivals::Even, span(0, Some(1_000 * seconds), None), 1);
            prop_assert_eq!(schedule.count() as u64, rate * seconds);
        }

        #[test]
        fn instants_never_decrease_and_stay_within_the_span(
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
        fn schedule_has_the_number_of_measured_requests(requests in 0_u64..500, poisson: bool) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Even };
            let span = span(50, None, Some(requests));
            let instants: Vec<_> = Schedule::new(1_000, arrivals, span, 9).collect();
            let measured = instants.iter().filter(|instant| span.warmup <= **instant).count();
            prop_assert_eq!(measured as u64, requests);
        }

        #[test]
        fn clone_yields_the_same_instants(seed: u64) {
            let schedule = Schedule::new(3_000, Arrivals::Poisson, span(0, Some(100), None), seed);
            prop_assert!(schedule.clone().eq(schedule));
        }
    }

    #[test]
    fn even_requests_are_due_at_multiples_of_the_interval() {
        let schedule = Schedule::new(3, Arrivals::Even, span(0, Some(1_000), None), 1);
        let nanos: Vec<_> = schedule.map(|instant| instant.as_nanos()).collect();
        assert_eq!(nanos, [0, 333_333_333, 666_666_666]);
    }

    #[test]
    fn poisson_arrivals_have_expected_mean_and_variance() {
        let schedule = Schedule::new(1_000, Arrivals::Poisson, span(0, Some(100_000), None), 11);
        let mut bins = vec![0_f64; 10_000];
        schedule.for_each(|instant| bins[instant.as_millis() as usize / 10] += 1.0);
        // Ten arrivals are expected in each bin. The mean and the variance of a Poisson distribution are equal.
        let mean = bins.iter().sum::<f64>() / bins.len() as f64;
        let variance = bins.iter().map(|bin| (bin - mean).powi(2)).sum::<f64>() / bins.len() as f64;
        assert!((mean - 10.0).abs() < 0.2, "{mean}");
        assert!((variance - 10.0).abs() < 1.0, "{variance}");
    }
}
