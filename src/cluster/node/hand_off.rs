//! A slot changes hands: the counters go out, and later requests follow them on the same link.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Copy, Holder, Message, Origin, State, Transfer, TransferId, Version},
        node::{Held, Node, Pending},
    },
    store::{PendingUsage, Slot, SlotData},
    time::Timestamp,
};

/// How long a holder keeps what it started from, for those who come back with another history of the same slot.
const ORIGIN_KEPT: Duration = Duration::from_secs(10 * 60);

impl Node {
    /// Moves what is held here and should be elsewhere, a few slots at a time.
    pub(super) fn hand_off_unwanted(&mut self, now: Timestamp) {
        let mut in_flight: BTreeMap<MemberId, usize> = BTreeMap::new();
        for pending in self.pending.values() {
            *in_flight.entry(pending.to).or_default() += 1;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let Some(held) = &state.held else { continue };
            // Somebody else has the better claim, or is the one who is wanted.
            let better = state.holder.filter(|holder| {
                holder.member != self.me && (held.epoch, self.me) < (holder.epoch, holder.member)
            });
            let better = better.map(|holder| holder.member).filter(|member| !self.is_gone(*member));
            let to = better.or(self.wanted.holder(slot)).filter(|member| *member != self.me);
            if let Some(to) = to
                && self.hears(to, now)
                && self.peers[&to].mapped
                && in_flight.get(&to).is_none_or(|count| *count < self.tuning.transfers_max)
            {
                *in_flight.entry(to).or_default() += 1;
                self.give(slot, to, now);
            }
        }
    }

    pub(super) fn give(&mut self, slot: Slot, to: MemberId, now: Timestamp) {
        let Some(held) = self.slot_mut(slot).held.take() else { return };
        let Some((contents, seq)) = self.memory.release(slot) else { return };
        let version = Version { epoch: held.epoch, seq };
        let copy = Copy {
            version,
            contents: Arc::new(contents),
            slices: self.lender.take_out(slot, self.slots.len(), self.moment(now)),
        };
        self.transfers += 1;
        let id = TransferId { from: self.me, number: self.transfers };
        self.figures.handed_off += copy.contents.len() as u64;
        let pending = Pending { slot, copy: copy.clone(), origin: held.origin.clone(), to, at: now };
        self.pending.insert(id, pending);
        let state = self.slot_mut(slot);
        state.holder = Some(Holder { epoch: held.epoch + 1, member: to });
        state.sent = None;
        // What was handed to us is kept here until it is safe there, so nobody else need keep it.
        self.acknowledge(slot);
        self.send(to, Message::Transfer(Box::new(Transfer { id, slot, copy, origin: held.origin })));
    }

    pub(super) fn take(&mut self, from: MemberId, transfer: Transfer, now: Timestamp) {
        let Transfer { id, slot, copy, mut origin } = transfer;
        self.figures.received += copy.contents.len() as u64;
        let mut extras = Vec::new();
        // The sender's lineage began at an older copy than the one that is kept here.
        if let Some(kept) = self.slot(slot).copy.as_ref().map(|kept| kept.copy.clone())
            && origin.version < kept.version
            && kept.version.epoch < origin.since
        {
            if let Some(base) = &origin.contents {
                extras.push(kept.contents.difference(base));
            }
            origin = Origin { version: kept.version, contents: Some(kept.contents), ..origin };
        }
        let crosses = |(_, pending): &(&TransferId, &Pending)| pending.slot == slot && pending.to == from;
        let crossed: Vec<TransferId> = self.pending.iter().filter(crosses).map(|(id, _)| *id).collect();
        if !crossed.is_empty() && self.me < from {
            // The larger one keeps it, and has ours coming.
            self.send(from, Message::Taken(id));
            return;
        }
        // All that we have sent to it: the smaller one has taken none of that since it sent this.
        let back = crossed.iter().filter_map(|crossed| self.pending.remove(crossed));
        let mut histories: Vec<(Copy, Origin)> = back.map(|pending| (pending.copy, pending.origin)).collect();
        histories.push((copy, origin));
        histories.sort_by_key(|(copy, _)| copy.version);
        if let Some(held) = self.slot(slot).held.clone() {
            // It may have come back by another way while ours was on its way.
            let mut epoch = held.epoch;
            for (copy, origin) in histories {
                extras.extend(consumed_apart(&copy.contents, &origin, &held.origin));
                self.lender.take_in(copy.slices, &self.memory, self.moment(now));
                epoch = epoch.max(copy.version.epoch);
            }
            if let Some(held) = &mut self.slot_mut(slot).held {
                held.epoch = epoch + 1;
            }
            self.announce(slot);
        } else if let Some((mut copy, origin)) = histories.pop() {
            for (other, its) in histories {
                extras.extend(consumed_apart(&other.contents, &its, &origin));
                copy.slices.extend(other.slices);
            }
            // Newer than whatever was heard of, or others would go on believing that.
            let heard = self.slot(slot).holder;
            let heard = heard.map_or(0, |holder| holder.epoch + u64::from(holder.member != self.me));
            let epoch = heard.max(copy.version.epoch + 1);
            self.hold(slot, epoch, copy, origin, std::mem::take(&mut extras), now);
        }
        for extras in extras {
            self.memory.add(slot, extras, self.wall);
        }
        self.slot_mut(slot).owed.push(id);
        self.push_backup(slot, now);
    }

