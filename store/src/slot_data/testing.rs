//! What tests look at in slot data.

use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter};

use crate::SlotData;

impl SlotData {
    pub(crate) fn counter(&self, key: Key) -> Option<&PackedCounter> {
        self.counters.get(&key)
    }

    /// The number of pending usages.
    pub(crate) fn pending_len(&self) -> usize {
        self.side_data.values().map(|side_data| side_data.pending.len()).sum()
    }
}
