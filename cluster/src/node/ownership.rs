//! Slot ownership and hand-offs: the owner sends the slot data to the new owner; later checks follow on the same link.
//!
//! Invariants: a slot has at most one owner, and only the owner announces its ownership. A slot that is owned here is
//! also held by the memory. A slot that was handed off is retained here until the receiver acknowledges it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tollgate_counter::time::Timestamp;
use tollgate_store::{Consumption, Epoch, Memory, Slot, SlotData};

use crate::{
    member::MemberId,
    message::{
        Message, SlotOwner,
        slot::{HandOff, HandOffId, RecoveryOrigin, SlotGrants, Version, VersionedSlot},
    },
    node::{context::Context, membership::Membership, output::NodeOutput},
};

/// How long an owner keeps the copy that it started from, for members that return with another history of the slot.
const ORIGIN_RETENTION: Duration = Duration::from_secs(10 * 60);

/// The owners of all slots, and the slots on their way to another owner.
#[derive(Debug)]
pub(super) struct Ownership {
    local_id: MemberId,
    memory: Arc<Memory>,
    slots: Vec<SlotState>,
    /// The slots that wait to be handed off, by receiver, as found by the last search.
    misplaced: BTreeMap<MemberId, VecDeque<Slot>>,
    /// The hand-offs that are not acknowledged yet.
    hand_offs: BTreeMap<HandOffId, PendingHandOff>,
    hand_offs_sent: u64,
    /// The most hand-offs that one peer has not acknowledged.
    hand_offs_max: usize,
}

/// A hand-off that is not acknowledged yet.
#[derive(Clone, Debug)]
struct PendingHandOff {
    slot: Slot,
    copy: VersionedSlot,
    origin: RecoveryOrigin,
    to: MemberId,
    /// The encoded bytes of the hand-off, at most.
    bytes: usize,
    at: Timestamp,
}

/// What this replica knows about the owner of one slot.
#[derive(Debug, Default)]
struct SlotState {
    /// The newest owner that was announced.
    owner: Option<SlotOwner>,
    /// Present while this replica owns the slot.
    owned: Option<OwnedSlot>,
    /// Hand-offs to acknowledge once the backup owner has a backup.
    acks_due: Vec<HandOffId>,
}

/// What the owner of a slot knows in addition to its counters.
#[derive(Clone, Debug)]
struct OwnedSlot {
    epoch: Epoch,
    origin: RecoveryOrigin,
    /// From this instant no replica can return with another lineage of the slot.
    origin_expires_at: Timestamp,
}

/// What a hand-off has changed.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Two hand-offs have crossed, and the sender keeps the slot.
    Crossed,
    /// This replica has become the owner, with these grants.
    Acquired(SlotGrants),
    /// This replica was the owner already. The slot had returned by another path while a hand-off was in flight.
    Merged(SlotGrants),
}

impl Ownership {
    pub(super) fn new(local_id: MemberId, memory: Arc<Memory>, hand_offs_max: usize) -> Self {
        Self {
            local_id,
            slots: (0..memory.slots()).map(|_| SlotState::default()).collect(),
            memory,
            misplaced: BTreeMap::new(),
            hand_offs: BTreeMap::new(),
            hand_offs_sent: 0,
            hand_offs_max,
        }
    }

    /// The newest owner that was announced.
    pub(super) fn owner(&self, slot: Slot) -> Option<SlotOwner> {
        self.state(slot).owner
    }

    pub(super) fn owns(&self, slot: Slot) -> bool {
        self.state(slot).owned.is_some()
    }

    /// This replica as the owner of the slot, if it is that.
    pub(super) fn local_owner(&self, slot: Slot) -> Option<SlotOwner> {
        let owned = self.state(slot).owned.as_ref()?;
        Some(SlotOwner { epoch: owned.epoch, member: self.local_id })
    }

