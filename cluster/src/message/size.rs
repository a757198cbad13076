//! The size of encoded messages, at most.

use crate::message::{MemberRecord, Message, SlotGrants};

/// The largest encoded length, in bytes.
const LENGTH_BYTES_MAX: usize = 10;
/// The largest encoded message without what it has a variable number of, in bytes: a check.
const MESSAGE_BYTES_MAX: usize = 384;
/// The largest encoded grant, in bytes.
const GRANT_BYTES_MAX: usize = 256;
/// The largest encoded division of a limit without its subscribers, in bytes.
const DIVISION_BYTES_MAX: usize = 256;
/// The largest encoded subscriber of a divided limit, in bytes.
const SUBSCRIBER_BYTES_MAX: usize = 192;
/// The largest encoded assignment, in bytes.
const ASSIGNMENT_BYTES_MAX: usize = 48;
/// The largest encoded record of a member without its address, in bytes.
const RECORD_BYTES_MAX: usize = 48;
/// The largest encoded id of a member, in bytes.
const MEMBER_BYTES_MAX: usize = 10;
/// The largest encoded owner of a slot, in bytes.
const OWNER_BYTES_MAX: usize = 40;

/// The size of an encoded message in bytes, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireSize {
    pub(crate) bytes: usize,
    /// The part that is slot data.
    pub(crate) data_bytes: usize,
}

impl Message {
    /// The size of the encoded message, at most.
    pub(crate) fn wire_size(&self) -> WireSize {
        let block = |bytes: usize| LENGTH_BYTES_MAX + bytes;
        // Half of all messages of a busy replica; nothing in them has a variable size.
        if let Self::Reply { .. } = self {
            return WireSize { bytes: block(MESSAGE_BYTES_MAX), data_bytes: 0 };
        }
        let data_bytes = self.contents().map(|contents| block(contents.encoded_bytes_max())).sum();
        let grants = self.copy().map_or(0, |copy| copy.grants.wire_bytes());
        let more = match self {
            Self::Hello(hello) => {
                let records = hello.known.iter().chain([&hello.record]);
                OWNER_BYTES_MAX * (hello.owned.len() + hello.owners.len())
                    + records.map(MemberRecord::wire_bytes).sum::<usize>()
            }
            Self::Member(record) => record.wire_bytes(),
            Self::Dead { members } => MEMBER_BYTES_MAX * members.len(),
            Self::Status { program, .. } => program.len(),
            Self::Assigned(assignments) => ASSIGNMENT_BYTES_MAX * assignments.len(),
            Self::HandOff(_)
            | Self::Owns { .. }
            | Self::HandOffAck(_)
            | Self::Backup { .. }
            | Self::BackupAck { .. }
            | Self::BackupBaseMissing { .. }
            | Self::BackupRefused { .. }
            | Self::RecoveryQuery { .. }
            | Self::RecoveryReply { .. }
            | Self::Orphan { .. }
            | Self::NewerCopy { .. }
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => 0,
        };
        let bytes = block(MESSAGE_BYTES_MAX + more + grants + data_bytes);
        WireSize { bytes, data_bytes }
    }
}

impl MemberRecord {
    fn wire_bytes(&self) -> usize {
        RECORD_BYTES_MAX + self.address.len()
    }
}

impl SlotGrants {
    fn wire_bytes(&self) -> usize {
        self.leases.len() * GRANT_BYTES_MAX
            + self.divisions.len() * DIVISION_BYTES_MAX
            + self.divisions.subscribers() * SUBSCRIBER_BYTES_MAX
    }
}
