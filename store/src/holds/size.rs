//! The memory that holds take.

use crate::{
    holds::{Holds, ended::EndedHold, hold::Hold},
    reservation::HoldId,
};

/// The approximate memory of an entry of a tree without key and value, in bytes.
const TREE_ENTRY_BYTES: usize = 16;

/// What the holds of one counter take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HoldSize {
    pub(crate) open: usize,
    pub(crate) bytes: usize,
}

impl Holds {
    /// The bytes that the first hold of a counter takes in addition to [`Holds::bytes_of_one`]: a vector begins with
    /// four places.
    pub(crate) const BYTES_OF_FIRST: usize = size_of::<Self>() + 2 * size_of::<Hold>();

    /// What they take.
    pub(crate) fn size(&self) -> HoldSize {
        HoldSize { open: self.open(), bytes: self.bytes() }
    }

    /// The approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let ended = size_of::<(HoldId, EndedHold)>() + TREE_ENTRY_BYTES;
        size_of::<Self>()
            + self.each.capacity() * size_of::<Hold>()
            + self.ended.len() * ended
            + self.id_bytes
            + self.changes.bytes()
    }

    /// The bytes that one more hold of this id takes.
    pub(crate) fn bytes_of_one(id: &HoldId) -> usize {
        // A vector grows to twice its length.
        2 * size_of::<Hold>() + size_of::<(HoldId, EndedHold)>() + TREE_ENTRY_BYTES + id.bytes.len()
    }

    pub(super) fn with_bytes_of_ids(self) -> Self {
        let ids = self.each.iter().map(|hold| &hold.id).chain(self.ended.keys());
        let id_bytes = ids.map(|id| id.bytes.len()).sum();
        let request_ids = self.ended.keys().filter(|id| id.is_of_request()).count();
        Self { id_bytes, request_ids, ..self }
    }
}

/// The bytes that one more hold of this id takes.
pub fn id_bytes(id: &HoldId) -> usize {
    Holds::bytes_of_one(id)
}
