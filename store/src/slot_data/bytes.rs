//! The memory that slot data takes, and how much is cut of it at a time.

use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter};

use crate::{holds::Holds, key_hasher::ByKey};

/// Data that takes too much memory is cut by this fraction at a time.
pub(super) const CUT_DIVISOR: usize = 16;

/// The memory of a standard hash map of this capacity, in bytes: one of eight buckets stays free, and each takes one
/// byte of metadata.
pub(crate) fn bytes_of_map(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 8 / 7 + 1) * (size_of::<(Key, PackedCounter)>() + 1) + 16 }
}

/// The approximate memory, in bytes.
pub(super) fn bytes_of_holds(holds: &ByKey<Box<Holds>>) -> usize {
    let capacity = holds.capacity() * size_of::<(Key, Box<Holds>)>() * 5 / 4;
    capacity + holds.values().map(|holds| holds.bytes()).sum::<usize>()
}
