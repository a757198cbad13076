//! What is asked about, and the key of its counter.

use std::hash::{Hash, Hasher};

mod key;
mod secret;

pub use key::{KeyPrefix, KeyText};
pub use secret::{Secret, SharedSecret};

/// One step of a descriptor: a key and the value it has in this request, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the step.
    pub key: &'a str,
    /// Its value, possibly empty.
    pub value: &'a str,
}

/// Which counter: 128 bits that stand for a domain, a descriptor and a kind of counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    high: u64,
    low: u64,
}

impl Key {
    /// The key of these halves.
    pub(crate) const fn from_halves(high: u64, low: u64) -> Self {
        Self { high, low }
    }

    /// The upper half, evenly spread over all its bits.
    pub const fn high(self) -> u64 {
        self.high
    }

    /// The lower half, evenly spread over all its bits and independent of the upper one.
    pub const fn low(self) -> u64 {
        self.low
    }
}

/// Hashes as its lower half: the bits are as good as any hash would make them.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}
