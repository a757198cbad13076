//! Slots: the partitions of the key space that are assigned to replicas; and maps by key, of one slot or of several.

use std::{collections::HashMap, ops::RangeInclusive};

use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};
use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter};

/// The default number of slots. A power of two.
pub const SLOTS: usize = 4_096;

/// A partition of the key space. All counters of a slot have one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of `key` among `slots`, a power of two from 2 to 65,536.
    pub fn for_key(key: Key, slots: usize) -> Self {
        // The upper bits: tables use the lower half.
        Self((key.high() >> (u64::BITS - slots.ilog2())) as u16)
    }

    /// The slot of this index.
    pub const fn at(index: usize) -> Self {
        debug_assert!(index < 1 << 16);
        Self(index as u16)
    }

    /// The key of the slot among `slots` with this lower half. It is equal to the key that was stored; the rest of its
    /// upper half is 0.
    pub fn key(self, slots: usize, low: u64) -> Key {
        Key::from_halves(u64::from(self.0) << (u64::BITS - slots.ilog2()), low)
    }

    /// The places of the keys of the slot among those of all slots.
    pub fn places(self) -> RangeInclusive<(Self, Key)> {
        (self, Key::from_halves(0, 0))..=(self, Key::from_halves(0, u64::MAX))
    }

    /// The index of the slot.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A map by key.
pub(super) type ByKey<T> = HashMap<Key, T, KeyHash>;

/// Makes hashers of keys. A fast one suffices: keys are hashes with a secret already.
pub type KeyHash = FxBuildHasher;

const _: () = assert!(size_of::<Option<PackedCounter>>() == size_of::<PackedCounter>());

/// Data that takes too much memory is cut by this fraction at a time.
pub(crate) const CUT_DIVISOR: usize = 16;

/// The memory of a standard hash map of this capacity, in bytes: one of eight buckets stays free, and each takes one
/// byte of metadata.
pub(crate) fn bytes_of_map(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 8 / 7 + 1) * (size_of::<(Key, PackedCounter)>() + 1) + 16 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slot_and_lower_half_identify_a_key(high: u64, low: u64, bits in 1..=16u32) {
            let (key, slots) = (Key::from_halves(high, low), 1 << bits);
            let slot = Slot::for_key(key, slots);
            let restored = slot.key(slots, low);
            prop_assert_eq!((restored, Slot::for_key(restored, slots)), (key, slot));
        }
    }
}
