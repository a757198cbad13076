//! Slots that were handed off, until their new owners acknowledge them.

use std::collections::BTreeMap;

use tollgate_counter::time::Timestamp;
use tollgate_store::Slot;

use crate::{
    MemberId,
    message::{HandOff, HandOffId, Message, RecoveryOrigin, SlotOwner, VersionedSlot},
    node::context::Context,
};

/// The hand-offs that are not acknowledged yet.
#[derive(Debug)]
pub(in crate::node) struct HandOffs {
    local_id: MemberId,
    pending: BTreeMap<HandOffId, PendingHandOff>,
    sent: u64,
    /// The most of them to one peer.
    max: usize,
}

/// A hand-off that is not acknowledged yet.
#[derive(Clone, Debug)]
pub(super) struct PendingHandOff {
    pub(super) slot: Slot,
    pub(super) copy: VersionedSlot,
    pub(super) origin: RecoveryOrigin,
    pub(super) to: MemberId,
    /// The encoded bytes of the hand-off, at most.
    bytes: usize,
    pub(super) at: Timestamp,
}

impl HandOffs {
    pub(super) fn new(local_id: MemberId, max: usize) -> Self {
        Self { local_id, pending: BTreeMap::new(), sent: 0, max }
    }

    pub(in crate::node) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The slots on their way.
    #[cfg(test)]
    pub(in crate::node) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.pending.values().map(|pending| pending.slot)
    }

    /// The copy of a slot on its way, and its new owner.
    pub(in crate::node) fn of_slot(&self, slot: Slot) -> Option<(&VersionedSlot, SlotOwner)> {
        let pending = self.pending.values().find(|pending| pending.slot == slot)?;
        Some((&pending.copy, SlotOwner { epoch: pending.copy.version.epoch.next(), member: pending.to }))
    }

    /// Whether those to `to` are few, and have less than this many encoded bytes.
    pub(in crate::node) fn has_room(&self, to: MemberId, bytes_max: usize) -> bool {
        let pending = self.pending.values().filter(|pending| pending.to == to);
        let (count, bytes) =
            pending.fold((0, 0), |(count, bytes), pending| (count + 1, bytes + pending.bytes));
        count < self.max && bytes < bytes_max
    }

    /// Sends a slot to its new owner, and keeps the copy.
    pub(super) fn send(
        &mut self,
        slot: Slot,
        copy: VersionedSlot,
        origin: RecoveryOrigin,
        to: MemberId,
        cx: &mut Context<'_>,
    ) {
        self.sent += 1;
        let id = HandOffId { from: self.local_id, number: self.sent };
        let hand_off = HandOff { id, slot, copy: copy.clone(), origin: origin.clone() };
        let bytes = cx.out.send(to, Message::HandOff(Box::new(hand_off)));
        self.pending.insert(id, PendingHandOff { slot, copy, origin, to, bytes, at: cx.now });
    }

    /// The hand-offs of `slot` to `peer`, which has handed off the same slot to this replica.
    pub(super) fn crossing(&self, slot: Slot, peer: MemberId) -> Vec<HandOffId> {
        let crosses =
            |(_, pending): &(&HandOffId, &PendingHandOff)| pending.slot == slot && pending.to == peer;
        self.pending.iter().filter(crosses).map(|(id, _)| *id).collect()
    }

    pub(super) fn remove(&mut self, id: HandOffId) -> Option<PendingHandOff> {
        self.pending.remove(&id)
    }

    /// Takes the slots on their way to this member.
    pub(in crate::node) fn take_to(&mut self, member: MemberId) -> Vec<(Slot, VersionedSlot)> {
        let to_member = |_: &HandOffId, pending: &mut PendingHandOff| pending.to == member;
        let taken = self.pending.extract_if(.., to_member);
        taken.map(|(_, pending)| (pending.slot, pending.copy)).collect()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }
}
