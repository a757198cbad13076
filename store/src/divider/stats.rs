//! What has happened to dividers.

use std::time::Duration;

use tollgate_counter::metrics::{Histogram, MetricCounter, micros};

/// Bounds of the times until shares are adjusted. A smaller share is in force after half a second, and one of a client
/// that has gone ends after 16 s.
const CONVERGENCE_BOUNDS: [Duration; 12] = micros([
    100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 17_500_000,
    30_000_000, 60_000_000,
]);

/// What has happened to dividers.
#[derive(Debug)]
pub struct DividerStats {
    /// Hits that clients have let pass and that were charged.
    pub used: MetricCounter,
    /// Hits that passed at clients without having been granted.
    pub beyond_grant: MetricCounter,
    /// Reports of subscribers beyond the most that one limit has.
    pub refused: MetricCounter,
    /// Subscribers that divisions have visited.
    pub visited: MetricCounter,
    /// Times from changes of demand or of clients until all shares were adjusted.
    pub convergence: Histogram,
}

impl Default for DividerStats {
    fn default() -> Self {
        Self {
            used: MetricCounter::default(),
            beyond_grant: MetricCounter::default(),
            refused: MetricCounter::default(),
            visited: MetricCounter::default(),
            convergence: Histogram::new(&CONVERGENCE_BOUNDS),
        }
    }
}
