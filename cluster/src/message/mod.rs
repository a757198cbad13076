//! The messages between replicas.
//!
//! `wire` encodes them by the order of their variants and fields, which the golden tests pin: append variants at the
//! end, and see there what else may change.

use std::{sync::Arc, time::Duration};

use postcard::experimental::serialized_size;
use serde::{Deserialize, Deserializer, Serialize};
use tollgate_counter::{
    descriptor::{Key, Secret},
    time::Timestamp,
};
use tollgate_store::{Epoch, Slot, SlotData, divider::Assignments};

use crate::member::MemberId;

pub(crate) mod check;
pub(crate) mod slot;

use check::{CheckReply, RemoteCheck};
use slot::{HandOff, HandOffId, Version, VersionedSlot};

/// The owner of a slot, and the epoch of its ownership. Of two owners the larger one keeps the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SlotOwner {
    pub(crate) epoch: Epoch,
    pub(crate) member: MemberId,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The member does not know the owners of the slots yet.
    Joining,
    /// The member answers and owns slots.
    Serving,
    /// The member answers, and hands off its slots.
    Draining,
}

/// What a member announces about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) id: MemberId,
    /// The address at which other replicas connect to the member.
    pub(crate) address: String,
    pub(crate) state: MemberState,
    /// The hash of the member's active rules.
    pub(crate) rules: u64,
    /// The revision of this record. The larger one is the newer.
    pub(crate) changes: u64,
}

impl MemberRecord {
    /// The record of a member that has announced nothing yet.
    pub(crate) fn joining(id: MemberId, address: String) -> Self {
        Self { id, address, state: MemberState::Joining, rules: 0, changes: 0 }
    }
}

/// The secret of the key hash, and the member that created it. Of two clusters that meet, the secret of the smaller
/// founder stays: the one that started earlier, so that a cluster in use outlives a replica that bootstrapped alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HashSecret {
    pub(crate) founder: MemberId,
    pub(crate) secret: Secret,
}

/// One message. Messages between two members arrive once and in the order in which they were sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The first message of a session: the sender, the members it knows, and the owners of slots.
    Hello(Box<Hello>),
    /// The record of a member has changed.
    Member(MemberRecord),
    /// The sender owns this slot.
    Owns { slot: Slot, epoch: Epoch, origin: Version },
    /// The receiver becomes the owner of this slot.
    HandOff(Box<HandOff>),
    /// The sender owns the slot of this hand-off, and its data is safe.
    HandOffAck(HandOffId),
    /// The receiver is to keep this copy for the sender.
    Backup {
        slot: Slot,
        copy: VersionedSlot,
        /// The copy holds the changes after this version; all counters if `None`.
        after: Option<u64>,
    },
    /// The sender keeps a copy of the slot at this version.
    BackupAck { slot: Slot, version: Version },
    /// The sender lacks the version that the last backup builds on.
    BackupBaseMissing { slot: Slot },
    /// The slot has lost its owner. `best` is the newest copy that the sender knows.
    RecoveryQuery { slot: Slot, best: Version },
    /// The reply to a recovery query.
    RecoveryReply {
        slot: Slot,
        owner: Option<SlotOwner>,
        /// Whether the sender has heard that owner recently.
        alive: bool,
        /// The copy of the sender, if it is newer.
        copy: Option<VersionedSlot>,
    },
    /// The receiver is the intended owner of this slot, whose owner has departed.
    Orphan { slot: Slot, owner: SlotOwner },
    /// The receiver started from an older copy than this one.
    NewerCopy { slot: Slot, copy: VersionedSlot },
    /// Answer this check within `budget`.
    Forward {
        ticket: u64,
        #[serde(deserialize_with = "shared")]
        check: Arc<RemoteCheck>,
        budget: Duration,
        hops: u8,
    },
    /// The answer to a forwarded check.
    Reply { ticket: u64, reply: CheckReply },
    /// Return the grant of this key.
    Recall { key: Key },
    /// This key is no longer refused.
    Revoke { key: Key },
    /// The listed members are proven dead.
    Dead { members: Vec<MemberId> },
    /// What operators compare between members: the version of the program, and the time by which the sender decides.
    Status { program: String, clock: Timestamp },
    /// The sender has no memory for the backup of the slot at this version.
    BackupRefused { slot: Slot, version: Version },
    /// What clients of the receiver may let pass.
    Assigned(Assignments),
}

impl Message {
    /// Whether the slots and epochs that the message names exist in a cluster of this many slots.
    pub(crate) fn is_in_range(&self, slots: usize) -> bool {
        let (slot, epoch) = self.last_slot_and_epoch();
        slot.is_none_or(|slot| slot.index() < slots) && epoch <= Epoch::MAX
    }

