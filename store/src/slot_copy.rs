//! Slots as snapshots hold them, and copies of slots: taken under the lock of a slot, and encoded after it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Counter, Granted, HitRate, Limit},
    descriptor::Key,
    packed_counter::{DecodeClock, DecodeError, Now, PackedCounter},
    time::Timestamp,
};

use crate::{Slot, SlotData, operation::charge_used};

/// A copy of one slot.
#[derive(Debug)]
pub struct SlotSnapshot {
    // What is not in `counters`.
    pub(super) rest: StoredSlot,
    // With the lower halves of their keys. A list and not a map, because a caller may wait for the lock meanwhile.
    pub(super) counters: Vec<(u64, PackedCounter)>,
    // What is granted of the counters, with their limits.
    pub(super) granted: Vec<(Key, Limit, Granted)>,
    // The number of all slots.
    pub(super) slots: usize,
}

/// An encoded copy of one slot.
pub type EncodedSlot = StoredSlot<Vec<u8>>;

impl EncodedSlot {
    /// Decodes the data by this clock.
    pub fn decode(self, clock: impl Into<DecodeClock>) -> Result<StoredSlot, DecodeError> {
        let Self { slot, epoch, seq, data } = self;
        Ok(StoredSlot { slot, epoch, seq, data: SlotData::decode(&data, clock)? })
    }
}

impl SlotSnapshot {
    /// Charges hits that are granted, because nothing is known about its use after a restart.
    fn charge_granted(&mut self, now: Timestamp) {
        let granted = std::mem::take(&mut self.granted);
        if granted.is_empty() {
            return;
        }
        let places: BTreeMap<u64, usize> =
            (0..).zip(&self.counters).map(|(at, (low, _))| (*low, at)).collect();
        for (key, limit, Granted { rate, hits }) in granted {
            let charge = |counter: &mut Counter| {
                limit.keep_debt(counter, rate, HitRate::default(), now);
                charge_used(&limit, counter, hits, now)
            };
            match places.get(&key.low()) {
                Some(place) => {
                    self.counters[*place].1.change(&limit, Now { now, given_up: None }, charge);
                }
                None => {
                    let (_, packed) = PackedCounter::first(&limit, now, charge);
                    self.counters.extend(packed.map(|packed| (key.low(), packed)));
                }
            }
        }
    }

    /// Encodes what is not idle; `None` if there is nothing.
    pub fn encode(mut self, now: Timestamp) -> Option<EncodedSlot> {
        self.charge_granted(now);
        let StoredSlot { slot, epoch, seq, data } = self.rest;
        let data = data.without_idle(now);
        if data.is_empty() && self.counters.iter().all(|(_, packed)| packed.idle_at() <= now) {
            return None;
        }
        let counters = self.counters.iter().map(|(low, packed)| (slot.key(self.slots, *low), packed));
        Some(EncodedSlot { slot, epoch, seq, data: data.encode_with(counters, now) })
    }
}

impl From<StoredSlot> for SlotSnapshot {
    fn from(stored: StoredSlot) -> Self {
        Self { rest: stored, counters: Vec::new(), granted: Vec::new(), slots: 0 }
    }
}

/// How often the owner of a slot has changed, counted from the clock's milliseconds; 0 without a cluster.
///
/// Decoders refuse what is above [`Epoch::MAX`], which no cluster reaches by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The last epoch: 292 million years in milliseconds.
    pub const MAX: Self = Self(1 << 63);

    /// The epoch of the next owner. The last epoch is followed by itself.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1)).min(Self::MAX)
    }
}

/// The stored data of one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSlot<D = SlotData> {
    /// The slot.
    pub slot: Slot,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The number of changes since the owner acquired the slot.
    pub seq: u64,
    /// The counters.
    pub data: D,
}

/// Where a snapshot takes the counters of a slot from.
#[derive(Clone, Debug)]
pub enum SlotSource {
    /// The memory.
    Memory {
        /// The epoch of the slot's owner.
        epoch: Epoch,
    },
    /// A copy that is retained for an owner that is gone.
    Copy(Box<StoredSlot>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_grow_up_to_the_last_one() {
        assert_eq!(Epoch(7).next(), Epoch(8));
        for last in [Epoch::MAX, Epoch(u64::MAX)] {
            assert_eq!(last.next(), Epoch::MAX);
        }
    }
}
