//! What replicas tell each other.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::{
    algorithm::{Decision, Limit, Operation, Receipt},
    cluster::MemberId,
    descriptor::{Key, Secret},
    store::{Slot, SlotData},
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
pub(crate) struct Holder {
    pub(crate) epoch: u64,
    pub(crate) member: MemberId,
}

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does not know yet who holds what.
    Joining,
    /// It answers, and holds slots.
    Serving,
    /// It answers still, and hands its slots on.
    Draining,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: MemberId,
    /// Where others reach it.
    pub(crate) address: String,
    pub(crate) state: State,
    /// A hash of the rules that it decides by.
    pub(crate) rules: u64,
    /// How often this has changed. The larger is the newer.
    pub(crate) changes: u64,
}

/// What the keys of all counters are hashed with, and who made it: of two, that of the smaller member stays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hashing {
    pub(crate) founder: MemberId,
    pub(crate) secret: Secret,
}

/// The counters of a slot, as they were at a version, and the slices that were lent out of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copy {
    pub(crate) version: Version,
    pub(crate) contents: Arc<SlotData>,
    pub(crate) slices: Vec<Slice>,
}

/// What a holder started from when it claimed a slot that nobody held. Whoever it hands the slot to goes on from there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    /// The copy that was claimed; that of nothing is the least of all.
    pub(crate) version: Version,
    /// The epoch that the claim began.
    pub(crate) since: u64,
    /// That copy, for as long as it is kept.
    pub(crate) contents: Option<Arc<SlotData>>,
}

/// Which hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransferId {
    pub(crate) from: MemberId,
    pub(crate) number: u64,
}

/// A slot on its way to another holder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) slot: Slot,
    pub(crate) copy: Copy,
    pub(crate) origin: Origin,
}

/// A part of what a key allows, lent to a replica that is asked for it often.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) lessee: MemberId,
    /// Tells the slices of one key and lessee apart.
    pub(crate) number: u64,
    /// Hits of it that are not accounted for.
    pub(crate) left: u64,
    /// It is over after this time.
    pub(crate) life: Duration,
    /// What was charged of it because its borrower was not heard in time.
    pub(crate) charged: Option<Charged>,
}

/// The unaccounted hits of a slice, charged as if they were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    /// At least one.
    pub(crate) hits: NonZeroU64,
    /// How long ago they count as used.
    pub(crate) age: Duration,
}

/// Something to do to one counter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) deed: Deed,
    /// Hits that the asker would like to have lent, for it is asked often.
    pub(crate) wish: u64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    /// Decide.
    Ask(Operation),
    /// Take back one charge, and look.
    Undo(Receipt),
    /// Add what was consumed elsewhere.
    Absorb(Arc<SlotData>),
    /// Add what was consumed of a slice.
    Settle(Settlement),
    /// Put this many hits in place of whatever is counted.
    Set(u64),
}

/// What became of a slice since it was last told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settlement {
    pub(crate) lessee: MemberId,
    pub(crate) number: u64,
    /// Hits that were used.
    pub(crate) hits: u64,
    /// Hits of it that are not used. What is told overtakes what was told before, when a slot changes hands.
    pub(crate) left: u64,
    /// How long ago the last of them was.
    pub(crate) age: Duration,
    pub(crate) end: End,
}

/// Whether a slice goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
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
        grant: Option<Grant>,
    },
    /// The holder cannot be reached, or does not trust what it holds.
    Unreachable,
}

/// What an answer says about further asks for the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// So many hits are the asker's to give, for a time.
    Slice { number: u64, hits: u64, life: Duration },
    /// Everything is refused, for a time.
    Nothing { life: Duration },
}

