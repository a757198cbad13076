//! Times, rates and bounds of a replica in a cluster, and the settings of its node.

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
    /// Times and rates without backups and leases, for tests.
    pub const FOR_TESTS: Self = Self {
        forward_budget_max: Duration::from_millis(500),
        backup_interval: None,
        forget_after: Duration::from_secs(8),
        lease_from: None,
    };
}

/// The settings of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// A peer that is not heard for this long counts as silent.
    pub(crate) silence: Duration,
    /// How long to wait for seeds before this replica bootstraps a cluster.
    pub(crate) bootstrap_timeout: Duration,
    /// The most unacknowledged hand-offs to one peer.
    pub(crate) hand_offs_max: usize,
    /// The most bytes of slot data on their way to one peer, half of them hand-offs and half backups, before further data
    /// is held back.
    pub(crate) data_bytes_max: usize,
    /// How many counters of lost owners are claimed in one turn before further slots wait for the next one.
    pub(crate) claimed_counters_max: usize,
    /// The settings of operators.
    pub(crate) tuning: Tuning,
}
