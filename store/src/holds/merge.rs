//! Merges what two replicas have made of the same holds.

use tollgate_counter::{
    algorithm::{Counter, HeldCharge, Limit},
    time::Timestamp,
};

use crate::{
    HOLDS_MAX, HoldId, OnExpiry,
    holds::{HoldState, Holds},
};

impl Holds {
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
        there.forget_copies();
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
            self.remember(id, ended);
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
