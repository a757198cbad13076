//! What replicas tell each other.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::{
    algorithm::{Ask, Decision, Limit, Receipt},
    cluster::MemberId,
    descriptor::{Key, Secret},
    store::{Contents, Slot},
};

/// How far a slot's counters are: the larger, the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// Grows with every change of hands.
    pub(crate) epoch: u64,
    /// Grows with every change of a counter.
    pub(crate) seq: u64,
}

/// Who holds a slot, and since which change of hands. Of two, the larger one keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    pub(crate) member: MemberId,
}

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It does not know yet who holds what.
    Joining,
    /// It answers, and holds slots.
    Serving,
    /// It answers still, and hands its slots on.
    Draining,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub(crate) id: MemberId,
    /// Where others reach it.
    pub(crate) address: String,
    pub(crate) state: MemberState,
    /// A hash of the rules that it decides by.
    pub(crate) rules: u64,
    /// How often this has changed. The larger is the newer.
    pub(crate) changes: u64,
}

/// What the keys of all counters are hashed with, and who made it: of two, that of the smaller member stays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HashSecret {
    pub(crate) founder: MemberId,
    pub(crate) secret: Secret,
}

/// The counters of a slot, as they were at a version, and the slices that were lent out of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlotCopy {
    pub(crate) version: Version,
    pub(crate) contents: Arc<Contents>,
    pub(crate) grants: Vec<Grant>,
}

/// What a holder started from when it claimed a slot that nobody held. Whoever it hands the slot to goes on from there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    /// The copy that was claimed; that of nothing is the least of all.
    pub(crate) version: Version,
    /// The epoch that the claim began.
    pub(crate) since: u64,
    /// That copy, for as long as it is kept.
    pub(crate) contents: Option<Arc<Contents>>,
}

/// Which hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HandOffId {
    pub(crate) from: MemberId,
    pub(crate) number: u64,
}

/// A slot on its way to another holder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HandOff {
    pub(crate) id: HandOffId,
    pub(crate) slot: Slot,
    pub(crate) copy: SlotCopy,
    pub(crate) origin: Origin,
}

/// A part of what a key allows, lent to a replica that is asked for it often.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) borrower: MemberId,
    /// Tells the slices of one key and lessee apart.
    pub(crate) number: u64,
    /// Hits of it that are not accounted for.
    pub(crate) left: u64,
    /// It is over after this time.
    pub(crate) ttl: Duration,
    /// What was charged of it because its borrower was not heard in time.
    pub(crate) charged: Option<ChargedHits>,
}

/// The unaccounted hits of a slice, charged as if they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChargedHits {
    /// At least one.
    pub(crate) hits: NonZeroU64,
    /// How long ago they count as used.
    pub(crate) age: Duration,
}

/// Something to do to one counter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RemoteCheck {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) operation: RemoteOperation,
    /// Hits that the asker would like to have lent, for it is asked often.
    pub(crate) lease_hits: u64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RemoteOperation {
    /// Decide.
    Decide(Ask),
    /// Take back one charge, and look.
    Undo(Receipt),
    /// Add what was consumed elsewhere.
    Absorb(Arc<Contents>),
    /// Add what was consumed of a slice.
    Settle(Settlement),
    /// Put this many hits in place of whatever is counted.
    Set(u64),
}

/// What became of a slice since it was last told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settlement {
    pub(crate) borrower: MemberId,
    pub(crate) number: u64,
    /// Hits that were used.
    pub(crate) hits: u64,
    /// Hits of it that are not used. What is told overtakes what was told before, when a slot changes hands.
    pub(crate) left: u64,
    /// How long ago the last of them was.
    pub(crate) age: Duration,
    pub(crate) state: LeaseState,
}

/// Whether a slice goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// There may be more.
    Open,
    /// The rest of it is given back.
    Closed,
}

/// The answer of a holder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// What was decided.
    Decided {
        decision: Decision,
        /// Hits that were charged.
        charged: u64,
        lease: Option<LeaseReply>,
    },
    /// The holder cannot be reached, or does not trust what it holds.
    Unreachable,
}

