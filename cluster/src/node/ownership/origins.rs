//! The data that owners have started from, as long as a member may return with another history of a slot.

use tollgate_counter::time::Timestamp;
use tollgate_store::Slot;

use crate::{
    message::VersionedSlot,
    node::ownership::{OwnedSlot, Ownership},
};

impl Ownership {
    /// Adds what a newer copy than the one that the recovery started from has consumed, and the owner lacks.
    pub(in crate::node) fn add_newer_copy(&mut self, slot: Slot, copy: VersionedSlot, wall: Timestamp) {
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
    pub(in crate::node) fn drop_origins_while_overfull(&mut self) -> u64 {
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

    /// Whether this replica owns the slot and does not keep the data that it has started from.
    #[cfg(test)]
    pub(in crate::node) fn lacks_origin(&self, slot: Slot) -> bool {
        self.state(slot).owned.as_ref().is_some_and(|owned| owned.origin.contents.is_none())
    }

    /// Drops the data that recoveries started from once no member can return with another history.
    pub(in crate::node) fn drop_old_origins(&mut self, now: Timestamp) {
        for state in &mut self.slots {
            if let Some(owned) = &mut state.owned
                && owned.origin_expires_at <= now
                && owned.origin.contents.as_ref().is_some_and(|contents| !contents.is_empty())
            {
                owned.origin.contents = None;
            }
        }
    }
}
