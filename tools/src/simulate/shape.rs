//! How the rate of generated requests changes over time.

use std::{f64::consts::TAU, time::Duration};

/// The rate over time, relative to its mean. It repeats after a period, over which the mean is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// The rate never changes.
    Flat,
    /// The begin of each period is busier.
    Bursts {
        /// The interval from one burst to the next.
        every: Duration,
        /// The length of a burst, less than the interval.
        length: Duration,
        /// How many times as high the rate is in a burst.
        factor: f64,
    },
    /// A wave over each day, with the minimum at midnight and the maximum at noon.
    Daily {
        /// The height of the wave, from 0 for no wave to 1 for no requests at midnight.
        amplitude: f64,
    },
}

/// The length of a daily wave in seconds.
const DAY_SECONDS: f64 = 86_400.0;
/// Halvings of a day after which the rest is below a nanosecond.
const HALVINGS: usize = 50;

impl Shape {
    /// The instant up to which as many requests are expected as at the mean rate up to `instant`. Requests of a
    /// Poisson process that are moved so are a Poisson process of this shape.
    pub(super) fn warp(self, instant: Duration) -> Duration {
        let expected = instant.as_secs_f64();
        match self {
            Self::Flat => instant,
            Self::Bursts { every, length, factor } => {
                let (every, length) = (every.as_secs_f64(), length.as_secs_f64());
                // The rate outside of bursts, relative to the mean.
                let base = every / (factor * length + every - length);
                let in_burst = base * factor * length;
                in_period(expected, every, |rest| {
                    if rest < in_burst { rest / (base * factor) } else { length + (rest - in_burst) / base }
                })
            }
            Self::Daily { amplitude } => in_period(expected, DAY_SECONDS, |rest| {
                let (mut low, mut high) = (0.0, DAY_SECONDS);
                for _ in 0..HALVINGS {
                    let middle = (low + high) / 2.0;
                    let before = middle - amplitude * DAY_SECONDS / TAU * (TAU * middle / DAY_SECONDS).sin();
                    if before < rest {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                low
            }),
        }
    }
}

/// Applies `warp` to what is left after whole periods.
fn in_period(expected: f64, period: f64, warp: impl Fn(f64) -> f64) -> Duration {
    let whole = (expected / period).floor();
    let seconds = whole * period + warp(expected - whole * period).clamp(0.0, period);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
