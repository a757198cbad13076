//! The messages between replicas.
//!
//! `wire` encodes them by the order of their variants and fields, which the golden tests pin: append variants at the end,
//! and see there what else may change.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate_limiter::{
    algorithm::Limit,
    descriptor::{Key, Secret},
    divider::{Assignments, Report, SlotDivisions, SubscriberId},
    each_apart,
    rules::QuotaTerms,
    store::{CounterOperation, Epoch, Outcome, Slot, SlotData},
    time::Timestamp,
};

use crate::cluster::MemberId;

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

/// The version of a slot's counters. The larger one is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Grows with every change of the owner.
    pub(crate) epoch: Epoch,
    /// Grows with every change of a counter.
    pub(crate) seq: u64,
}

impl Version {
    /// No copy is newer.
    pub(crate) const MAX: Self = Self { epoch: Epoch::MAX, seq: u64::MAX };
}

/// The owner of a slot, and the epoch of its ownership. Of two owners the larger one keeps the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Owner {
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
    /// The address at which other replicas connect to it.
    pub(crate) address: String,
    pub(crate) state: MemberState,
    /// The hash of its active rules.
    pub(crate) rules: u64,
    /// The revision of this record. The larger one is the newer.
    pub(crate) changes: u64,
}

/// The secret of the key hash, and the member that created it. Of two clusters that meet, the secret of the smaller
/// founder stays: the one that started earlier, so that a cluster in use outlives a replica that bootstrapped alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HashSecret {
    pub(crate) founder: MemberId,
    pub(crate) secret: Secret,
}

/// What was granted of the counters of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlotGrants {
    /// To other replicas.
    #[serde(with = "each_apart")]
    pub(crate) leases: Vec<Grant>,
    /// To clients that decide by themselves.
    pub(crate) divisions: SlotDivisions,
}

impl SlotGrants {
    /// Adds other grants of the same slot.
    pub(crate) fn extend(&mut self, other: Self) {
        self.leases.extend(other.leases);
        self.divisions.extend(other.divisions);
    }

    /// Adds the hits that are not accounted for to `data` as if they were used now.
    pub(crate) fn charge_to(&self, data: &mut SlotData, now: Timestamp) {
        self.leases.iter().for_each(|grant| grant.charge_to(data, now));
        for (key, limit, hits) in self.divisions.granted_hits() {
            charge(data, key, limit, hits, now);
        }
    }

    fn wire_bytes(&self) -> usize {
        self.leases.len() * GRANT_BYTES_MAX
            + self.divisions.len() * DIVISION_BYTES_MAX
            + self.divisions.subscribers() * SUBSCRIBER_BYTES_MAX
    }
}

/// Adds hits to `data` as if they were used now.
fn charge(data: &mut SlotData, key: Key, limit: &Limit, hits: u64, now: Timestamp) {
    if hits > 0 {
        let mut used = limit.fresh();
        limit.charge_at(&mut used, hits, now, now);
        data.add_usage(key, limit, used, now);
    }
}

/// The counters of a slot at a version, and what was granted of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlotCopy {
    pub(crate) version: Version,
    #[serde(skip)]
    pub(crate) contents: Arc<SlotData>,
    pub(crate) grants: SlotGrants,
}

/// What an owner started from when it recovered a slot. Later owners inherit it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The version of the copy that was recovered; the least version if there was none.
    pub(crate) version: Version,
    /// The epoch that began with the recovery.
    pub(crate) since: Epoch,
    /// The data of that copy, while it is kept.
    #[serde(serialize_with = "presence", deserialize_with = "empty_if_present")]
    pub(crate) contents: Option<Arc<SlotData>>,
}

/// The id of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HandOffId {
    pub(crate) from: MemberId,
    pub(crate) number: u64,
}

/// A slot on its way to its new owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandOff {
    pub(crate) id: HandOffId,
    pub(crate) slot: Slot,
    pub(crate) copy: SlotCopy,
    pub(crate) origin: Origin,
}

/// A part of a limit, lent to a replica that forwards the key often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) borrower: MemberId,
    /// Distinguishes the grants of one key and borrower.
    pub(crate) number: u64,
    /// Hits that are not accounted for.
    pub(crate) left: u64,
    /// The remaining lifetime.
    pub(crate) ttl: Duration,
    /// What was charged because the borrower was not heard in time.
    pub(crate) charged: Option<ChargedHits>,
}

impl Grant {
    /// Adds the unaccounted hits to `data` as if they were used now, unless they are charged already.
    pub(crate) fn charge_to(&self, data: &mut SlotData, now: Timestamp) {
        if self.charged.is_none() {
            charge(data, self.key, &self.limit, self.left, now);
        }
    }
}

/// The unaccounted hits of a grant, charged as if they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChargedHits {
    /// At least one.
    pub(crate) hits: NonZeroU64,
    /// How long ago they count as used.
    pub(crate) age: Duration,
}

