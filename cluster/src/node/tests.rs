//! What the simulation reads from a node.

use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_store::Slot;

use crate::{member::MemberId, message::slot::Version, node::ClusterNode};

impl ClusterNode {
    /// The slots whose newest counters may exist only here.
    pub(crate) fn slots_at_risk(&self) -> impl Iterator<Item = Slot> {
        self.owned_slots().chain(self.slots.ownership.all_handed_off())
    }

    /// The newest version of the slot's counters here, owned or as a copy.
    pub(crate) fn newest_version(&self, slot: Slot) -> Option<Version> {
        let stored = self.slots.backups.stored(slot).map(|copy| copy.version);
        let handed_off = self.slots.ownership.handed_off(slot).map(|(copy, _)| copy.version);
        self.slots.ownership.version(slot).max(stored).max(handed_off)
    }

    /// Whether this replica owns the slot and had no memory for the data that it has started from.
    pub(crate) fn lacks_origin(&self, slot: Slot) -> bool {
        self.slots.ownership.lacks_origin(slot)
    }

    /// Whether this replica asks others for their copies of a slot.
    pub(crate) fn is_recovering(&self) -> bool {
        self.slots.recovery.is_any_open()
    }

    /// Whether this replica had no memory for the last backup of the slot.
    pub(crate) fn is_backup_refused(&self, slot: Slot) -> bool {
        self.slots.backups.is_refused(slot)
    }

    /// The member that this replica has sent the last backup of the slot to, since it owns the slot.
    pub(crate) fn backed_up_at(&self, slot: Slot) -> Option<MemberId> {
        self.slots.backup_sender.receiver(slot)
    }

    /// Hits of `key` that this replica has borrowed and may still use.
    pub(crate) fn borrowed(&self, key: Key, now: Timestamp) -> u64 {
        self.borrower.borrowed(key, now)
    }
}
