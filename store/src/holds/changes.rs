//! What has changed in the holds of a counter since the last copy of changes.

use crate::reservation::{HOLDS_MAX, HoldId};

/// What has changed since the last copy.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldChanges {
    /// The changes of the ended holds so far.
    pub(super) last: u64,
    /// How many changes of ended holds the last copy had; `None` if the next copy has everything.
    pub(super) copied: Option<u64>,
    /// The ids of holds that no longer weigh anything. In a partial copy those since the earlier copy.
    pub(super) gone: Vec<HoldId>,
    /// Whether what has not changed since an earlier copy is missing.
    pub(super) is_partial: bool,
    /// In a copy that accompanies the changes of a log: the position in the log of the entry of each hold that is in
    /// one. The instants of the same entry differ between two replicas, as both copied it at another time.
    pub(super) positions: Vec<Option<u16>>,
}

/// Compares only whether something is missing.
impl PartialEq for HoldChanges {
    fn eq(&self, other: &Self) -> bool {
        self.is_partial == other.is_partial
    }
}

impl Eq for HoldChanges {}

impl HoldChanges {
    /// The number of the next change of the ended holds.
    pub(super) fn next(&mut self) -> Uncompared<u64> {
        self.last += 1;
        Uncompared(self.last)
    }

    /// Records that a hold weighs nothing any longer.
    pub(super) fn remove(&mut self, id: &HoldId) {
        if self.copied.is_none() {
            return;
        }
        if self.gone.len() < HOLDS_MAX {
            self.gone.push(id.clone());
        } else {
            (self.copied, self.gone) = (None, Vec::new());
        }
    }

    /// The approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.gone.capacity() * size_of::<HoldId>()
            + self.gone.iter().map(|id| id.bytes.len()).sum::<usize>()
            + self.positions.capacity() * size_of::<Option<u16>>()
    }
}

/// What does not tell two states apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uncompared<T>(pub(super) T);

impl<T> PartialEq for Uncompared<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Uncompared<T> {}