    /// Holds `slot` from now on, with what was consumed of it elsewhere.
    pub(super) fn hold(
        &mut self,
        slot: Slot,
        epoch: u64,
        copy: Copy,
        origin: Origin,
        elsewhere: Vec<PendingUsage>,
        now: Timestamp,
    ) {
        self.figures.changes_of_hands += 1;
        let contents = Arc::unwrap_or_clone(copy.contents);
        self.memory.acquire(slot, contents, self.wall);
        for extras in elsewhere {
            self.memory.add(slot, extras, self.wall);
        }
        self.lender.take_in(copy.slices, &self.memory, self.moment(now));
        let origin_kept_until = now.after(ORIGIN_KEPT);
        let state = self.slot_mut(slot);
        state.held = Some(Held { epoch, origin, origin_kept_until });
        state.query = None;
        state.sent = None;
        // What is held is not kept besides.
        state.copy = None;
        self.announce(slot);
        self.push_backup(slot, now);
        self.ask_parked(slot, now);
    }

    pub(super) fn announce(&mut self, slot: Slot) {
        let Some(held) = &self.slot(slot).held else { return };
        let (epoch, origin) = (held.epoch, held.origin.version);
        self.slot_mut(slot).holder = Some(Holder { epoch, member: self.me });
        self.tell_all(&Message::Holds { slot, epoch, origin });
    }

    /// What was handed to this replica is safe.
    pub(super) fn acknowledge(&mut self, slot: Slot) {
        for owed in std::mem::take(&mut self.slot_mut(slot).owed) {
            self.send(owed.from, Message::Taken(owed));
        }
    }

    /// Whoever took this has a backup of it, or keeps it as the last one there is.
    pub(super) fn taken(&mut self, id: TransferId, now: Timestamp) {
        if let Some(pending) = self.pending.remove(&id) {
            self.figures.hand_off_nanos += now.nanos_since(pending.at);
            self.figures.hand_offs += 1;
        }
    }

    /// The slot is held by somebody, as far as anybody knows.
    pub(super) fn learn(&mut self, slot: Slot, holder: Holder, now: Timestamp) {
        // What is held here nobody knows better.
        if holder.member == self.me {
            return;
        }
        let state = self.slot(slot);
        let held = state.held.as_ref().map(|held| Holder { epoch: held.epoch, member: self.me });
        if state.holder < Some(holder) {
            self.slot_mut(slot).holder = Some(holder);
        }
        if let Some(held) = held
            && held < holder
            && self.hears(holder.member, now)
            && self.is_mapped(holder.member)
        {
            self.give(slot, holder.member, now);
        }
    }

    /// The slot is held by `who`, who says so itself.
    pub(super) fn told_holder(
        &mut self,
        who: MemberId,
        slot: Slot,
        epoch: u64,
        origin: Version,
        now: Timestamp,
    ) {
        let theirs = Holder { epoch, member: who };
        if let Some(held) = &self.slot(slot).held
            && theirs < (Holder { epoch: held.epoch, member: self.me })
        {
            let ours = Message::Holds { slot, epoch: held.epoch, origin: held.origin.version };
            self.send(who, ours);
        }
        self.learn(slot, theirs, now);
        // It may have started from an older copy than ours.
        if let Some(kept) = &self.slot(slot).copy
            && origin < kept.copy.version
            && kept.copy.version.epoch < epoch
        {
            let better = Message::Better { slot, copy: kept.copy.clone() };
            self.send(who, better);
        }
    }

    /// Hand-offs to somebody who is gone: what was kept of them is a copy like any other.
    pub(super) fn recover_transfers_to(&mut self, member: MemberId, now: Timestamp) {
        let theirs: Vec<TransferId> =
            self.pending.iter().filter(|(_, pending)| pending.to == member).map(|(id, _)| *id).collect();
        for id in theirs {
            if let Some(Pending { slot, copy, .. }) = self.pending.remove(&id) {
                self.keep_newer(slot, copy, now);
            }
        }
    }

    /// Gives up what was kept of the time before a claim, when nobody will come with another history any more.
    pub(super) fn drop_old_origins(&mut self, now: Timestamp) {
        for state in &mut self.slots {
            if let Some(held) = &mut state.held
                && held.origin_kept_until <= now
                && held.origin.contents.as_ref().is_some_and(|contents| !contents.is_empty())
            {
                held.origin.contents = None;
            }
        }
    }

    /// Whether it may claim slots: it knows the map, and goes on serving.
    pub(super) fn may_claim(&self) -> bool {
        self.record.state == State::Serving && !self.isolated
    }
}

/// What the giver's lineage has consumed that the keeper's does not know.
fn consumed_apart(given: &SlotData, giver: &Origin, keeper: &Origin) -> Option<PendingUsage> {
    let ancestor = if giver.since <= keeper.version.epoch {
        // The keeper started from a copy of the giver's lineage.
        keeper
    } else if keeper.since <= giver.version.epoch {
        giver
    } else if keeper.version <= giver.version {
        // Both started from copies of a third lineage.
        keeper
    } else {
        giver
    };
    ancestor.contents.as_ref().map(|ancestor| given.difference(ancestor))
}
