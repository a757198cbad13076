//! Copies of what has changed in the holds of a counter since the last such copy.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use rustc_hash::FxHasher;
use tollgate_counter::algorithm::{ChargePosition, LogCounter};

use crate::{
    HoldId,
    holds::{
        Hold, Holds,
        changes::{HoldChanges, Uncompared},
        ended::EndedHold,
    },
};

/// What is copied of the counter of the holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CounterCopy<'c> {
    /// The counter itself: its entries, if it is a log, have new instants.
    Whole,
    /// Only the changes of this log: its entries from `retained` on are new.
    Part { log: &'c LogCounter, retained: usize },
    /// There is no counter.
    Absent,
}

impl CounterCopy<'_> {
    /// Whether a hold at this position is copied because the instant of its entry is another one in the copy.
    fn moves(self, position: ChargePosition) -> bool {
        match (self, position) {
            (_, ChargePosition::Sum | ChargePosition::Window(_))
            | (Self::Absent, ChargePosition::Instant(_)) => false,
            (Self::Whole, ChargePosition::Instant(_)) => true,
            (Self::Part { log, retained }, ChargePosition::Instant(_)) => {
                log.index_of(position).is_some_and(|index| retained <= index)
            }
        }
    }

    /// The positions of the entries of these holds; nothing if their instants are those of the copy.
    fn positions(self, each: &[Hold]) -> Vec<Option<u16>> {
        match self {
            Self::Whole | Self::Absent => Vec::new(),
            Self::Part { log, .. } => {
                // A log has at most `LOG_ENTRIES_MAX` entries.
                let position = |hold: &Hold| u16::try_from(log.index_of(hold.held.position)?).ok();
                each.iter().map(position).collect()
            }
        }
    }
}

impl Hold {
    /// A number that differs if what may change of it has changed: each step of the hash is a bijection.
    fn state(&self) -> u64 {
        let mut hasher = FxHasher::default();
        let (position, instant) = match self.held.position {
            ChargePosition::Sum => (0, None),
            ChargePosition::Window(end) => (1, Some(end)),
            ChargePosition::Instant(at) => (2, Some(at)),
        };
        let instants = (instant.map(|at| at.as_nanos()), self.expires_at.as_nanos());
        (self.state, position, instants, self.held.taken, self.held.floor).hash(&mut hasher);
        // 0 stands for a hold that is new.
        hasher.finish().max(1)
    }
}

impl Holds {
    /// Makes all of them new for the next copy of changes.
    pub(super) fn forget_copies(&mut self) {
        self.each.iter_mut().for_each(|hold| hold.copied.0 = 0);
    }

    /// A copy of everything. The next copy of changes has what changes from now on.
    pub(crate) fn copy_all(&mut self) -> Self {
        for hold in &mut self.each {
            hold.copied.0 = hold.state();
        }
        let HoldChanges { last, .. } = self.changes;
        self.changes = HoldChanges { last, copied: Some(last), ..HoldChanges::default() };
        self.clone()
    }

    /// A copy for a backup that has the last copy: of the holds, those that are new or have changed since, and those
    /// whose entry of a log is copied with another instant.
    pub(crate) fn copy_changes(&mut self, counter: CounterCopy<'_>) -> Self {
        let Some(copied) = self.changes.copied else {
            let mut copy = self.copy_all();
            copy.changes.positions = counter.positions(&copy.each);
            return copy;
        };
        let mut each = Vec::new();
        for hold in &mut self.each {
            let state = hold.state();
            if std::mem::replace(&mut hold.copied.0, state) != state || counter.moves(hold.held.position) {
                each.push(hold.clone());
            }
        }
        let ended = self.ended.iter().filter(|(_, ended)| copied < ended.change.0);
        let ended: BTreeMap<HoldId, EndedHold> =
            ended.map(|(id, ended)| (id.clone(), ended.clone())).collect();
        let mut gone = std::mem::take(&mut self.changes.gone);
        gone.retain(|id| !ended.contains_key(id));
        let HoldChanges { last, .. } = self.changes;
        self.changes.copied = Some(last);
        let positions = counter.positions(&each);
        let changes = HoldChanges { last, copied: None, gone, is_partial: true, positions };
        let mut copy = Self { each, ended, changes, ..Self::new(&self.limit) }.with_bytes_of_ids();
        copy.set_next_expiry();
        copy.set_next_forgotten();
        copy
    }

    /// Moves holds whose positions in `log` are known to the instants of their entries.
    pub(crate) fn place_in(&mut self, log: &LogCounter) {
        let positions = std::mem::take(&mut self.changes.positions);
        for (hold, position) in self.each.iter_mut().zip(positions) {
            if let Some(at) = position.and_then(|position| log.instant_of(position.into())) {
                hold.held.position = ChargePosition::Instant(at);
            }
        }
    }

    /// The holds with what has not changed since an earlier copy, if only the changes since then are here.
    pub(crate) fn since(mut self, mut earlier: Self) -> Self {
        if !self.is_partial() {
            return self;
        }
        let gone: BTreeSet<&HoldId> = self.changes.gone.iter().chain(self.ended.keys()).collect();
        earlier.each.retain(|hold| !gone.contains(&hold.id));
        let places = earlier.each.iter().enumerate().map(|(index, hold)| (hold.id.clone(), index));
        let places: BTreeMap<HoldId, usize> = places.collect();
        for hold in std::mem::take(&mut self.each) {
            match places.get(&hold.id) {
                Some(index) => earlier.each[*index] = hold,
                // New ones are the last.
                None => earlier.each.push(hold),
            }
        }
        // What has ended later is younger.
        for (id, ended) in std::mem::take(&mut self.ended) {
            let change = Uncompared(earlier.changes.last + ended.change.0);
            earlier.ended.insert(id, EndedHold { change, ..ended });
        }
        let weighing: BTreeSet<&HoldId> = earlier.each.iter().map(|hold| &hold.id).collect();
        earlier.ended.retain(|id, _| !weighing.contains(id));
        earlier.changes.last += self.changes.last;
        if earlier.is_partial() {
            earlier.changes.gone.append(&mut self.changes.gone);
        }
        let Self { each, ended, changes, .. } = earlier;
        let mut all = Self { each, ended, changes, ..self }.with_bytes_of_ids();
        all.forget_oldest();
        all.set_next_forgotten();
        all.set_next_expiry();
        all
    }

    /// Whether what has not changed since an earlier copy is missing.
    pub(crate) fn is_partial(&self) -> bool {
        self.changes.is_partial
    }
}
