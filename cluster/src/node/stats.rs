//! Statistics of the node.

use tollgate_limiter::time::Timestamp;

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeStats {
    /// Counters handed off to other replicas, and received from them.
    pub(crate) handed_off: u64,
    pub(crate) received: u64,
    /// Acknowledged hand-offs, and the sum of their durations.
    pub(crate) hand_offs: u64,
    pub(crate) hand_off_nanos: u64,
    /// Slots that this replica became the owner of.
    pub(crate) slots_acquired: u64,
    /// Slots recovered after their owner was lost.
    pub(crate) slots_recovered: u64,
    /// Checks forwarded to other replicas.
    pub(crate) forwarded: u64,
    /// Checks decided from a lease.
    pub(crate) leased: u64,
    /// Replies that arrived after the deadline.
    pub(crate) late_answers: u64,
    /// How often the circuit breaker of a peer opened.
    pub(crate) breaker_openings: u64,
    /// Grants lent, recalled, and charged because the borrower was silent.
    pub(crate) grants_lent: u64,
    pub(crate) grants_recalled: u64,
    pub(crate) grants_lost: u64,
    /// Counters sent as backups, and backups that were acknowledged.
    pub(crate) backed_up: u64,
    pub(crate) backups_arrived: u64,
    pub(crate) backup_arrived_at: Timestamp,
    /// Backups of other replicas that were refused because memory was short.
    pub(crate) backups_refused: u64,
    /// Members that died, left or were silent for too long.
    pub(crate) members_lost: u64,
    /// Changes of the placement by silence alone that were held back because there were others shortly before.
    pub(crate) silences_held_back: u64,
    /// How often this replica became isolated.
    pub(crate) isolations: u64,
    /// How often all counters were discarded in favour of another cluster.
    pub(crate) clusters_adopted: u64,
    /// Consumption reports that were dropped because the queue was full.
    pub(crate) reports_dropped: u64,
}