/// One message. Messages between two members arrive in the order in which they were sent, each once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The first of a session: who I am, whom I know, and who holds what.
    Hello(Box<Hello>),
    /// Something about a member has changed.
    Member(Record),
    /// I hold this slot now.
    Holds { slot: Slot, epoch: u64, origin: Version },
    /// You hold this slot now.
    Transfer(Box<Transfer>),
    /// I hold what you handed me, and it is safe.
    Taken(TransferId),
    /// Keep this for me.
    Backup {
        slot: Slot,
        copy: Copy,
        /// It holds what has changed after this one; `None` where it is all.
        after: Option<u64>,
    },
    /// I keep what you held at this version.
    Backed { slot: Slot, version: Version },
    /// I lack what your backup builds upon.
    Lacking { slot: Slot },
    /// Nobody seems to hold this slot, whose newest copy that I know of is this one. These are proven dead.
    Query { slot: Slot, best: Version, dead: Vec<MemberId> },
    /// What I know of that slot.
    Known {
        slot: Slot,
        holder: Option<Holder>,
        /// Whether I have heard of that holder lately.
        alive: bool,
        /// The copy that I keep, if it is newer.
        copy: Option<Copy>,
    },
    /// You should hold this slot, and its last holder is gone.
    Orphan { slot: Slot, holder: Holder, dead: Vec<MemberId> },
    /// You started from an older copy than this one.
    Better { slot: Slot, copy: Copy },
    /// Answer this within the time.
    Ask { ticket: u64, question: Arc<Question>, budget: Duration, hops: u8 },
    /// The answer.
    Answer { ticket: u64, reply: Reply },
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
                let held = hello.held.iter().map(|(slot, ..)| *slot);
                held.chain(hello.holders.iter().map(|(slot, _)| *slot)).max()
            }
            Self::Transfer(transfer) => Some(transfer.slot),
            Self::Holds { slot, .. }
            | Self::Backup { slot, .. }
            | Self::Backed { slot, .. }
            | Self::Lacking { slot }
            | Self::Query { slot, .. }
            | Self::Known { slot, .. }
            | Self::Orphan { slot, .. }
            | Self::Better { slot, .. } => Some(*slot),
            Self::Member(_)
            | Self::Taken(_)
            | Self::Ask { .. }
            | Self::Answer { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => None,
        }
    }

    /// Whether it may be time to look at all slots after it.
    pub(crate) fn may_move_slots(&self) -> bool {
        match self {
            Self::Hello(_)
            | Self::Member(_)
            | Self::Holds { .. }
            | Self::Transfer(_)
            | Self::Taken(_)
            | Self::Known { .. }
            | Self::Orphan { .. } => true,
            Self::Backup { .. }
            | Self::Backed { .. }
            | Self::Lacking { .. }
            | Self::Query { .. }
            | Self::Better { .. }
            | Self::Ask { .. }
            | Self::Answer { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => false,
        }
    }

    /// About how many bytes it takes on the wire.
    pub(crate) fn weight(&self) -> usize {
        /// A counter with its key.
        const COUNTER: usize = 40;
        /// Most messages.
        const USUAL: usize = 64;
        let of = |copy: &Copy| USUAL + COUNTER * (copy.contents.len() + copy.slices.len());
        match self {
            Self::Hello(hello) => {
                USUAL * (1 + hello.known.len()) + COUNTER * (hello.held.len() + hello.holders.len())
            }
            Self::Transfer(transfer) => {
                let origin = transfer.origin.contents.as_ref().map_or(0, |contents| contents.len());
                of(&transfer.copy) + COUNTER * origin
            }
            Self::Backup { copy, .. } | Self::Better { copy, .. } | Self::Known { copy: Some(copy), .. } => {
                of(copy)
            }
            Self::Member(_)
            | Self::Holds { .. }
            | Self::Taken(_)
            | Self::Backed { .. }
            | Self::Lacking { .. }
            | Self::Query { .. }
            | Self::Known { copy: None, .. }
            | Self::Orphan { .. }
            | Self::Ask { .. }
            | Self::Answer { .. }
            | Self::Recall { .. }
            | Self::Revoke { .. } => USUAL,
        }
    }
}

/// How two members begin to talk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) record: Record,
    pub(crate) hashing: Option<Hashing>,
    pub(crate) known: Vec<Record>,
    /// The slots that I hold: since when, and what I started from.
    pub(crate) held: Vec<(Slot, u64, Version)>,
    /// The newest holders that I know of.
    pub(crate) holders: Vec<(Slot, Holder)>,
}
