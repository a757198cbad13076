//! Copies of the holds of a counter for other replicas: what has changed since the last one, and how what two replicas
//! have made of the same holds is merged.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use rustc_hash::FxHasher;
use tollgate_counter::{
    algorithm::{ChargePosition, Counter, HeldCharge, Limit, LogCounter},
    time::Timestamp,
};

use crate::{
    holds::{
        Hold, HoldState, Holds,
        changes::{HoldChanges, Uncompared},
        hold::EndedHold,
    },
    reservation::{HOLDS_MAX, HoldId, OnExpiry},
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

    /// Adds to `counter` and its holds what another replica has made of `base`, an earlier state of both. Without room,
    /// what is added stays charged, and its holds are unknown.
    ///
    /// A hold that has ended `there` is taken out here and of `base`, so that what is added has its used hits; unless
    /// its expiry has charged it here so long ago that it is forgotten, because then `base` and this counter have its
    /// hits. A hold that was made `there` becomes one of this counter. If both sides know it, the one here stays.
    pub(crate) fn absorb(
        &mut self,
        counter: &mut Counter,
        (mut counter_there, mut there): (Counter, Self),
        (mut counter_base, mut base): (Counter, Self),
        has_room: bool,
        now: Timestamp,
    ) {
        let limit = self.limit.clone();
        self.observe(&limit, counter, now);
        there.adopt(&limit);
        // All of them are new for the next copy of changes.
        there.each.iter_mut().for_each(|hold| hold.copied.0 = 0);
        base.adopt(&limit);

        let mut ended_there = base.ids_without(&there);
        ended_there.retain(|id| self.knows(id) || !base.is_charged_at_expiry(id));
        base.charge_expired_places(&mut counter_base, &there, &ended_there, now);
        ended_there.iter().for_each(|id| base.take_out(&mut counter_base, id, now));
        for id in ended_there.iter().chain(there.ended.keys()) {
            self.take_out(counter, id, now);
        }
        let new = there.ids_without(&base);
        let (known, new): (Vec<HoldId>, Vec<HoldId>) = new.into_iter().partition(|id| self.knows(id));
        known.iter().for_each(|id| there.take_out(&mut counter_there, id, now));

        let since = limit.since(&counter_there, &counter_base, now);
        limit.absorb(counter, &since, now);
        there.each.retain(|hold| new.contains(&hold.id));
        if has_room {
            self.add_weighed(&limit, counter, (since, there), now);
        } else {
            there.charge_all_places(&limit, counter, now);
        }
        self.set_next_expiry();
    }

    /// Adds the holds of an absorbed counter, each at what it weighs in that, as if it had been charged now.
    fn add_weighed(
        &mut self,
        limit: &Limit,
        counter: &mut Counter,
        (mut absorbed, mut holds): (Counter, Self),
        now: Timestamp,
    ) {
        holds.observe(limit, &absorbed, now);
        while !holds.each.is_empty() && self.each.len() < HOLDS_MAX {
            let (mut hold, taken) = holds.take_back(0, &mut absorbed, 0, now);
            if !hold.keeps_places(limit) {
                hold.held = HeldCharge { taken, floor: u128::MAX, ..hold.held };
                limit.observe(&mut hold.held, counter, now);
            }
            self.id_bytes += hold.id.bytes.len();
            self.each.push(hold);
        }
        holds.charge_all_places(limit, counter, now);
        let mut ended: Vec<_> = holds.ended.into_iter().collect();
        ended.sort_by_key(|(_, ended)| ended.change.0);
        for (id, ended) in ended {
            match self.ended.get(&id) {
                Some(own) if own.settled.is_some() => continue,
                Some(_) => {}
                None => self.id_bytes += id.bytes.len(),
            }
            let EndedHold { answer, settled, forgotten_at, change: _ } = ended;
            self.remember(id, answer, settled, forgotten_at);
        }
    }

    /// Charges the places of holds that their expiry has charged in `there`, so that they count as not new there.
    fn charge_expired_places(&self, counter: &mut Counter, there: &Self, ended: &[HoldId], now: Timestamp) {
        let is_open =
            |id: &HoldId| there.each.iter().any(|hold| hold.id == *id && hold.state == HoldState::Open);
        for hold in self.each.iter().filter(|hold| hold.keeps_places(&self.limit)) {
            if !ended.contains(&hold.id) && !is_open(&hold.id) {
                hold.charge_places(&self.limit, counter, hold.hits, now);
            }
        }
    }

    /// Charges the places that holds keep which become unknown.
    fn charge_all_places(&self, limit: &Limit, counter: &mut Counter, now: Timestamp) {
        for hold in self.each.iter().filter(|hold| hold.keeps_places(limit)) {
            hold.charge_places(limit, counter, hold.hits, now);
        }
    }

    /// The ids of the holds that still weigh something, except those of `others`.
    fn ids_without(&self, others: &Self) -> Vec<HoldId> {
        let is_other = |id: &HoldId| others.each.iter().any(|other| other.id == *id);
        self.each.iter().map(|hold| &hold.id).filter(|id| !is_other(id)).cloned().collect()
    }

    fn is_charged_at_expiry(&self, id: &HoldId) -> bool {
        self.each.iter().any(|hold| hold.id == *id && hold.on_expiry == OnExpiry::Charge)
    }

    fn knows(&self, id: &HoldId) -> bool {
        self.ended.contains_key(id) || self.each.iter().any(|hold| hold.id == *id)
    }

    /// Takes a hold back in full, and forgets it.
    fn take_out(&mut self, counter: &mut Counter, id: &HoldId, now: Timestamp) {
        if let Some(index) = self.each.iter().position(|hold| hold.id == *id) {
            let (hold, _) = self.take_back(index, counter, 0, now);
            self.id_bytes -= hold.id.bytes.len();
        }
    }
}
