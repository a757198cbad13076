//! What sharing has cost, counted.

use serde::Serialize;

use crate::{
    cluster::{MemberId, message::MemberState},
    time::Timestamp,
};

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    /// Counters handed to others, and received from them.
    pub(crate) handed_off: u64,
    pub(crate) received: u64,
    /// Hand-offs that were acknowledged, and how long they took together.
    pub(crate) hand_offs: u64,
    pub(crate) hand_off_nanos: u64,
    /// Slots that this replica began to hold.
    pub(crate) slots_acquired: u64,
    /// Slots that were claimed after their holder was lost.
    pub(crate) slots_recovered: u64,
    /// Requests sent to other replicas.
    pub(crate) forwarded: u64,
    /// Requests decided by what was lent.
    pub(crate) leased: u64,
    /// Requests decided without their holder.
    pub(crate) degraded: u64,
    /// Answers that came after they were needed.
    pub(crate) late_answers: u64,
    /// How often a peer was spared for answering late.
    pub(crate) breaker_openings: u64,
    /// Slices lent, called back, and never heard of again.
    pub(crate) grants_lent: u64,
    pub(crate) grants_recalled: u64,
    pub(crate) grants_lost: u64,
    /// Counters sent as backups, and backups that arrived.
    pub(crate) backed_up: u64,
    pub(crate) backups_arrived: u64,
    pub(crate) backup_arrived_at: Timestamp,
    /// Backups of others for which there was no memory here.
    pub(crate) backups_refused: u64,
    /// Members that were lost, whether they died or left.
    pub(crate) members_lost: u64,
    /// How often this replica heard too few others to trust what it holds.
    pub(crate) isolations: u64,
    /// How often all counters were given up for those of another cluster.
    pub(crate) clusters_adopted: u64,
    /// Messages about consumption that were dropped for want of room.
    pub(crate) reports_dropped: u64,
}

/// How this replica sees the cluster.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// This replica.
    #[serde(rename = "self")]
    pub local_id: String,
    /// A hash of the members and of who holds which slot: equal on replicas that agree.
    pub view: String,
    /// Its members, this one included, and those who have gone lately.
    pub members: Vec<MemberView>,
    /// Slots whose holder is not the one who is wanted, or unknown.
    pub moving: usize,
    /// Slots held here.
    pub holding: usize,
    /// Slots of which a copy is kept here for another holder.
    pub copies: usize,
    /// Whether too few others are heard for this replica to trust what it holds.
    pub isolated: bool,
}

/// How it sees one member.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its identity.
    #[serde(serialize_with = "as_text")]
    pub id: MemberId,
    /// Where others reach it.
    pub address: String,
    /// What it is doing.
    pub state: MemberStatus,
    /// Milliseconds since it was last heard.
    pub silent_ms: u64,
    /// A hash of the rules that it decides by.
    pub rules: String,
    /// Slots that it holds, as far as is known here.
    pub holding: usize,
}

/// What a member is doing, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberStatus {
    /// It does not know yet who holds what.
    Joining,
    /// It answers.
    Serving,
    /// It hands its slots on.
    Draining,
    /// It has left, died or been silent for too long.
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
