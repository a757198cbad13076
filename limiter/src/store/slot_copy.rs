//! Copies of slots for a snapshot: taken under the lock of a slot, and encoded after it.

use crate::{
    store::{DecodeError, Epoch, Slot, SlotData, StoredSlot, packed_counter::PackedCounter},
    time::Timestamp,
};

/// A copy of one slot.
#[derive(Debug)]
pub struct SlotCopy {
    // What is not in `counters`.
    rest: StoredSlot,
    // With the lower halves of their keys. A list and not a map, because a caller may wait for the lock meanwhile.
    counters: Vec<(u64, PackedCounter)>,
    // The number of all slots.
    slots: usize,
}

/// An encoded copy of one slot.
#[derive(Debug)]
pub struct EncodedSlot {
    /// The slot.
    pub slot: Slot,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The number of changes since.
    pub seq: u64,
    /// The data.
    pub bytes: Vec<u8>,
}

impl EncodedSlot {
    /// Decodes the data, which was encoded at `now`.
    pub fn decode(self, now: Timestamp) -> Result<StoredSlot, DecodeError> {
        let Self { slot, epoch, seq, bytes } = self;
        Ok(StoredSlot { slot, epoch, seq, data: SlotData::decode(&bytes, now)? })
    }
}

impl SlotCopy {
    pub(super) fn new(rest: StoredSlot, counters: Vec<(u64, PackedCounter)>, slots: usize) -> Self {
        Self { rest, counters, slots }
    }

    /// Encodes what is not idle; `None` if there is nothing.
    pub fn encode(self, now: Timestamp) -> Option<EncodedSlot> {
        let StoredSlot { slot, epoch, seq, data } = self.rest;
        let data = data.without_idle(now);
        if data.is_empty() && self.counters.iter().all(|(_, packed)| packed.idle_at() <= now) {
            return None;
        }
        let counters = self.counters.iter().map(|(low, packed)| (slot.key(self.slots, *low), packed));
        Some(EncodedSlot { slot, epoch, seq, bytes: data.encode_with(counters, now) })
    }
}

impl From<StoredSlot> for SlotCopy {
    fn from(stored: StoredSlot) -> Self {
        Self::new(stored, Vec::new(), 0)
    }
}
