//! Slots as snapshots hold them.

use crate::store::{Slot, SlotData};

/// The stored data of one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSlot {
    /// The slot.
    pub slot: Slot,
    /// How often its owner had changed; 0 without a cluster.
    pub epoch: u64,
    /// The number of changes since.
    pub seq: u64,
    /// The counters.
    pub data: SlotData,
}

/// Where a snapshot takes the counters of a slot from.
#[derive(Clone, Debug)]
pub enum SlotSource {
    /// The memory.
    Memory {
        /// How often the owner of the slot has changed; 0 without a cluster.
        epoch: u64,
    },
    /// A copy that is kept for an owner that is gone.
    Copy(Box<StoredSlot>),
}