/// An operation on one counter, for its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteCheck {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) operation: RemoteOperation,
    /// The number of hits that the sender asks to borrow, because it forwards the key often.
    pub(crate) lease_hits: u64,
}

impl RemoteCheck {
    // Most checks have none, and are not copied.
    fn consumed_mut(shared: &mut Arc<Self>) -> Option<&mut Arc<SlotData>> {
        shared.operation.consumed()?;
        let RemoteOperation::Absorb(consumed) = &mut Arc::make_mut(shared).operation else { return None };
        Some(consumed)
    }
}

/// The operation of a remote check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RemoteOperation {
    /// An operation on the counter and its holds.
    Counter(CounterOperation),
    /// Add consumption that was admitted elsewhere.
    Absorb(#[serde(skip)] Arc<SlotData>),
    /// Add consumption from a grant.
    Settle(Settlement),
    /// Divide the limit, given the report of a client.
    Divide(SubscriberId, QuotaTerms, Report),
}

impl RemoteOperation {
    /// Whether the operation is sent again if it gets lost.
    pub(crate) fn must_arrive(&self) -> bool {
        match self {
            Self::Counter(operation) => matches!(operation, CounterOperation::Withdraw { .. }),
            Self::Absorb(_) | Self::Settle(_) => true,
            // A client reports again. What a lost report says is granted until then.
            Self::Divide(..) => false,
        }
    }

    /// Whether an isolated owner applies it too: it corrects what was charged before, and admits nothing.
    pub(crate) fn is_applied_in_isolation(&self) -> bool {
        self.must_arrive() || self.is_undo()
    }

    /// Whether it takes back one charge.
    pub(crate) fn is_undo(&self) -> bool {
        matches!(self, Self::Counter(CounterOperation::Undo(_)))
    }

    fn consumed(&self) -> Option<&Arc<SlotData>> {
        if let Self::Absorb(consumed) = self { Some(consumed) } else { None }
    }
}

/// The consumption of a grant since the last settlement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settlement {
    pub(crate) borrower: MemberId,
    pub(crate) number: u64,
    /// Hits that were used.
    pub(crate) hits: u64,
    /// Unused hits of the grant. The newest settlement is authoritative when the slot changes its owner.
    pub(crate) left: u64,
    /// How long ago the last of them was used.
    pub(crate) age: Duration,
    pub(crate) state: LeaseState,
}

/// Whether a grant continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaseState {
    /// More hits may be used.
    Open,
    /// The unused hits are returned.
    Closed,
}

/// The owner's answer to a remote check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// What the operation has come to.
    // The lease is boxed, because most replies have none.
    Decided { outcome: Outcome, lease: Option<Box<LeaseReply>> },
    /// The owner is unreachable, or does not trust its counters.
    Unreachable,
}

