//! Sends backups and hand-offs, as far as there is room for them on the way.

use tollgate_store::Slot;

use crate::{
    member::MemberId,
    message::{SlotOwner, slot::SlotGrants},
    node::{backup_sender::BackedUp, context::Context, slots::Slots},
};

impl Slots {
    /// Sends the backups that are due, as far as there is room for them; the others wait for their turn.
    pub(super) fn back_up_when_due(&mut self, cx: &mut Context<'_>) {
        if self.backup_sender.take_due(cx.now) {
            if std::mem::take(&mut self.backup_sender.may_lack_backups) {
                self.search_lacking_backups(cx);
            }
            let changed = self.memory.changed_slots().into_iter().chain(self.dividers.take_changed());
            let lent = self.leases.changed.iter().copied().filter(|slot| self.ownership.owns(*slot));
            for slot in changed.chain(lent) {
                if let Some(backup_owner) = cx.members.backup_owner(slot, cx.now) {
                    self.backup_sender.wait(slot, backup_owner);
                }
            }
        }
        let awaited: Vec<MemberId> = self.backup_sender.waiting.keys().copied().collect();
        awaited.into_iter().for_each(|backup_owner| self.send_waiting_backups(backup_owner, cx));
    }

    /// Lets the slots wait that have no backup at their backup owner.
    fn search_lacking_backups(&mut self, cx: &Context<'_>) {
        for slot in self.ownership.all() {
            let Some(SlotOwner { epoch, member }) = self.ownership.local_owner(slot) else { continue };
            let Some(backup_owner) = cx.members.placement.backup_owner(slot, member) else { continue };
            if !self.backup_sender.is_sent_to(slot, epoch, backup_owner) {
                self.backup_sender.wait(slot, backup_owner);
            }
        }
    }

    /// Sends the backups that have waited longest, as long as there is room for them on the way to the backup owner.
    fn send_waiting_backups(&mut self, backup_owner: MemberId, cx: &mut Context<'_>) {
        while self.has_room_for_backups(backup_owner, cx)
            && let Some(slot) = self.backup_sender.next_waiting(backup_owner)
        {
            self.send_backup(slot, cx);
        }
    }

    /// Hands off slots that belong to `to`, as long as there is room for them on the way.
    pub(super) fn send_hand_offs(&mut self, to: MemberId, cx: &mut Context<'_>) {
        while self.has_room_for_hand_offs(to, cx)
            && let Some(slot) = self.ownership.next_misplaced(to, cx)
        {
            self.send_hand_off(slot, to, cx);
        }
    }

    /// Whether few hand-offs are on their way to `peer`: in the queue, on the link, or not acknowledged. Checks wait
    /// behind them, so further ones are held back.
    pub(super) fn has_room_for_hand_offs(&self, peer: MemberId, cx: &Context<'_>) -> bool {
        self.ownership.has_room_for_hand_offs(peer, self.data_bytes_max / 2) && cx.out.has_room_for_data(peer)
    }

    /// Whether few backups are on their way to `peer`. Backups and hand-offs have separate bounds, so that neither
    /// waits until all of the other kind are sent.
    fn has_room_for_backups(&self, peer: MemberId, cx: &Context<'_>) -> bool {
        self.backup_sender.unanswered_bytes(peer) < self.data_bytes_max / 2 && cx.out.has_room_for_data(peer)
    }

    /// `peer` has answered some of the slot data that was on its way: more may follow.
    pub(super) fn send_more_data(&mut self, peer: MemberId, cx: &mut Context<'_>) {
        self.send_hand_offs(peer, cx);
        self.send_waiting_backups(peer, cx);
    }

    /// Sends the changes that the backup owner lacks, now or as soon as it has answered the last backup and there is
    /// room in its queue. Without a backup owner, acknowledges hand-offs at once.
    pub(super) fn send_backup(&mut self, slot: Slot, cx: &mut Context<'_>) {
        let Some(version) = self.ownership.version(slot) else { return };
        let Some(backup_owner) = cx.members.backup_owner(slot, cx.now) else {
            self.backup_sender.answer(slot, BackedUp::Yes);
            return self.ownership.acknowledge(slot, cx.out);
        };
        let is_urgent = self.ownership.has_acks_due(slot);
        if !self.backup_sender.is_periodic() && !is_urgent {
            return;
        }
        if self.backup_sender.must_await_answer(slot, version.epoch, backup_owner) {
            return;
        }
        if !is_urgent && !self.has_room_for_backups(backup_owner, cx) {
            return self.backup_sender.wait(slot, backup_owner);
        }
        self.leases.changed.remove(&slot);
        let grants = SlotGrants {
            leases: self.leases.grants_of_slot(slot, cx),
            divisions: self.dividers.divisions_of(slot, cx.wall),
        };
        self.backup_sender.send(slot, version, backup_owner, grants, cx);
    }

    pub(super) fn send_hand_off(&mut self, slot: Slot, to: MemberId, cx: &mut Context<'_>) {
        let grants = SlotGrants {
            leases: self.leases.remove_slot(slot, cx),
            divisions: self.dividers.take_slot(slot, cx.wall),
        };
        self.backup_sender.reset(slot);
        self.ownership.send_hand_off(slot, to, grants, cx);
        self.make_room(slot, cx);
    }
}
