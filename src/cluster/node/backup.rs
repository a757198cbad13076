//! Backups: each owner sends changed counters to the backup owner of the slot.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Message, SlotCopy, Version},
        node::{Node, StoredCopy},
    },
    store::Slot,
    time::Timestamp,
};

/// How long a copy is kept that is no longer updated and should not be needed.
const COPY_KEPT: Duration = Duration::from_secs(60);
/// The approximate number of counters that a new backup owner receives in one tick. Checks wait behind them on the
/// link.
const WHOLE_COUNTERS_MAX: u64 = 8_192;

impl Node {
    pub(super) fn back_up_when_due(&mut self, now: Timestamp) {
        let Some(interval) = self.settings.backup_interval else { return };
        let is_due = now.since(self.backed_up_at) >= interval;
        if !is_due && !self.backups_incomplete {
            return;
        }
        if is_due {
            self.backed_up_at = now;
        }
        self.backups_incomplete = false;
        let before = self.stats.backed_up;
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let (Some(ownership), Some(backup_owner)) =
                (&state.ownership, self.placement.backup_owner(slot, self.local_id))
            else {
                continue;
            };
            let knows = |(sent, to): (Version, MemberId)| sent.epoch == ownership.epoch && to == backup_owner;
            if state.last_backup.is_some_and(knows) {
                if is_due && state.leases_changed {
                    self.send_backup(slot, now);
                }
            } else if self.stats.backed_up - before >= WHOLE_COUNTERS_MAX {
                self.backups_incomplete = true;
            } else {
                self.send_backup(slot, now);
            }
        }
        let changed = if is_due { self.memory.changed_slots() } else { Vec::new() };
        for slot in changed {
            // A new backup owner received the whole slot above, or receives it in a later tick.
            if self.slot(slot).last_backup.is_some() {
                self.send_backup(slot, now);
            }
        }
    }

    /// Sends the changes that the backup owner lacks. Without a backup owner, acknowledges hand-offs at once.
    pub(super) fn send_backup(&mut self, slot: Slot, now: Timestamp) {
        let Some(version) = self.version(slot) else { return };
        let backup_owner = self
            .placement
            .backup_owner(slot, self.local_id)
            .filter(|backup_owner| self.is_reachable(*backup_owner, now));
        let Some(backup_owner) = backup_owner else {
            self.acknowledge_hand_offs(slot);
            return;
        };
        if self.settings.backup_interval.is_none() && self.slot(slot).acks_due.is_empty() {
            return;
        }
        let former = self
            .slot(slot)
            .last_backup
            .filter(|(former, to)| former.epoch == version.epoch && *to == backup_owner);
        let changes = match former {
            Some(_) => self.memory.changes(slot),
            None => self.memory.whole(slot),
        };
        let version = Version { seq: changes.seq, ..version };
        let grants = self.lease_owner.grants_of_slot(slot, self.slots.len(), self.moment(now));
        let copy = SlotCopy { version, contents: Arc::new(changes.data), grants };
        self.stats.backed_up += copy.contents.len() as u64;
        let state = self.slot_mut(slot);
        (state.last_backup, state.leases_changed) = (Some((version, backup_owner)), false);
        self.send(backup_owner, Message::Backup { slot, copy, after: former.map(|(former, _)| former.seq) });
    }

    pub(super) fn receive_backup(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: SlotCopy,
        after: Option<u64>,
        now: Timestamp,
    ) {
        let version = copy.version;
        match after {
            None => {
                let contents = Arc::unwrap_or_clone(copy.contents);
                let Some(contents) = self.memory.within_limit(contents) else {
                    self.stats.backups_refused += 1;
                    return;
                };
                self.store_newer_copy(slot, SlotCopy { contents: Arc::new(contents), ..copy }, now);
            }
            Some(after) => {
                let base = Version { epoch: version.epoch, seq: after };
                let Some(kept) = self.slot_mut(slot).copy.as_mut().filter(|kept| kept.copy.version == base)
                else {
                    self.send(from, Message::BackupBaseMissing { slot });
                    return;
                };
                let changes = Arc::unwrap_or_clone(copy.contents);
                Arc::make_mut(&mut kept.copy.contents).merge(changes);
                kept.copy.version = version;
                kept.copy.grants = copy.grants;
                kept.at = now;
            }
        }
        if self.slot(slot).ownership.is_none() {
            self.receive_owner(from, slot, version.epoch, version, now);
        }
        self.send(from, Message::BackupAck { slot, version });
    }

    /// Stores `copy` unless a newer one is stored.
    pub(super) fn store_newer_copy(&mut self, slot: Slot, copy: SlotCopy, now: Timestamp) {
        let state = self.slot_mut(slot);
        let newer = state.copy.as_ref().is_none_or(|kept| kept.copy.version < copy.version);
        if newer {
            state.copy = Some(StoredCopy { copy, at: now });
        }
    }

    pub(super) fn receive_backup_ack(
        &mut self,
        from: MemberId,
        slot: Slot,
        version: Version,
        now: Timestamp,
    ) {
        self.stats.backups_arrived += 1;
        let current = self.slot(slot).last_backup.is_some_and(|(sent, to)| to == from && sent == version);
        if current {
            self.acknowledge_hand_offs(slot);
            self.stats.backup_arrived_at = now;
        }
    }

    pub(super) fn receive_base_missing(&mut self, from: MemberId, slot: Slot, now: Timestamp) {
        if self.slot(slot).last_backup.is_some_and(|(_, to)| to == from) {
            self.slot_mut(slot).last_backup = None;
            self.send_backup(slot, now);
        }
    }

    /// Drops copies that should not be needed: the owner is reachable and another member is its backup owner.
    pub(super) fn drop_old_copies(&mut self, now: Timestamp) {
        if now.since(self.copies_swept_at) < Duration::from_secs(1) {
            return;
        }
        self.copies_swept_at = now;
        self.drop_old_origins(now);
        for slot in self.all_slots() {
            let state = self.slot(slot);
            let (Some(kept), Some(owner)) = (&state.copy, state.owner) else { continue };
            let mine = self.placement.backup_owner(slot, owner.member) == Some(self.local_id);
            let safe = self.is_reachable(owner.member, now) && kept.copy.version.epoch < owner.epoch;
            if !mine && safe && now.since(kept.at) > COPY_KEPT {
                self.slot_mut(slot).copy = None;
            }
        }
    }
}
