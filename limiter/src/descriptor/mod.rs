//! Descriptors and the keys of their counters.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

mod key;
mod secret;
mod text;

pub use key::{KeyText, PrefixHash};
pub use secret::Secret;
pub use text::format;

/// One entry of a descriptor: a key and its value in this request, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key of the entry.
    pub key: &'a str,
    /// Its value, possibly empty.
    pub value: &'a str,
}

/// The identity of a counter: a 128-bit hash of a domain, a descriptor and a kind of counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    high: u64,
    low: u64,
}

impl Key {
    /// A key from its halves.
    pub const fn from_halves(high: u64, low: u64) -> Self {
        Self { high, low }
    }

    /// The upper half, uniformly distributed.
    pub const fn high(self) -> u64 {
        self.high
    }

    /// The lower half, uniformly distributed and independent of the upper one.
    pub const fn low(self) -> u64 {
        self.low
    }
}

/// Hashes to its lower half, which is uniformly distributed already.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}