/// What an answer says about further asks for the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseReply {
    /// So many hits are the asker's to give, for a time.
    Granted { number: u64, hits: u64, ttl: Duration },
    /// Everything is refused, for a time.
    Refused { ttl: Duration },
}

/// One message. Messages between two members arrive in the order in which they were sent, each once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The first of a session: who I am, whom I know, and who holds what.
    Hello(Box<Hello>),
    /// Something about a member has changed.
    Member(MemberRecord),
    /// I hold this slot now.
    Owns { slot: Slot, epoch: u64, origin: Version },
    /// You hold this slot now.
    HandOff(Box<HandOff>),
    /// I hold what you handed me, and it is safe.
    HandOffAck(HandOffId),
    /// Keep this for me.
    Backup {
        slot: Slot,
        copy: SlotCopy,
        /// It holds what has changed after this one; `None` where it is all.
        after: Option<u64>,
    },
    /// I keep what you held at this version.
    BackupAck { slot: Slot, version: Version },
    /// I lack what your backup builds upon.
    BackupBaseMissing { slot: Slot },
    /// Nobody seems to hold this slot, whose newest copy that I know of is this one. These are proven dead.
    RecoveryQuery { slot: Slot, best: Version, dead: Vec<MemberId> },
    /// What I know of that slot.
    RecoveryReply {
        slot: Slot,
        owner: Option<Owner>,
        /// Whether I have heard of that holder lately.
        alive: bool,
        /// The copy that I keep, if it is newer.
        copy: Option<SlotCopy>,
    },
    /// You should hold this slot, and its last holder is gone.
    Orphan { slot: Slot, owner: Owner, dead: Vec<MemberId> },
    /// You started from an older copy than this one.
    NewerCopy { slot: Slot, copy: SlotCopy },
    /// Answer this within the time.
    Forward { ticket: u64, check: Arc<RemoteCheck>, budget: Duration, hops: u8 },
    /// The answer.
    Reply { ticket: u64, reply: Reply },
    /// Give back what I lent you of this key.
    Recall { key: Key },
    /// This key is refused no longer.
    Revoke { key: Key },
}

impl Message {
    /// The largest slot that it speaks of, if it speaks of any.
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
            | Self::Revoke { .. } => None,
        }
    }

    /// Whether it may be time to look at all slots after it.
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
            | Self::RecoveryQuery { .. }
            | Self::NewerCopy { .. }
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => false,
        }
    }

    /// About how many bytes it takes on the wire.
    pub(crate) fn wire_bytes(&self) -> usize {
        /// A counter with its key.
        const COUNTER_BYTES: usize = 40;
        /// Most messages.
        const MESSAGE_BYTES: usize = 64;
        let of = |copy: &SlotCopy| MESSAGE_BYTES + COUNTER_BYTES * (copy.contents.len() + copy.grants.len());
        match self {
            Self::Hello(hello) => {
                MESSAGE_BYTES * (1 + hello.known.len())
                    + COUNTER_BYTES * (hello.owned.len() + hello.owners.len())
            }
            Self::HandOff(hand_off) => {
                let origin = hand_off.origin.contents.as_ref().map_or(0, |contents| contents.len());
                of(&hand_off.copy) + COUNTER_BYTES * origin
            }
            Self::Backup { copy, .. }
            | Self::NewerCopy { copy, .. }
            | Self::RecoveryReply { copy: Some(copy), .. } => of(copy),
            Self::Member(_)
            | Self::Owns { .. }
            | Self::HandOffAck(_)
            | Self::BackupAck { .. }
            | Self::BackupBaseMissing { .. }
            | Self::RecoveryQuery { .. }
            | Self::RecoveryReply { copy: None, .. }
            | Self::Orphan { .. }
            | Self::Forward { .. }
            | Self::Reply { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => MESSAGE_BYTES,
        }
    }
}

/// How two members begin to talk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) record: MemberRecord,
    pub(crate) hash_secret: Option<HashSecret>,
    pub(crate) known: Vec<MemberRecord>,
    /// The slots that I hold: since when, and what I started from.
    pub(crate) owned: Vec<(Slot, u64, Version)>,
    /// The newest holders that I know of.
    pub(crate) owners: Vec<(Slot, Owner)>,
}