    /// The version of the slot, if this replica owns it.
    pub(super) fn version(&self, slot: Slot) -> Option<Version> {
        let owned = self.state(slot).owned.as_ref()?;
        Some(Version { epoch: owned.epoch, seq: self.memory.version_seq(slot) })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots.len()).map(Slot::at)
    }

    /// The slots that this replica owns.
    pub(super) fn owned(&self) -> impl Iterator<Item = Slot> {
        self.all().filter(|slot| self.owns(*slot))
    }

    /// The epochs and origins of the slots that this replica owns.
    pub(super) fn announcements(&self) -> Vec<(Slot, Epoch, Version)> {
        let announcement = |slot| {
            let owned = self.state(slot).owned.as_ref()?;
            Some((slot, owned.epoch, owned.origin.version))
        };
        self.all().filter_map(announcement).collect()
    }

    /// The owners of all slots, as far as they are known.
    pub(super) fn known_owners(&self) -> Vec<(Slot, SlotOwner)> {
        self.all().filter_map(|slot| self.owner(slot).map(|owner| (slot, owner))).collect()
    }

    pub(super) fn has_acks_due(&self, slot: Slot) -> bool {
        !self.state(slot).acks_due.is_empty()
    }

    /// Records an owner that another member reports, if it is newer than the known one.
    pub(super) fn learn_owner(&mut self, slot: Slot, owner: SlotOwner) {
        let state = self.state_mut(slot);
        state.owner = state.owner.max(Some(owner));
    }

    /// Tells a member that announces an older ownership that this replica owns the slot.
    pub(super) fn contradict(&self, slot: Slot, announced: SlotOwner, out: &mut NodeOutput) {
        if self.local_owner(slot).is_some_and(|local| announced < local) {
            out.send(announced.member, self.announcement(slot).expect("the slot is owned here"));
        }
    }

    fn announcement(&self, slot: Slot) -> Option<Message> {
        let owned = self.state(slot).owned.as_ref()?;
        Some(Message::Owns { slot, epoch: owned.epoch, origin: owned.origin.version })
    }

    fn announce(&mut self, slot: Slot, out: &mut NodeOutput) {
        let local_owner = self.local_owner(slot);
        if let Some(announcement) = self.announcement(slot) {
            self.state_mut(slot).owner = local_owner;
            out.broadcast(&announcement);
        }
    }

    /// Searches the owned slots that belong to another member. Returns the receivers.
    pub(super) fn find_misplaced(&mut self, members: &Membership, now: Timestamp) -> Vec<MemberId> {
        let mut misplaced: BTreeMap<MemberId, VecDeque<Slot>> = BTreeMap::new();
        for slot in self.owned() {
            if let Some(to) = self.receiver(slot, members, now) {
                misplaced.entry(to).or_default().push_back(slot);
            }
        }
        self.misplaced = misplaced;
        self.misplaced.keys().copied().collect()
    }

    /// The next slot that waits to be handed off to `to`.
    pub(super) fn next_misplaced(&mut self, to: MemberId, cx: &Context<'_>) -> Option<Slot> {
        loop {
            let slot = self.misplaced.get_mut(&to)?.pop_front()?;
            // Since the search it may have moved, and the members may have changed.
            if self.receiver(slot, cx.members, cx.now) == Some(to) {
                return Some(slot);
            }
        }
    }

    /// The member that the slot is to be handed off to, if this replica owns it.
    fn receiver(&self, slot: Slot, members: &Membership, now: Timestamp) -> Option<MemberId> {
        let local = self.local_owner(slot)?;
        // An owner that wins over this replica, or else the intended owner.
        let wins = |owner: &SlotOwner| owner.member != self.local_id && local < *owner;
        let winner = self.owner(slot).filter(wins).map(|owner| owner.member);
        let winner = winner.filter(|member| !members.is_departed(*member));
        let to = winner.or(members.placement.owner(slot)).filter(|member| *member != self.local_id)?;
        (members.is_reachable(to, now) && members.is_synced(to)).then_some(to)
    }

    /// Sends the slot and its grants to the new owner, if it is owned here.
    pub(super) fn send_hand_off(
        &mut self,
        slot: Slot,
        to: MemberId,
        grants: SlotGrants,
        cx: &mut Context<'_>,
    ) {
        let Some(OwnedSlot { epoch, origin, .. }) = self.state_mut(slot).owned.take() else { return };
        let Some((contents, seq)) = self.memory.release(slot) else { return };
        let copy = VersionedSlot { version: Version { epoch, seq }, contents: Arc::new(contents), grants };
        cx.out.stats.handed_off += copy.contents.len() as u64;
        self.state_mut(slot).owner = Some(SlotOwner { epoch: epoch.next(), member: to });
        // The slot data stays in `hand_offs` until the new owner acknowledges it, so earlier senders can drop theirs.
        self.acknowledge(slot, cx.out);
        self.hand_offs_sent += 1;
        let id = HandOffId { from: self.local_id, number: self.hand_offs_sent };
        let hand_off = HandOff { id, slot, copy: copy.clone(), origin: origin.clone() };
        let bytes = cx.out.send(to, Message::HandOff(Box::new(hand_off)));
        self.hand_offs.insert(id, PendingHandOff { slot, copy, origin, to, bytes, at: cx.now });
    }

    /// Whether some hand-off is not acknowledged yet.
    pub(super) fn has_hand_offs(&self) -> bool {
        !self.hand_offs.is_empty()
    }

    /// The copy of a slot on its way, and its new owner.
    pub(super) fn handed_off(&self, slot: Slot) -> Option<(&VersionedSlot, SlotOwner)> {
        let pending = self.hand_offs.values().find(|pending| pending.slot == slot)?;
        Some((&pending.copy, SlotOwner { epoch: pending.copy.version.epoch.next(), member: pending.to }))
    }

    /// Whether the hand-offs to `to` are few, and have less than this many encoded bytes.
    pub(super) fn has_room_for_hand_offs(&self, to: MemberId, bytes_max: usize) -> bool {
        let pending = self.hand_offs.values().filter(|pending| pending.to == to);
        let (count, bytes) =
            pending.fold((0, 0), |(count, bytes), pending| (count + 1, bytes + pending.bytes));
        count < self.hand_offs_max && bytes < bytes_max
    }

    /// Takes the slots on their way to this member.
    pub(super) fn take_handed_off(&mut self, member: MemberId) -> Vec<(Slot, VersionedSlot)> {
        let to_member = |_: &HandOffId, pending: &mut PendingHandOff| pending.to == member;
        let taken = self.hand_offs.extract_if(.., to_member);
        taken.map(|(_, pending)| (pending.slot, pending.copy)).collect()
    }

    /// Receives a slot. `stored` is the copy of it that is stored here.
    pub(super) fn receive_hand_off(
        &mut self,
        from: MemberId,
        hand_off: HandOff,
        stored: Option<&VersionedSlot>,
        cx: &mut Context<'_>,
    ) -> Arrival {
        let HandOff { id, slot, copy, mut origin } = hand_off;
        cx.out.stats.received += copy.contents.len() as u64;
        let mut consumed_elsewhere = Vec::new();
        // The sender's lineage started from an older copy than the one that is stored here.
        if let Some(stored) = stored
            && origin.version < stored.version
            && stored.version.epoch < origin.since
        {
            if let Some(base) = &origin.contents {
                consumed_elsewhere.push(stored.contents.difference(base));
            }
            origin =
                RecoveryOrigin { version: stored.version, contents: Some(stored.contents.clone()), ..origin };
        }
        let crosses = |pending: &PendingHandOff| pending.slot == slot && pending.to == from;
        if self.local_id < from && self.hand_offs.values().any(crosses) {
            // Two hand-offs have crossed. The member with the larger id keeps the slot, and receives ours.
            cx.out.send(from, Message::HandOffAck(id));
            return Arrival::Crossed;
        }
        // These are all crossing hand-offs of this replica. The member with the smaller id has received none of them
        // since it sent this one.
        let back = self.hand_offs.extract_if(.., |_, pending| crosses(pending));
        let mut histories: Vec<(VersionedSlot, RecoveryOrigin)> =
            back.map(|(_, pending)| (pending.copy, pending.origin)).collect();
        histories.push((copy, origin));
        self.state_mut(slot).acks_due.push(id);
        if self.owns(slot) {
            Arrival::Merged(self.merge(slot, histories, consumed_elsewhere, cx))
        } else {
            Arrival::Acquired(self.acquire_newest(slot, histories, consumed_elsewhere, cx))
        }
    }

    /// Adds what these histories of an owned slot have consumed. Returns their grants.
    fn merge(
        &mut self,
        slot: Slot,
        histories: Vec<(VersionedSlot, RecoveryOrigin)>,
        mut consumed_elsewhere: Vec<Consumption>,
        cx: &mut Context<'_>,
    ) -> SlotGrants {
        let mut grants = SlotGrants::default();
        if let Some(owned) = &mut self.state_mut(slot).owned {
            for (copy, origin) in histories {
                consumed_elsewhere.extend(diverged_consumption(&copy.contents, &origin, &owned.origin));
                grants.extend(copy.grants);
                owned.epoch = owned.epoch.max(copy.version.epoch);
            }
            owned.epoch = owned.epoch.next();
        }
        self.announce(slot, cx.out);
        for consumed in consumed_elsewhere {
            self.memory.add(slot, consumed, cx.wall);
        }
        grants
    }

    /// Becomes the owner with the newest of these histories, and adds what the others have consumed. Returns the
    /// grants.
    fn acquire_newest(
        &mut self,
        slot: Slot,
        mut histories: Vec<(VersionedSlot, RecoveryOrigin)>,
        mut consumed_elsewhere: Vec<Consumption>,
        cx: &mut Context<'_>,
    ) -> SlotGrants {
        histories.sort_by_key(|(copy, _)| copy.version);
        let Some((mut copy, origin)) = histories.pop() else { return SlotGrants::default() };
        for (other, its) in histories {
            consumed_elsewhere.extend(diverged_consumption(&other.contents, &its, &origin));
            copy.grants.extend(other.grants);
        }
        // The epoch is larger than any that was announced, so that other members accept it.
        let announced = self.owner(slot).map_or(Epoch::default(), |owner| {
            if owner.member == self.local_id { owner.epoch } else { owner.epoch.next() }
        });
        let epoch = announced.max(copy.version.epoch.next());
        self.acquire(slot, epoch, copy.contents, origin, cx);
        for consumed in consumed_elsewhere {
            self.memory.add(slot, consumed, cx.wall);
        }
        copy.grants
    }

    /// Becomes the owner of `slot`, with this data.
    pub(super) fn acquire(
        &mut self,
        slot: Slot,
        epoch: Epoch,
        contents: Arc<SlotData>,
        origin: RecoveryOrigin,
        cx: &mut Context<'_>,
    ) {
        cx.out.stats.slots_acquired += 1;
        let counted = |contents| Arc::new(self.memory.accounted(Arc::unwrap_or_clone(contents)));
        let origin = RecoveryOrigin { contents: origin.contents.map(counted), ..origin };
        self.memory.acquire(slot, Arc::unwrap_or_clone(contents), cx.wall);
        let origin_expires_at = cx.now.after(ORIGIN_RETENTION);
        self.state_mut(slot).owned = Some(OwnedSlot { epoch, origin, origin_expires_at });
        self.announce(slot, cx.out);
    }

    /// Acknowledges the hand-offs of `slot`, whose data now has a backup.
    pub(super) fn acknowledge(&mut self, slot: Slot, out: &mut NodeOutput) {
        for owed in std::mem::take(&mut self.state_mut(slot).acks_due) {
            out.send(owed.from, Message::HandOffAck(owed));
        }
    }

    /// The new owner has a backup of the slot, or there is no backup owner. Returns the slot and the new owner.
    pub(super) fn receive_ack(&mut self, id: HandOffId, cx: &mut Context<'_>) -> Option<(Slot, MemberId)> {
        let pending = self.hand_offs.remove(&id)?;
        cx.out.stats.hand_off_nanos += cx.now.nanos_since(pending.at);
        cx.out.stats.hand_offs += 1;
        Some((pending.slot, pending.to))
    }

    /// Discards the counters of all slots, and what is known about their owners.
    pub(super) fn discard(&mut self) {
        for slot in self.all() {
            if self.owns(slot) {
                drop(self.memory.release(slot));
            }
            *self.state_mut(slot) = SlotState::default();
        }
        self.misplaced.clear();
        self.hand_offs.clear();
    }

    /// Adds what a newer copy than the one that the recovery started from has consumed, and the owner lacks.
    pub(super) fn add_newer_copy(&mut self, slot: Slot, copy: VersionedSlot, wall: Timestamp) {
        let Some(OwnedSlot { origin, .. }) = &mut self.state_mut(slot).owned else { return };
        if copy.version <= origin.version || origin.since <= copy.version.epoch {
            return;
        }
        origin.version = copy.version;
        let base = origin.contents.replace(copy.contents.clone());
        if let Some(base) = base {
            self.memory.add(slot, copy.contents.difference(&base), wall);
        }
    }

    /// Drops the data that owners have started from while memory is overfull. Without it, an owner does not add what a
    /// member with another history of the slot has counted. Returns how many slots lose it.
    pub(super) fn drop_origins_while_overfull(&mut self) -> u64 {
        let mut dropped = 0;
        for state in &mut self.slots {
            if !self.memory.is_overfull() {
                break;
            }
            if let Some(owned) = &mut state.owned
                && owned.origin.contents.take_if(|contents| !contents.is_empty()).is_some()
            {
                dropped += 1;
            }
        }
        dropped
    }

    /// Drops the data that recoveries started from once no member can return with another history.
    pub(super) fn drop_old_origins(&mut self, now: Timestamp) {
        for state in &mut self.slots {
            if let Some(owned) = &mut state.owned
                && owned.origin_expires_at <= now
            {
                owned.origin.contents.take_if(|contents| !contents.is_empty());
            }
        }
    }

    fn state(&self, slot: Slot) -> &SlotState {
        &self.slots[slot.index()]
    }

    fn state_mut(&mut self, slot: Slot) -> &mut SlotState {
        &mut self.slots[slot.index()]
    }
}

/// What the simulation reads.
#[cfg(test)]
impl Ownership {
    /// The slots on their way.
    pub(super) fn all_handed_off(&self) -> impl Iterator<Item = Slot> {
        self.hand_offs.values().map(|pending| pending.slot)
    }

    /// Whether this replica owns the slot and does not keep the data that it has started from.
    pub(super) fn lacks_origin(&self, slot: Slot) -> bool {
        self.state(slot).owned.as_ref().is_some_and(|owned| owned.origin.contents.is_none())
    }
}

/// The consumption in the sender's lineage that the lineage of the new owner lacks.
fn diverged_consumption(
    given: &SlotData,
    giver: &RecoveryOrigin,
    keeper: &RecoveryOrigin,
) -> Option<Consumption> {
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
