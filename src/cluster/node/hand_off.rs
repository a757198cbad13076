//! Hand-offs: the owner sends the slot data to the new owner; later checks follow on the same link.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{HandOff, HandOffId, MemberState, Message, Origin, Owner, SlotCopy, Version},
        node::{Node, PendingHandOff, SlotOwnership},
    },
    store::{PendingUsage, Slot, SlotData},
    time::Timestamp,
};

/// How long an owner keeps the copy that it started from, for members that return with another history of the slot.
const ORIGIN_KEPT: Duration = Duration::from_secs(10 * 60);

impl Node {
    /// Hands off owned slots that belong to another member, a few at a time.
    pub(super) fn hand_off_misplaced(&mut self, now: Timestamp) {
        let mut in_flight: BTreeMap<MemberId, usize> = BTreeMap::new();
        for pending in self.hand_offs.values() {
            *in_flight.entry(pending.to).or_default() += 1;
        }
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let Some(ownership) = &state.ownership else { continue };
            // The receiver is an owner that wins over this replica, or else the intended owner.
            let winner = state.owner.filter(|owner| {
                owner.member != self.local_id
                    && (ownership.epoch, self.local_id) < (owner.epoch, owner.member)
            });
            let winner = winner.map(|owner| owner.member).filter(|member| !self.is_departed(*member));
            let to = winner.or(self.placement.owner(slot)).filter(|member| *member != self.local_id);
            if let Some(to) = to
                && self.is_reachable(to, now)
                && self.peers[&to].synced
                && in_flight.get(&to).is_none_or(|count| *count < self.settings.hand_offs_max)
            {
                *in_flight.entry(to).or_default() += 1;
                self.send_hand_off(slot, to, now);
            }
        }
    }

    pub(super) fn send_hand_off(&mut self, slot: Slot, to: MemberId, now: Timestamp) {
        let Some(ownership) = self.slot_mut(slot).ownership.take() else { return };
        let Some((contents, seq)) = self.memory.release(slot) else { return };
        let version = Version { epoch: ownership.epoch, seq };
        let copy = SlotCopy {
            version,
            contents: Arc::new(contents),
            grants: self.lease_owner.remove_slot(slot, self.slots.len(), self.moment(now)),
        };
        self.hand_offs_sent += 1;
        let id = HandOffId { from: self.local_id, number: self.hand_offs_sent };
        self.stats.handed_off += copy.contents.len() as u64;
        let pending =
            PendingHandOff { slot, copy: copy.clone(), origin: ownership.origin.clone(), to, at: now };
        self.hand_offs.insert(id, pending);
        let state = self.slot_mut(slot);
        state.owner = Some(Owner { epoch: ownership.epoch + 1, member: to });
        state.last_backup = None;
        // The slot data stays in `hand_offs` until the new owner acknowledges it, so earlier senders can drop theirs.
        self.acknowledge_hand_offs(slot);
        self.send(to, Message::HandOff(Box::new(HandOff { id, slot, copy, origin: ownership.origin })));
    }

    pub(super) fn receive_hand_off(&mut self, from: MemberId, hand_off: HandOff, now: Timestamp) {
        let HandOff { id, slot, copy, mut origin } = hand_off;
        self.stats.received += copy.contents.len() as u64;
        let mut extras = Vec::new();
        // The sender's lineage started from an older copy than the one that is stored here.
        if let Some(kept) = self.slot(slot).copy.as_ref().map(|kept| kept.copy.clone())
            && origin.version < kept.version
            && kept.version.epoch < origin.since
        {
            if let Some(base) = &origin.contents {
                extras.push(kept.contents.difference(base));
            }
            origin = Origin { version: kept.version, contents: Some(kept.contents), ..origin };
        }
        let crosses =
            |(_, pending): &(&HandOffId, &PendingHandOff)| pending.slot == slot && pending.to == from;
        let crossed: Vec<HandOffId> = self.hand_offs.iter().filter(crosses).map(|(id, _)| *id).collect();
        if !crossed.is_empty() && self.local_id < from {
            // Two hand-offs have crossed. The member with the larger id keeps the slot, and receives ours.
            self.send(from, Message::HandOffAck(id));
            return;
        }
        // These are all crossing hand-offs of this replica. The member with the smaller id has received none of them
        // since it sent this one.
        let back = crossed.iter().filter_map(|crossed| self.hand_offs.remove(crossed));
        let mut histories: Vec<(SlotCopy, Origin)> =
            back.map(|pending| (pending.copy, pending.origin)).collect();
        histories.push((copy, origin));
        histories.sort_by_key(|(copy, _)| copy.version);
        if let Some(ownership) = self.slot(slot).ownership.clone() {
            // The slot may have returned by another path while our hand-off was in flight.
            let mut epoch = ownership.epoch;
            for (copy, origin) in histories {
                extras.extend(diverged_consumption(&copy.contents, &origin, &ownership.origin));
                self.lease_owner.insert_grants(copy.grants, &self.memory, self.moment(now));
                epoch = epoch.max(copy.version.epoch);
            }
            if let Some(ownership) = &mut self.slot_mut(slot).ownership {
                ownership.epoch = epoch + 1;
            }
            self.announce_ownership(slot);
        } else if let Some((mut copy, origin)) = histories.pop() {
            for (other, its) in histories {
                extras.extend(diverged_consumption(&other.contents, &its, &origin));
                copy.grants.extend(other.grants);
            }
            // The epoch is larger than any that was announced, so that other members accept it.
            let heard = self.slot(slot).owner;
            let heard = heard.map_or(0, |owner| owner.epoch + u64::from(owner.member != self.local_id));
            let epoch = heard.max(copy.version.epoch + 1);
            self.take_ownership(slot, epoch, copy, origin, std::mem::take(&mut extras), now);
        }
        for extras in extras {
            self.memory.add(slot, extras, self.wall);
        }
        self.slot_mut(slot).acks_due.push(id);
        self.send_backup(slot, now);
    }

    /// Becomes the owner of `slot`, with its data and with consumption from other lineages.
    pub(super) fn take_ownership(
        &mut self,
        slot: Slot,
        epoch: u64,
        copy: SlotCopy,
        origin: Origin,
        consumed_elsewhere: Vec<PendingUsage>,
        now: Timestamp,
    ) {
        self.stats.slots_acquired += 1;
        let contents = Arc::unwrap_or_clone(copy.contents);
        self.memory.acquire(slot, contents, self.wall);
        for extras in consumed_elsewhere {
            self.memory.add(slot, extras, self.wall);
        }
        self.lease_owner.insert_grants(copy.grants, &self.memory, self.moment(now));
        let origin_expires_at = now.after(ORIGIN_KEPT);
        let state = self.slot_mut(slot);
        state.ownership = Some(SlotOwnership { epoch, origin, origin_expires_at });
        state.recovery = None;
        state.last_backup = None;
        // The owner needs no copy of its own slot.
        state.copy = None;
        self.announce_ownership(slot);
        self.send_backup(slot, now);
        self.retry_parked_of_slot(slot, now);
    }

    pub(super) fn announce_ownership(&mut self, slot: Slot) {
        let Some(ownership) = &self.slot(slot).ownership else { return };
        let (epoch, origin) = (ownership.epoch, ownership.origin.version);
        self.slot_mut(slot).owner = Some(Owner { epoch, member: self.local_id });
        self.broadcast(&Message::Owns { slot, epoch, origin });
    }

    /// Acknowledges the hand-offs of `slot`, whose data now has a backup.
    pub(super) fn acknowledge_hand_offs(&mut self, slot: Slot) {
        for owed in std::mem::take(&mut self.slot_mut(slot).acks_due) {
            self.send(owed.from, Message::HandOffAck(owed));
        }
    }

    /// The new owner has a backup of the slot, or there is no backup owner.
    pub(super) fn receive_hand_off_ack(&mut self, id: HandOffId, now: Timestamp) {
        if let Some(pending) = self.hand_offs.remove(&id) {
            self.stats.hand_off_nanos += now.nanos_since(pending.at);
            self.stats.hand_offs += 1;
        }
    }

    /// Records that `owner` owns the slot, as another member reports.
    pub(super) fn learn_owner(&mut self, slot: Slot, owner: Owner, now: Timestamp) {
        // This replica knows best which slots it owns.
        if owner.member == self.local_id {
            return;
        }
        let state = self.slot(slot);
        let ownership =
            state.ownership.as_ref().map(|ownership| Owner { epoch: ownership.epoch, member: self.local_id });
        if state.owner < Some(owner) {
            self.slot_mut(slot).owner = Some(owner);
        }
        if let Some(ownership) = ownership
            && ownership < owner
            && self.is_reachable(owner.member, now)
            && self.is_synced(owner.member)
        {
            self.send_hand_off(slot, owner.member, now);
        }
    }

    /// Records that `member` owns the slot, as it announces itself.
    pub(super) fn receive_owner(
        &mut self,
        member: MemberId,
        slot: Slot,
        epoch: u64,
        origin: Version,
        now: Timestamp,
    ) {
        let announced = Owner { epoch, member };
        if let Some(ownership) = &self.slot(slot).ownership
            && announced < (Owner { epoch: ownership.epoch, member: self.local_id })
        {
            let ours = Message::Owns { slot, epoch: ownership.epoch, origin: ownership.origin.version };
            self.send(member, ours);
        }
        self.learn_owner(slot, announced, now);
        // The owner may have started from an older copy than the one that is stored here.
        if let Some(kept) = &self.slot(slot).copy
            && origin < kept.copy.version
            && kept.copy.version.epoch < epoch
        {
            let better = Message::NewerCopy { slot, copy: kept.copy.clone() };
            self.send(member, better);
        }
    }

    /// Keeps the data of hand-offs to a departed member as ordinary copies.
    pub(super) fn recover_hand_offs_to(&mut self, member: MemberId, now: Timestamp) {
        let ids: Vec<HandOffId> =
            self.hand_offs.iter().filter(|(_, pending)| pending.to == member).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(PendingHandOff { slot, copy, .. }) = self.hand_offs.remove(&id) {
                self.store_newer_copy(slot, copy, now);
            }
        }
    }

    /// Drops the data that recoveries started from once no member can return with another history.
    pub(super) fn drop_old_origins(&mut self, now: Timestamp) {
        for state in &mut self.slots {
            if let Some(ownership) = &mut state.ownership
                && ownership.origin_expires_at <= now
                && ownership.origin.contents.as_ref().is_some_and(|contents| !contents.is_empty())
            {
                ownership.origin.contents = None;
            }
        }
    }

    /// Whether this replica may recover slots: it serves and is not isolated.
    pub(super) fn may_claim(&self) -> bool {
        self.record.state == MemberState::Serving && !self.isolated
    }
}

/// The consumption in the sender's lineage that the lineage of the new owner lacks.
fn diverged_consumption(given: &SlotData, giver: &Origin, keeper: &Origin) -> Option<PendingUsage> {
    let ancestor = if giver.since <= keeper.version.epoch {
        // The new owner started from a copy of the sender's lineage.
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
