//! Slots as snapshots hold them, and copies of slots: taken under the lock of a slot, and encoded after it.

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    packed_counter::{DecodeClock, DecodeError},
    time::Timestamp,
};

use crate::{slot::Slot, slot_data::SlotData};

/// A copy of one slot for a snapshot. Called with the instant of the snapshot, it puts together what was copied under
/// the lock of the slot.
pub type SlotCopy = Box<dyn FnOnce(Timestamp) -> StoredSlot + Send>;

/// An encoded copy of one slot.
pub type EncodedSlot = StoredSlot<Vec<u8>>;

impl EncodedSlot {
    /// Decodes the data by this clock.
    pub fn decode(self, clock: impl Into<DecodeClock>) -> Result<StoredSlot, DecodeError> {
        let Self { slot, epoch, seq, data } = self;
        Ok(StoredSlot { slot, epoch, seq, data: SlotData::decode(&data, clock)? })
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
    /// The epoch of the owner of the slot.
    pub epoch: Epoch,
    /// The number of changes since the owner acquired the slot.
    pub seq: u64,
    /// The counters.
    pub data: D,
}

impl StoredSlot {
    /// Encodes what is not idle; `None` if there is nothing.
    pub fn encode(self, now: Timestamp) -> Option<EncodedSlot> {
        let Self { slot, epoch, seq, data } = self;
        let data = data.without_idle(now);
        (!data.is_empty()).then(|| EncodedSlot { slot, epoch, seq, data: data.encode(now) })
    }
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
