//! Side data: what only few counters have in addition to their packed form. Each kind has its meaning elsewhere; here is
//! what they share: one box, one codec, one way through copies, hand-off, snapshot and shared store, one listing of what
//! they take.
//!
//! Each function names every kind, so that the compiler finds what a new kind still needs.

use tollgate_counter::{
    algorithm::{Granted, Limit, OwnTerms},
    packed_counter::{Now, PackedCounter},
    time::Timestamp,
};

use crate::holds::{Holds, copies::CounterCopy};

pub(crate) mod codec;
pub(crate) mod own;
pub(crate) mod pending;

pub use codec::OWN_LIMIT_TAG;
use own::OwnLimit;
pub use own::{
    OWN_RECORD_MAX, OwnLimitChange, OwnLimitOutcome, OwnLimitPage, OwnLimitPosition, OwnLimitRefusal,
    OwnLimitState, SlotOwnLimits, read_own_limit,
};
use pending::CounterUsage;

/// The side data of one counter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SideData {
    /// Reservations, and ids that are retained. Invariant: not empty.
    pub(crate) holds: Option<Box<Holds>>,
    /// What other replicas have consumed. It is merged at the next check, because its weight depends on the limit.
    pub(crate) pending: Vec<CounterUsage>,
    /// Hits that are leased to other replicas. They stay here: borrowers report them to the next owner.
    pub(crate) leased: u64,
    /// What clients that decide by themselves have. It stays here: it moves with the divider of its slot.
    pub(crate) grant: Option<Box<CounterGrant>>,
    /// The limit of its own.
    pub(crate) own: Option<Box<OwnLimit>>,
    /// Records of kinds that this version does not know, unchanged.
    pub(crate) unknown: Vec<UnknownRecord>,
}

/// What is granted of the limit of a counter, and what is requested of the rest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CounterGrant {
    pub(crate) limit: Limit,
    pub(crate) granted: Granted,
    /// Hits that callers have requested since this was read.
    pub(crate) requested: u64,
}

/// A record with a tag that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownRecord {
    pub(crate) tag: u8,
    pub(crate) fields: Box<[u8]>,
}

/// What the side data of one counter takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SideDataSize {
    /// The bytes of the side data, heap included.
    pub(crate) bytes: usize,
    /// The bytes of the holds.
    pub(crate) hold_bytes: usize,
    /// The bytes of the limit of its own.
    pub(crate) own_bytes: usize,
    /// The number of limits of their own, 0 or 1.
    pub(crate) own_limits: usize,
    /// The open holds.
    pub(crate) open_holds: usize,
}

impl SideData {
    /// Side data of these holds.
    pub(crate) fn from_holds(holds: Box<Holds>) -> Self {
        Self { holds: Some(holds).filter(|holds| !holds.is_empty()), ..Self::default() }
    }

