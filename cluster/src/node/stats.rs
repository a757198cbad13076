//! Statistics of the node.

use tollgate_counter::time::Timestamp;

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeStats {
    /// Counters handed off to other replicas.
    pub handed_off: u64,
    /// Counters received from other replicas.
    pub received: u64,
    /// Acknowledged hand-offs.
    pub hand_offs: u64,
    /// The sum of the durations of acknowledged hand-offs, in nanoseconds.
    pub hand_off_nanos: u64,
    /// Slots that this replica became the owner of.
    pub slots_acquired: u64,
    /// Slots recovered after their owner was lost.
    pub slots_recovered: u64,
    /// Checks forwarded to other replicas.
    pub forwarded: u64,
    /// Checks decided from a lease.
    pub leased: u64,
    /// Replies that arrived after the deadline.
    pub late_answers: u64,
    /// How often the circuit breaker of a peer opened.
    pub breaker_openings: u64,
    /// Leases lent.
    pub grants_lent: u64,
    /// Leases recalled.
    pub grants_recalled: u64,
    /// Leases charged because the borrower was silent.
    pub grants_lost: u64,
    /// Counters sent as backups.
    pub backed_up: u64,
    /// Backups that were acknowledged.
    pub backups_arrived: u64,
    /// When the last backup was acknowledged.
    pub backup_arrived_at: Timestamp,
    /// Backups of other replicas that were refused because memory was short.
    pub backups_refused: u64,
    /// Members that died, left or were silent for too long.
    pub members_lost: u64,
    /// Changes of the placement by silence alone that were held back because there were others shortly before.
    pub silences_held_back: u64,
    /// How often this replica became isolated.
    pub isolations: u64,
    /// How often all counters were discarded in favour of another cluster.
    pub clusters_adopted: u64,
    /// Consumption reports that were dropped because the queue was full.
    pub reports_dropped: u64,
}
