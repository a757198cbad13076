//! Slots as snapshots hold them.

use serde::{Deserialize, Serialize};

use crate::{Slot, SlotData};

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
pub struct StoredSlot {
    /// The slot.
    pub slot: Slot,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The number of changes since the owner acquired the slot.
    pub seq: u64,
    /// The counters.
    pub data: SlotData,
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