    /// The side data in a box, if there is any.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        (!self.is_empty()).then(|| Box::new(self))
    }

    /// Whether there is no side data.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { holds, pending, leased, grant, own, unknown } = self;
        let has_none = holds.is_none() && pending.is_empty() && *leased == 0 && grant.is_none();
        has_none && own.is_none() && unknown.is_empty()
    }

    /// What the side data takes.
    pub(crate) fn size(&self) -> SideDataSize {
        let Self { holds, pending, leased: _, grant, own, unknown } = self;
        let own_bytes = own.as_ref().map_or(0, |own| own.bytes());
        let hold_bytes = holds.as_ref().map_or(0, |holds| holds.bytes());
        let grant = grant.as_ref().map_or(0, |_| size_of::<CounterGrant>());
        let pending_bytes = pending.capacity() * size_of::<CounterUsage>();
        let pending_heap: usize = pending.iter().map(CounterUsage::heap_bytes).sum();
        let unknown_bytes: usize =
            unknown.iter().map(|record| size_of::<UnknownRecord>() + record.fields.len()).sum();
        SideDataSize {
            bytes: size_of::<Self>()
                + hold_bytes
                + own_bytes
                + grant
                + pending_bytes
                + pending_heap
                + unknown_bytes,
            hold_bytes,
            own_bytes,
            own_limits: own.iter().len(),
            open_holds: holds.as_ref().map_or(0, |holds| holds.open()),
        }
    }

    /// Drops what counts: the next answer is that of a new counter of the same limit.
    pub(crate) fn reset(&mut self) {
        let Self { holds, pending, leased: _, grant: _, own: _, unknown: _ } = self;
        *holds = None;
        pending.clear();
    }

    /// Drops what no longer changes an answer.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        let Self { holds, pending, leased: _, grant: _, own, unknown: _ } = self;
        own.take_if(|own| own.is_over(now));
        if let Some(holds) = holds {
            holds.forget(now);
        }
        holds.take_if(|holds| holds.is_empty());
        pending.retain(|usage| !usage.is_idle(now));
    }

    /// The instant from which it changes no answer. What stays in this process is not in it.
    pub(crate) fn forgotten_at(&self) -> Option<Timestamp> {
        let Self { holds, pending, leased: _, grant: _, own, unknown } = self;
        let holds = holds.as_ref().map(|holds| holds.forgotten_at());
        let own = own.as_ref().map(|own| own.ends_at());
        let pending = pending.iter().map(|usage| usage.packed.idle_at()).max();
        holds.max(pending).max(own).max((!unknown.is_empty()).then_some(Timestamp::MAX))
    }

    /// What a copy has of it: what stays in this process is left out.
    pub(crate) fn copy(&self) -> Self {
        self.copy_with(self.holds.clone())
    }

    /// Drops what stays in this process.
    pub(crate) fn drop_local(&mut self) {
        let Self { holds: _, pending: _, leased, grant, own: _, unknown: _ } = self;
        *leased = 0;
        *grant = None;
    }

    /// A copy of everything for a backup. The next copy of changes has what changes from now on.
    pub(crate) fn copy_all(&mut self) -> Self {
        let holds = self.holds.as_mut().map(|holds| Box::new(holds.copy_all()));
        self.copy_with(holds)
    }

    /// A copy of what has changed since the last copy, for a backup that has it.
    pub(crate) fn copy_changes(&mut self, counter: CounterCopy<'_>) -> Self {
        let holds = self.holds.as_mut().map(|holds| Box::new(holds.copy_changes(counter)));
        self.copy_with(holds)
    }

    /// A copy with these holds, and with the kinds that each copy of changes has as a whole.
    fn copy_with(&self, holds: Option<Box<Holds>>) -> Self {
        let Self { holds: _, pending, leased: _, grant: _, own, unknown } = self;
        Self {
            holds,
            pending: pending.clone(),
            own: own.clone(),
            unknown: unknown.clone(),
            ..Self::default()
        }
    }

    /// The side data of a copy with these changes, which leave out what has not changed since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let Self { holds, pending, leased, grant, own, mut unknown } = self;
        let is_replaced = |record: &UnknownRecord| unknown.iter().any(|later| later.tag == record.tag);
        let retained: Vec<UnknownRecord> =
            earlier.unknown.into_iter().filter(|record| !is_replaced(record)).collect();
        unknown.extend(retained);
        let holds = match (holds, earlier.holds) {
            (Some(later), Some(earlier)) => Some(Box::new(later.since(*earlier))),
            (later, _) => later,
        };
        Self { holds: holds.filter(|holds| !holds.is_empty()), pending, leased, grant, own, unknown }
    }

    /// Whether what has not changed since an earlier copy is missing.
    pub(crate) fn is_partial(&self) -> bool {
        self.holds.as_ref().is_some_and(|holds| holds.is_partial())
    }

    /// Moves what is at positions of entries to their instants in the log of its counter.
    pub(crate) fn place_in(&mut self, counter: &PackedCounter) {
        if let (Some(holds), Some(log)) = (&mut self.holds, counter.log()) {
            holds.place_in(log);
        }
    }

    /// Adds usage that is to be merged.
    pub(crate) fn add_pending(&mut self, usage: Vec<CounterUsage>) {
        if self.pending.is_empty() {
            self.pending = usage;
        } else {
            self.pending.extend(usage);
        }
    }

    /// Whether something of the side data is to be merged into its counter, or may be.
    pub(crate) fn is_due(&self, Now { now, given_up }: Now) -> bool {
        let Self { holds, pending, leased: _, grant: _, own: _, unknown: _ } = self;
        let are_due = |holds: &Holds| given_up.is_some() || holds.is_due(now);
        !pending.is_empty() || holds.as_deref().is_some_and(are_due)
    }

    /// Sets what is granted of its counter, which is divided from now on.
    pub(crate) fn set_granted(&mut self, limit: &Limit, granted: Granted) {
        let new = || Box::new(CounterGrant { limit: limit.clone(), granted, requested: 0 });
        let grant = self.grant.get_or_insert_with(new);
        if grant.limit != *limit {
            grant.limit = limit.clone();
        }
        grant.granted = granted;
    }

    /// The limit of its own that decides at `now`.
    pub(crate) fn own_terms(&self, now: Timestamp) -> Option<&OwnTerms> {
        self.own.as_ref()?.terms(now)
    }

    /// What is granted of its counter.
    pub(crate) fn granted(&self) -> Granted {
        self.grant.as_ref().map(|grant| grant.granted).unwrap_or_default()
    }
}

#[cfg(test)]
mod laws;
