//! Maps by key: their hasher, the memory that they take, and how much is cut of them at a time.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter};

use crate::side_data::SideData;

/// A map by key.
pub(super) type ByKey<T> = HashMap<Key, T, KeyHash>;

/// Makes hashers of keys.
pub type KeyHash = BuildHasherDefault<KeyHasher>;

/// An identity hasher: keys are hashes already.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Unused: a [`Key`] hashes as one number.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// Data that takes too much memory is cut by this fraction at a time.
pub(crate) const CUT_DIVISOR: usize = 16;

/// The memory of a standard hash map of this capacity, in bytes: one of eight buckets stays free, and each takes one
/// byte of metadata.
pub(crate) fn bytes_of_map(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 8 / 7 + 1) * (size_of::<(Key, PackedCounter)>() + 1) + 16 }
}

/// The approximate memory, in bytes.
pub(crate) fn bytes_of_side_data(side_data: &ByKey<Box<SideData>>) -> usize {
    let capacity = side_data.capacity() * size_of::<(Key, Box<SideData>)>() * 5 / 4;
    capacity + side_data.values().map(|side_data| side_data.size().bytes).sum::<usize>()
}