/// What the sender may decide about the same key by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaseReply {
    /// The sender may use this many hits for some time.
    Granted { number: u64, hits: u64, ttl: Duration },
    /// Every charge is refused for some time.
    Refused { ttl: Duration },
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
        copy: SlotCopy,
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
        owner: Option<Owner>,
        /// Whether the sender has heard that owner recently.
        alive: bool,
        /// The copy of the sender, if it is newer.
        copy: Option<SlotCopy>,
    },
    /// The receiver is the intended owner of this slot, whose owner has departed.
    Orphan { slot: Slot, owner: Owner },
    /// The receiver started from an older copy than this one.
    NewerCopy { slot: Slot, copy: SlotCopy },
    /// Answer this check within `budget`.
    Forward {
        ticket: u64,
        #[serde(deserialize_with = "shared")]
        check: Arc<RemoteCheck>,
        budget: Duration,
        hops: u8,
    },
    /// The answer to a forwarded check.
    Reply { ticket: u64, reply: Reply },
    /// Return the grant of this key.
    Recall { key: Key },
    /// This key is no longer refused.
    Revoke { key: Key },
    /// These members are proven dead.
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
        self.last_slot().is_none_or(|slot| slot.index() < slots) && self.last_epoch() <= Epoch::MAX
    }

    /// The largest slot that the message names, if any.
    pub(crate) fn last_slot(&self) -> Option<Slot> {
        match self {
            Self::Hello(hello) => {
                let owned = hello.owned.iter().map(|(slot, ..)| *slot);
                owned.chain(hello.owners.iter().map(|(slot, _)| *slot)).max()
            }
            Self::HandOff(hand_off) => Some(hand_off.slot),
            Self::Owns { slot, .. }
            | Self::Backup { slot, .. }
            | Self::BackupAck { slot, .. }
            | Self::BackupRefused { slot, .. }
            | Self::BackupBaseMissing { slot }
            | Self::RecoveryQuery { slot, .. }
            | Self::RecoveryReply { slot, .. }
            | Self::Orphan { slot, .. }
            | Self::NewerCopy { slot, .. } => Some(*slot),
            Self::Member(_)
            | Self::HandOffAck(_)
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. }
            | Self::Dead { .. }
            | Self::Status { .. }
            | Self::Assigned(_) => None,
        }
    }

    /// The largest epoch that the message names; the least one if it names none.
    fn last_epoch(&self) -> Epoch {
        match self {
            Self::Hello(hello) => {
                let owned = hello.owned.iter().flat_map(|(_, epoch, origin)| [*epoch, origin.epoch]);
                let owners = hello.owners.iter().map(|(_, owner)| owner.epoch);
                owned.chain(owners).max().unwrap_or_default()
            }
            Self::Owns { epoch, origin, .. } => origin.epoch.max(*epoch),
            Self::HandOff(hand_off) => {
                let HandOff { copy, origin, .. } = &**hand_off;
                copy.version.epoch.max(origin.version.epoch).max(origin.since)
            }
            Self::Backup { copy, .. } | Self::NewerCopy { copy, .. } => copy.version.epoch,
            Self::BackupAck { version, .. }
            | Self::BackupRefused { version, .. }
            | Self::RecoveryQuery { best: version, .. } => version.epoch,
            Self::RecoveryReply { owner, copy, .. } => {
                let owner = owner.map(|owner| owner.epoch);
                let copy = copy.as_ref().map(|copy| copy.version.epoch);
                owner.max(copy).unwrap_or_default()
            }
            Self::Orphan { owner, .. } => owner.epoch,
            Self::BackupBaseMissing { .. }
            | Self::Member(_)
            | Self::HandOffAck(_)
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. }
            | Self::Dead { .. }
            | Self::Status { .. }
            | Self::Assigned(_) => Epoch::default(),
        }
    }

    /// Whether slots may have to move after this message.
    pub(crate) fn may_move_slots(&self) -> bool {
        match self {
            Self::Hello(_)
            | Self::Member(_)
            | Self::Owns { .. }
            | Self::HandOff(_)
            | Self::HandOffAck(_)
            | Self::RecoveryReply { .. }
            | Self::Orphan { .. } => true,
            Self::Backup { .. }
            | Self::BackupAck { .. }
            | Self::BackupBaseMissing { .. }
            | Self::BackupRefused { .. }
            | Self::RecoveryQuery { .. }
            | Self::NewerCopy { .. }
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. }
            | Self::Dead { .. }
            | Self::Status { .. }
            | Self::Assigned(_) => false,
        }
    }

    /// The slot data in the message, which `wire` encodes apart: its instants are relative to the time of encoding.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &Arc<SlotData>> {
        let base = if let Self::HandOff(hand_off) = self { hand_off.origin.contents.as_ref() } else { None };
        let consumed = if let Self::Forward { check, .. } = self { check.operation.consumed() } else { None };
        self.copy().map(|copy| &copy.contents).into_iter().chain(base).chain(consumed)
    }

    /// The same, to be filled in after decoding.
    pub(crate) fn contents_mut(&mut self) -> impl Iterator<Item = &mut Arc<SlotData>> {
        let (copy, other) = match self {
            Self::HandOff(hand_off) => (Some(&mut hand_off.copy), hand_off.origin.contents.as_mut()),
            Self::Backup { copy, .. } | Self::NewerCopy { copy, .. } => (Some(copy), None),
            Self::RecoveryReply { copy, .. } => (copy.as_mut(), None),
            Self::Forward { check, .. } => (None, RemoteCheck::consumed_mut(check)),
            Self::Hello(_)
            | Self::Member(_)
            | Self::Owns { .. }
            | Self::HandOffAck(_)
            | Self::BackupAck { .. }
            | Self::BackupBaseMissing { .. }
            | Self::BackupRefused { .. }
            | Self::RecoveryQuery { .. }
            | Self::Orphan { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. }
            | Self::Dead { .. }
            | Self::Status { .. }
            | Self::Assigned(_) => (None, None),
        };
        copy.map(|copy| &mut copy.contents).into_iter().chain(other)
    }

    /// The copy of a slot in the message.
    fn copy(&self) -> Option<&SlotCopy> {
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

/// The content of the first message of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) record: MemberRecord,
    pub(crate) hash_secret: Option<HashSecret>,
    pub(crate) known: Vec<MemberRecord>,
    /// The slots of the sender: the epoch of its ownership, and the version that it started from.
    pub(crate) owned: Vec<(Slot, Epoch, Version)>,
    /// The newest owners that the sender knows.
    pub(crate) owners: Vec<(Slot, Owner)>,
}

/// Allocates once. As `serde` does it, the check is moved from one allocation to another.
fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<RemoteCheck>, D::Error> {
    RemoteCheck::deserialize(deserializer).map(Arc::new)
}

/// Encodes whether there is data, without the data.
fn presence<S: Serializer>(contents: &Option<Arc<SlotData>>, serializer: S) -> Result<S::Ok, S::Error> {
    contents.is_some().serialize(serializer)
}

fn empty_if_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<SlotData>>, D::Error> {
    Ok(bool::deserialize(deserializer)?.then(Arc::default))
}
