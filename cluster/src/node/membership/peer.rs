//! A member that has not departed, as this replica sees it.

use std::time::Duration;

use tollgate_counter::time::Timestamp;

use crate::message::{MemberRecord, MemberState, Message};

/// The time between two messages with the version and the time of a member, with [`STATUS_PEERS`] peers.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// With more peers than this, the messages are sent less often.
const STATUS_PEERS: usize = 16;
/// The maximum length of the version of another member, in characters.
const PROGRAM_MAX: usize = 64;

/// A member that has not departed.
#[derive(Clone, Debug)]
pub(in crate::node) struct PeerMember {
    pub(in crate::node) record: MemberRecord,
    /// Whether there is a session with the member.
    pub(super) connected: bool,
    /// Whether the hello of the member has arrived in this session. Before that, its state is unknown.
    pub(in crate::node) greeted: bool,
    /// Whether the member has announced its slots under the hash secret of this replica.
    pub(in crate::node) synced: bool,
    pub(super) heard_at: Timestamp,
    /// Whether the placement leaves the member out because it was silent.
    pub(super) is_left_out: bool,
    /// What the member last said for operators; `None` from a build that does not say it.
    pub(super) status: Option<PeerStatus>,
}

/// What operators compare between members.
#[derive(Clone, Debug)]
pub(in crate::node) struct PeerStatus {
    /// The version of the peer's program.
    pub(in crate::node) program: String,
    /// The milliseconds by which the peer's clock is ahead of that of this replica, without the time that the message
    /// took; negative if it is behind.
    pub(in crate::node) ahead_millis: i64,
}

impl PeerStatus {
    /// What a peer says at `wall` by the clock of this replica.
    pub(super) fn new(program: &str, clock: Timestamp, wall: Timestamp) -> Self {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let ahead_millis = millis(clock.since(wall)) - millis(wall.since(clock));
        Self { program: program.chars().take(PROGRAM_MAX).collect(), ahead_millis }
    }
}

impl PeerMember {
    /// A member that was just discovered.
    pub(super) fn new(record: MemberRecord, now: Timestamp) -> Self {
        Self {
            record,
            connected: false,
            greeted: false,
            synced: false,
            heard_at: now,
            is_left_out: false,
            status: None,
        }
    }

    /// Whether the member knows the owners of the slots of this cluster.
    pub(in crate::node) fn has_joined(&self) -> bool {
        self.synced && self.record.state != MemberState::Joining
    }

    /// Whether the member takes slots while it is reachable.
    pub(super) fn can_receive_slots(&self) -> bool {
        self.synced && self.record.state == MemberState::Serving
    }
}

/// What this replica says about itself for operators, at `wall` by its clock of counters.
pub(in crate::node) fn status(wall: Timestamp) -> Message {
    Message::Status { program: env!("CARGO_PKG_VERSION").to_owned(), clock: wall }
}

/// The time between statuses of a replica with this many peers.
pub(super) fn status_interval(peers: usize) -> Duration {
    STATUS_INTERVAL * (peers / STATUS_PEERS).max(1) as u32
}
