//! The settings of the node.

use std::time::Duration;

use crate::Tuning;

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
