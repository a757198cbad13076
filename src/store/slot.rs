//! Keys fall into slots, which replicas share out among themselves.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::descriptor::Key;

/// How many slots there are, where nobody says otherwise. A power of two.
pub const SLOTS: usize = 4_096;

/// One of a fixed number of parts that all keys fall into, evenly. All counters of a slot are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of `key` where there are so many `slots`, a power of two from 2 to 65,536.
    pub fn of(key: Key, slots: usize) -> Self {
        // The upper bits: tables place counters by the lower half.
        Self((key.high() >> (u64::BITS - slots.ilog2())) as u16)
    }

    /// The slot of this number.
    pub(crate) const fn at(index: usize) -> Self {
        debug_assert!(index < 1 << 16);
        Self(index as u16)
    }

    /// The keys that fall into it where there are so many `slots`.
    pub(crate) fn keys(self, slots: usize) -> RangeInclusive<Key> {
        let shift = u64::BITS - slots.ilog2();
        let first = u64::from(self.0) << shift;
        Key::from_halves(first, 0)..=Key::from_halves(first | ((1 << shift) - 1), u64::MAX)
    }

    /// Its number among all slots.
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
        fn a_key_is_among_those_of_its_slot_and_of_no_other(high: u64, low: u64, bits in 1..=16u32) {
            let (key, slots) = (Key::from_halves(high, low), 1 << bits);
            let slot = Slot::of(key, slots);
            prop_assert!(slot.keys(slots).contains(&key));
            let other = Slot::at((slot.index() + 1) % slots);
            prop_assert!(!other.keys(slots).contains(&key));
        }
    }
}
