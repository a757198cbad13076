//! What other members tell of the slots: owners, hand-offs, backups and copies.

use tollgate_store::Slot;

use crate::{
    member::{Departure, MemberId},
    message::{
        Message, SlotOwner,
        slot::{HandOff, HandOffId, Version, VersionedSlot},
    },
    node::{
        backup::BackupOutcome,
        backup_sender::{BackedUp, NextBackup},
        context::Context,
        ownership::Arrival,
        slots::Slots,
    },
};

impl Slots {
    /// Records that `owner` owns the slot, as another member reports.
    pub(in crate::node) fn learn_owner(&mut self, slot: Slot, owner: SlotOwner, cx: &mut Context<'_>) {
        // This replica knows best which slots it owns.
        if owner.member == cx.members.local_id() {
            return;
        }
        self.ownership.learn_owner(slot, owner);
        // A recovery that goes on would keep its copy in addition to the backups of the owner.
        if !self.is_orphan(slot, cx)
            && let Some(copy) = self.recovery.end(slot)
            && self.backups.stored(slot).is_none_or(|stored| stored.version < copy.version)
        {
            self.receive_newer_copy(slot, copy, cx);
        }
        if self.ownership.local_owner(slot).is_some_and(|local| local < owner)
            && cx.members.is_reachable(owner.member, cx.now)
            && cx.members.is_synced(owner.member)
        {
            if self.has_room_for_hand_offs(owner.member, cx) {
                self.send_hand_off(slot, owner.member, cx);
            } else {
                self.may_move = true;
            }
        }
    }

    /// Records that a member owns the slot, as it announces itself. It started from the version `origin`.
    pub(in crate::node) fn receive_owner(
        &mut self,
        slot: Slot,
        owner: SlotOwner,
        origin: Version,
        cx: &mut Context<'_>,
    ) {
        self.ownership.contradict(slot, owner, cx.out);
        self.learn_owner(slot, owner, cx);
        // The owner may have started from an older copy than the one that is stored here.
        if let Some(stored) = self.backups.stored(slot)
            && origin < stored.version
            && stored.version.epoch < owner.epoch
        {
            cx.out.send(owner.member, Message::NewerCopy { slot, copy: stored.clone() });
        }
    }

    pub(in crate::node) fn receive_hand_off(
        &mut self,
        from: MemberId,
        hand_off: HandOff,
        cx: &mut Context<'_>,
    ) {
        self.may_move = true;
        let slot = hand_off.slot;
        let stored = self.backups.stored(slot);
        match self.ownership.receive_hand_off(from, hand_off, stored, cx) {
            Arrival::Crossed => {}
            Arrival::Acquired(grants) => {
                self.insert_grants(slot, grants, cx);
                self.begin_ownership(slot, cx);
            }
            Arrival::Merged(grants) => {
                self.insert_grants(slot, grants, cx);
                self.send_backup(slot, cx);
            }
        }
    }

    /// The receiver owns the slot of a hand-off, and its data is safe.
    pub(in crate::node) fn receive_hand_off_ack(&mut self, id: HandOffId, cx: &mut Context<'_>) {
        self.may_move = true;
        if let Some((slot, to)) = self.ownership.receive_ack(id, cx) {
            // The new owner has what was changed here, and a backup of it.
            self.backup_sender.answer(slot, BackedUp::Yes);
            self.send_more_data(to, cx);
        }
    }

    pub(in crate::node) fn receive_backup(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: VersionedSlot,
        after: Option<u64>,
        cx: &mut Context<'_>,
    ) {
        let version = copy.version;
        match self.backups.receive(from, slot, copy, after, cx) {
            BackupOutcome::Stored => {
                if !self.ownership.owns(slot) {
                    self.receive_owner(slot, SlotOwner { epoch: version.epoch, member: from }, version, cx);
                }
                cx.out.send(from, Message::BackupAck { slot, version });
            }
            BackupOutcome::Refused => {
                cx.out.send(from, Message::BackupRefused { slot, version });
            }
            BackupOutcome::BaseMissing => {}
        }
    }

