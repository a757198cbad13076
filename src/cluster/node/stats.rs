//! Statistics of the node, and its view of the cluster for the admin API.

use serde::Serialize;

use crate::{
    cluster::{MemberId, message::MemberState},
    time::Timestamp,
};

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
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
    /// Checks decided without their owner.
    pub(crate) degraded: u64,
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
    /// How often this replica became isolated.
    pub(crate) isolations: u64,
    /// How often all counters were discarded in favour of another cluster.
    pub(crate) clusters_adopted: u64,
    /// Consumption reports that were dropped because the queue was full.
    pub(crate) reports_dropped: u64,
}

/// The cluster as this replica sees it.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// The id of this replica.
    #[serde(rename = "self")]
    pub local_id: String,
    /// A hash of the members and of the owner of each slot. Replicas that agree have equal hashes.
    pub view: String,
    /// The members, this replica included, and members that departed recently.
    pub members: Vec<MemberView>,
    /// Slots whose owner is unknown or differs from the placement.
    pub moving: usize,
    /// Slots owned by this replica.
    pub holding: usize,
    /// Slots of which this replica stores a copy for another owner.
    pub copies: usize,
    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub isolated: bool,
}

/// A member as this replica sees it.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// The id of the member.
    #[serde(serialize_with = "as_text")]
    pub id: MemberId,
    /// The address at which replicas connect to it.
    pub address: String,
    /// The state of the member.
    pub state: MemberStatus,
    /// Milliseconds since the last sign of life.
    pub silent_ms: u64,
    /// The hash of its active rules.
    pub rules: String,
    /// Slots that it owns, as far as this replica knows.
    pub holding: usize,
}

/// The state of a member as another replica sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberStatus {
    /// The member does not know the owners of the slots yet.
    Joining,
    /// The member answers and owns slots.
    Serving,
    /// The member hands off its slots.
    Draining,
    /// The member left, died or was silent for too long.
    #[serde(rename = "gone")]
    Departed,
}

impl From<MemberState> for MemberStatus {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Joining => Self::Joining,
            MemberState::Serving => Self::Serving,
            MemberState::Draining => Self::Draining,
        }
    }
}

fn as_text<S: serde::Serializer>(id: &MemberId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}
