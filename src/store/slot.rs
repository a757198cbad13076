//! Keys fall into slots, which replicas share out among themselves.

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

    /// Its number among all slots.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
