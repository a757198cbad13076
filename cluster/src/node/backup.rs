//! The backups that other owners send to this replica, which stores a copy of each slot.

use std::{sync::Arc, time::Duration};

use tollgate_counter::time::Timestamp;
use tollgate_store::{Memory, MemoryReservation, Slot};

use crate::{
    member::MemberId,
    message::{
        Message, SlotOwner,
        slot::{Version, VersionedSlot},
    },
    node::context::Context,
};

/// How long a copy is retained that is no longer updated and should not be needed.
const COPY_RETENTION: Duration = Duration::from_secs(60);
/// How long after a refusal for lack of memory a missing base is not requested, because the whole slot would be
/// refused.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
/// How often old copies are searched.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The copies that are stored for other owners.
#[derive(Debug)]
pub(super) struct Backups {
    memory: Arc<Memory>,
    slots: Vec<SlotBackup>,
    swept_at: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct SlotBackup {
    stored: Option<VersionedSlot>,
    /// The memory of the grants of the stored copy. Its counters have their own.
    grants: MemoryReservation,
    /// The last update of the stored copy.
    stored_at: Timestamp,
    /// When the last backup was refused; `None` if it was stored.
    refused_at: Option<Timestamp>,
}

/// What became of a backup that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackupOutcome {
    /// The copy is stored.
    Stored,
    /// There is no memory for the copy.
    Refused,
    /// The version that it builds on is not stored here. The sender was told.
    BaseMissing,
}

impl Backups {
    pub(super) fn new(memory: Arc<Memory>, now: Timestamp) -> Self {
        Self { slots: vec![SlotBackup::default(); memory.slots()], memory, swept_at: now }
    }

    /// The copy that is stored for another owner.
    pub(super) fn stored(&self, slot: Slot) -> Option<&VersionedSlot> {
        self.slots[slot.index()].stored.as_ref()
    }

    /// The number of stored copies.
    pub(super) fn stored_copies(&self) -> usize {
        self.slots.iter().filter(|slot| slot.stored.is_some()).count()
    }

    /// Stores a copy that was decoded, unless a newer one is stored. Without memory for it, it is refused.
    pub(super) fn store_arrived(&mut self, slot: Slot, copy: VersionedSlot, cx: &mut Context<'_>) -> bool {
        let contents = Arc::unwrap_or_clone(copy.contents);
        let older = &self.slots[slot.index()];
        let contents = match &older.stored {
            Some(stored) => self.memory.within_limit_in_place_of(&stored.contents, contents),
            None => self.memory.within_limit(contents),
        };
        let has_room = self.memory.has_room_in_place_of(&older.grants, copy.grants.bytes());
        let Some(contents) = contents.filter(|_| has_room) else {
            cx.out.stats.backups_refused += 1;
            return false;
        };
        self.store_newer(slot, VersionedSlot { contents: Arc::new(contents), ..copy }, cx.now);
        true
    }

    /// Stores `copy` unless a newer one is stored.
    pub(super) fn store_newer(&mut self, slot: Slot, copy: VersionedSlot, now: Timestamp) {
        if self.stored(slot).is_none_or(|stored| stored.version < copy.version) {
            let mut grants = self.memory.reservation();
            grants.set(copy.grants.bytes());
            let refused_at = self.slots[slot.index()].refused_at;
            self.slots[slot.index()] = SlotBackup { stored: Some(copy), grants, stored_at: now, refused_at };
        }
    }

    /// This replica has become the owner of the slot: it needs no copy.
    pub(super) fn begin_ownership(&mut self, slot: Slot) {
        self.slots[slot.index()] = SlotBackup::default();
    }

    /// Stores a backup, which holds the changes after the version `after`, or all counters.
    pub(super) fn receive(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: VersionedSlot,
        after: Option<u64>,
        cx: &mut Context<'_>,
    ) -> BackupOutcome {
        let received = match after {
            Some(after) => self.receive_changes(from, slot, copy, after, cx),
            None if self.store_arrived(slot, copy, cx) => BackupOutcome::Stored,
            None => BackupOutcome::Refused,
        };
        let refused_at = &mut self.slots[slot.index()].refused_at;
        match received {
            BackupOutcome::Stored => *refused_at = None,
            BackupOutcome::Refused => *refused_at = Some(cx.now),
            BackupOutcome::BaseMissing => {}
        }
        received
    }