    /// The backup owner keeps the backup of the slot at this version, or has no memory for it. In both cases former owners
    /// need not keep their copies any longer.
    pub(in crate::node) fn receive_backup_answer(
        &mut self,
        from: MemberId,
        slot: Slot,
        version: Version,
        backed_up: BackedUp,
        cx: &mut Context<'_>,
    ) {
        cx.out.stats.backups_arrived += u64::from(backed_up == BackedUp::Yes);
        let Some(next) = self.backup_sender.answered(from, slot, version) else { return };
        if backed_up == BackedUp::Yes {
            cx.out.stats.backup_arrived_at = cx.now;
        }
        self.backup_sender.answer_sent(slot, backed_up);
        self.ownership.acknowledge(slot, cx.out);
        if next == NextBackup::Due {
            self.send_backup(slot, cx);
        }
        self.send_more_data(from, cx);
    }

    pub(in crate::node) fn receive_base_missing(&mut self, from: MemberId, slot: Slot, cx: &mut Context<'_>) {
        if self.backup_sender.receive_base_missing(from, slot) {
            self.send_backup(slot, cx);
        }
    }

    pub(in crate::node) fn receive_recovery_query(
        &mut self,
        from: MemberId,
        slot: Slot,
        best: Version,
        cx: &mut Context<'_>,
    ) {
        let (handed_off, receiver) = self.ownership.handed_off(slot).unzip();
        let known = self.ownership.local_owner(slot).or(self.ownership.owner(slot));
        let owner = known.or(receiver);
        let is_alive = |owner: SlotOwner| {
            owner.member == cx.members.local_id() || cx.members.is_reachable(owner.member, cx.now)
        };
        let alive = owner.is_some_and(is_alive);
        let copies = [self.backups.stored(slot), handed_off];
        let newest = copies.into_iter().flatten().max_by_key(|copy| copy.version);
        let copy = newest.filter(|copy| best < copy.version).cloned();
        cx.out.send(from, Message::RecoveryReply { slot, owner, alive, copy });
    }

    pub(in crate::node) fn receive_recovery_reply(
        &mut self,
        from: MemberId,
        slot: Slot,
        owner: Option<SlotOwner>,
        alive: bool,
        copy: Option<VersionedSlot>,
        cx: &mut Context<'_>,
    ) {
        self.may_move = true;
        if let Some(owner) = owner {
            if owner.member == from {
                self.receive_owner(slot, owner, Version::MAX, cx);
            } else {
                self.learn_owner(slot, owner, cx);
            }
            // Another member reaches the owner. A recovery would create a second owner.
            if alive && cx.members.is_departed(owner.member) {
                return self.recovery.block(slot);
            }
        }
        match self.recovery.receive_reply(from, slot, copy) {
            Ok(()) => {
                self.end_recovery_if_complete(slot, cx);
            }
            // The recovery is over, but the consumption in this copy still counts.
            Err(Some(copy)) => self.receive_newer_copy(slot, copy, cx),
            Err(None) => {}
        }
    }

    pub(in crate::node) fn receive_orphan(&mut self, slot: Slot, owner: SlotOwner) {
        self.may_move = true;
        if !self.ownership.owns(slot) {
            self.ownership.learn_owner(slot, owner);
        }
    }

    /// A member has a newer copy than the one that the recovery started from. Its additional consumption took place
    /// before the recovery.
    pub(in crate::node) fn receive_newer_copy(
        &mut self,
        slot: Slot,
        copy: VersionedSlot,
        cx: &mut Context<'_>,
    ) {
        if self.ownership.owns(slot) {
            return self.ownership.add_newer_copy(slot, copy, cx.wall);
        }
        // The copy follows the slot, as a check does. The sender may have replaced its own copy meanwhile.
        match self.ownership.owner(slot) {
            Some(owner) if cx.members.is_reachable(owner.member, cx.now) => {
                cx.out.send(owner.member, Message::NewerCopy { slot, copy });
            }
            _ => {
                self.backups.store_arrived(slot, copy, cx);
            }
        }
    }

    /// Keeps the data of hand-offs to a departed member as ordinary copies, and does not wait for it any longer.
    pub(in crate::node) fn member_departed(
        &mut self,
        member: MemberId,
        departure: Departure,
        cx: &mut Context<'_>,
    ) {
        for (slot, copy) in self.ownership.take_handed_off(member) {
            self.backups.store_newer(slot, copy, cx.now);
        }
        self.backup_sender.member_departed(member);
        // The next turns end the recoveries that have waited for it.
        self.recovery.stop_waiting_for(member);
        self.may_move = true;
        self.leases.borrower_departed(member, departure, cx);
        for slot in self.ownership.owned() {
            self.dividers.leave_all(slot, member.number());
        }
        self.id_shares.remove(&member);
    }
}
