//! Slots: the partitions of the key space that are assigned to replicas.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::descriptor::Key;

/// The default number of slots. A power of two.
pub const SLOTS: usize = 4_096;

/// A partition of the key space. All counters of a slot have one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of `key` among `slots`, a power of two from 2 to 65,536.
    pub fn of(key: Key, slots: usize) -> Self {
        // The upper bits: tables use the lower half.
        Self((key.high() >> (u64::BITS - slots.ilog2())) as u16)
    }

    /// The slot of this index.
    pub const fn at(index: usize) -> Self {
        debug_assert!(index < 1 << 16);
        Self(index as u16)
    }

    /// The range of keys of the slot among `slots`.
    pub fn keys(self, slots: usize) -> RangeInclusive<Key> {
        let shift = u64::BITS - slots.ilog2();
        let first = u64::from(self.0) << shift;
        Key::from_halves(first, 0)..=Key::from_halves(first | ((1 << shift) - 1), u64::MAX)
    }

    /// The index of the slot.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn key_is_in_the_range_of_its_slot_only(high: u64, low: u64, bits in 1..=16u32) {
            let (key, slots) = (Key::from_halves(high, low), 1 << bits);
            let slot = Slot::of(key, slots);
            prop_assert!(slot.keys(slots).contains(&key));
            let other = Slot::at((slot.index() + 1) % slots);
            prop_assert!(!other.keys(slots).contains(&key));
        }
    }
}
