//! What tests look at in slot data.

use crate::slot_data::SlotData;

impl SlotData {
    /// The number of pending usages.
    pub(crate) fn pending_len(&self) -> usize {
        self.side_data.values().map(|side_data| side_data.pending.len()).sum()
    }
}
