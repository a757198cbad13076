//! Times and rates of a replica in a cluster.

use std::time::Duration;

/// Times and rates of a replica in a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The longest time that a check waits for another replica.
    pub forward_budget_max: Duration,
    /// How often changed counters are sent to the backup owner; `None` for never.
    pub backup_interval: Option<Duration>,
    /// A replica that is silent for this long is treated as departed.
    pub forget_after: Duration,
    /// A replica that forwards a key this many times a second gets a lease; `None` for never.
    pub lease_from: Option<u64>,
}

impl Tuning {
    /// Without backups and leases, for tests.
    pub const FOR_TESTS: Self = Self {
        forward_budget_max: Duration::from_millis(500),
        backup_interval: None,
        forget_after: Duration::from_secs(8),
        lease_from: None,
    };
}