    /// The largest slot that the message names, if any.
    pub(crate) fn last_slot(&self) -> Option<Slot> {
        self.last_slot_and_epoch().0
    }

    /// The largest slot that the message names, if any, and the largest epoch; the least one if it names none.
    fn last_slot_and_epoch(&self) -> (Option<Slot>, Epoch) {
        match self {
            Self::Hello(hello) => {
                let owned = hello.owned.iter().map(|(slot, epoch, origin)| (*slot, origin.epoch.max(*epoch)));
                let owners = hello.owners.iter().map(|(slot, owner)| (*slot, owner.epoch));
                let last =
                    |last: (Option<Slot>, Epoch), (slot, epoch)| (last.0.max(Some(slot)), last.1.max(epoch));
                owned.chain(owners).fold((None, Epoch::default()), last)
            }
            Self::HandOff(hand_off) => {
                let HandOff { slot, copy, origin, .. } = &**hand_off;
                (Some(*slot), copy.version.epoch.max(origin.version.epoch).max(origin.since))
            }
            Self::Owns { slot, epoch, origin } => (Some(*slot), origin.epoch.max(*epoch)),
            Self::Backup { slot, copy, .. } | Self::NewerCopy { slot, copy } => {
                (Some(*slot), copy.version.epoch)
            }
            Self::BackupAck { slot, version }
            | Self::BackupRefused { slot, version }
            | Self::RecoveryQuery { slot, best: version } => (Some(*slot), version.epoch),
            Self::RecoveryReply { slot, owner, copy, .. } => {
                let owner = owner.map(|owner| owner.epoch);
                let copy = copy.as_ref().map(|copy| copy.version.epoch);
                (Some(*slot), owner.max(copy).unwrap_or_default())
            }
            Self::Orphan { slot, owner } => (Some(*slot), owner.epoch),
            Self::BackupBaseMissing { slot } => (Some(*slot), Epoch::default()),
            Self::Member(_)
            | Self::HandOffAck(_)
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. }
            | Self::Dead { .. }
            | Self::Status { .. }
            | Self::Assigned(_) => (None, Epoch::default()),
        }
    }

    /// The encoded bytes of the slot data in the message, at most, and of what was granted of it.
    pub(crate) fn data_bytes(&self) -> usize {
        let grants = self.copy().and_then(|copy| serialized_size(&copy.grants).ok()).unwrap_or(0);
        self.contents().map(|contents| contents.encoded_bytes_max()).sum::<usize>() + grants
    }

    /// The slot data in the message, which `wire` encodes apart: its instants are relative to the time of encoding.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &Arc<SlotData>> {
        let base = if let Self::HandOff(hand_off) = self { hand_off.origin.contents.as_ref() } else { None };
        let consumed = if let Self::Forward { check, .. } = self { check.operation.consumed() } else { None };
        self.copy().map(|copy| &copy.contents).into_iter().chain(base).chain(consumed)
    }

    /// The slot data in the message, to be filled in after decoding.
    pub(crate) fn contents_mut(&mut self) -> impl Iterator<Item = &mut Arc<SlotData>> {
        let (copy, other) = if let Self::HandOff(hand_off) = self {
            (Some(&mut hand_off.copy), hand_off.origin.contents.as_mut())
        } else if let Self::Backup { copy, .. }
        | Self::NewerCopy { copy, .. }
        | Self::RecoveryReply { copy: Some(copy), .. } = self
        {
            (Some(copy), None)
        } else if let Self::Forward { check, .. } = self {
            (None, RemoteCheck::consumed_mut(check))
        } else {
            (None, None)
        };
        copy.map(|copy| &mut copy.contents).into_iter().chain(other)
    }

    /// The copy of a slot in the message.
    fn copy(&self) -> Option<&VersionedSlot> {
        if let Self::HandOff(hand_off) = self {
            Some(&hand_off.copy)
        } else if let Self::Backup { copy, .. }
        | Self::NewerCopy { copy, .. }
        | Self::RecoveryReply { copy: Some(copy), .. } = self
        {
            Some(copy)
        } else {
            None
        }
    }
}

/// The content of the first message of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) record: MemberRecord,
    pub(crate) hash_secret: Option<HashSecret>,
    pub(crate) known: Vec<MemberRecord>,
    /// The slots of the sender: the epoch of its ownership, and the version that it started from.
    pub(crate) owned: Vec<(Slot, Epoch, Version)>,
    /// The newest owners that the sender knows.
    pub(crate) owners: Vec<(Slot, SlotOwner)>,
}

/// Allocates once. As `serde` does it, the check is moved from one allocation to another.
fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<RemoteCheck>, D::Error> {
    RemoteCheck::deserialize(deserializer).map(Arc::new)
}