    fn receive_changes(
        &mut self,
        from: MemberId,
        slot: Slot,
        copy: VersionedSlot,
        after: u64,
        cx: &mut Context<'_>,
    ) -> BackupOutcome {
        let base = Version { epoch: copy.version.epoch, seq: after };
        let SlotBackup { stored, grants, stored_at, refused_at } = &mut self.slots[slot.index()];
        if let Some(stored) = stored.as_mut().filter(|stored| stored.version == base)
            && self.memory.can_merge(&stored.contents, &copy.contents)
            && self.memory.has_room_in_place_of(grants, copy.grants.bytes())
        {
            Arc::make_mut(&mut stored.contents).merge(Arc::unwrap_or_clone(copy.contents));
            stored.version = copy.version;
            grants.set(copy.grants.bytes());
            stored.grants = copy.grants;
            *stored_at = cx.now;
            return BackupOutcome::Stored;
        }
        if refused_at.is_some_and(|at| cx.now.since(at) < REFUSAL_PAUSE) {
            cx.out.stats.backups_refused += 1;
            return BackupOutcome::Refused;
        }
        // A copy keeps counters that the owner has evicted since, so the whole slot may fit where its changes do not.
        cx.out.send(from, Message::BackupBaseMissing { slot });
        BackupOutcome::BaseMissing
    }

    /// Whether the last backup of the slot that has arrived here was refused.
    #[cfg(test)]
    pub(super) fn is_refused(&self, slot: Slot) -> bool {
        self.slots[slot.index()].refused_at.is_some()
    }

    /// Drops copies that should not be needed: the owner is reachable and another member is its backup owner. Returns
    /// false if that was done lately.
    pub(super) fn sweep(&mut self, owner: impl Fn(Slot) -> Option<SlotOwner>, cx: &Context<'_>) -> bool {
        if cx.now.since(self.swept_at) < SWEEP_INTERVAL {
            return false;
        }
        self.swept_at = cx.now;
        for (index, backup) in self.slots.iter_mut().enumerate() {
            let slot = Slot::at(index);
            let (Some(copy), Some(owner)) = (&backup.stored, owner(slot)) else { continue };
            let is_here =
                cx.members.placement.backup_owner(slot, owner.member) == Some(cx.members.local_id());
            let is_safe = cx.members.is_reachable(owner.member, cx.now) && copy.version.epoch < owner.epoch;
            if !is_here && is_safe && cx.now.since(backup.stored_at) > COPY_RETENTION {
                *backup = SlotBackup { refused_at: backup.refused_at, ..SlotBackup::default() };
            }
        }
        true
    }

    /// Drops copies while `is_needed`, and returns how many.
    pub(super) fn drop_copies_while(&mut self, now: Timestamp, is_needed: impl Fn(&Memory) -> bool) -> u64 {
        let mut dropped = 0;
        for slot in &mut self.slots {
            if !is_needed(&self.memory) {
                break;
            }
            if slot.stored.is_some() {
                *slot = SlotBackup { refused_at: Some(now), ..SlotBackup::default() };
                dropped += 1;
            }
        }
        dropped
    }

    /// Discards all copies.
    pub(super) fn discard(&mut self) {
        self.slots.fill(SlotBackup::default());
    }
}

#[cfg(test)]
mod tests {
    use tollgate_counter::{
        algorithm::{Excess, FixedWindow, Limit, QuotaTerms, Window},
        descriptor::Key,
        time::SECOND,
    };
    use tollgate_store::{
        OnFull,
        divider::{DividerReport, Dividers, SubscriberId, SubscriberReport, SubscriberUsage},
    };

    use super::*;
    use crate::message::slot::SlotGrants;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    /// How a limit is divided over so many buckets.
    fn divided_over(buckets: u32) -> VersionedSlot {
        let dividers = Dividers::new(Arc::new(Memory::new(1 << 24, OnFull::Deny)));
        let limit = Limit::FixedWindow(FixedWindow {
            limit: 10_000,
            window: Window::from_nanos(60 * SECOND).unwrap(),
            excess: Excess::Refuse,
        });
        let key = Key::from_halves(0, 1);
        for bucket in 0..buckets {
            let id = SubscriberId { replica: 1, stream: 1, bucket };
            let report = DividerReport::Usage(SubscriberUsage { denied: 1, ..SubscriberUsage::default() });
            let terms = QuotaTerms::default();
            dividers.report(&SubscriberReport { key, limit: limit.clone(), id, terms, report }, NOW);
        }
        let divisions = dividers.divisions_of(Slot(0), NOW);
        VersionedSlot {
            version: Version { seq: buckets.into(), ..Version::default() },
            grants: SlotGrants { divisions, ..SlotGrants::default() },
            ..VersionedSlot::default()
        }
    }

    #[test]
    fn divisions_of_copies_count_in_the_memory_limit() {
        let memory = Arc::new(Memory::new(1 << 20, OnFull::Deny).shared());
        let mut backups = Backups::new(memory.clone(), NOW);
        backups.store_newer(Slot(0), divided_over(1_000), NOW);
        let counted = memory.stats().backup_bytes;
        assert!(1_000 * 100 < counted && counted < 1_000 * 500, "{counted}");
        backups.store_newer(Slot(0), divided_over(2_000), NOW);
        assert!(counted * 19 / 10 <= memory.stats().backup_bytes, "twice as many");
        // A copy with more is refused.
        assert!(!memory.has_room_in_place_of(&memory.reservation(), 800_000));
        backups.begin_ownership(Slot(0));
        assert_eq!(memory.stats().backup_bytes, 0);
    }
}
