//! Descriptors and the keys of their counters.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use serde::{Deserialize, Serialize};

mod key;
mod text;

pub use key::{KeyText, PrefixHash, Secret};
pub use text::{OwnedEntry, escaped, format, parse, unescaped};

/// One entry of a descriptor: a key and its value in this request, which may be empty. Both are bytes, because proxies
/// put the values of headers into them. [`escaped`] is their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key of the entry.
    pub key: &'a [u8],
    /// The value of the entry, possibly empty.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// An entry of texts or of bytes.
    #[inline(always)]
    pub fn new(key: &'a (impl AsRef<[u8]> + ?Sized), value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { key: key.as_ref(), value: value.as_ref() }
    }
}

/// The identity of a counter: a 128-bit hash of a domain, a descriptor and a kind of counter.
///
/// The upper half selects the slot, and the lower half the counter in it. Keys are compared by the lower half, which is
/// all that a slot stores of them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.low == other.low
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.low.cmp(&other.low)
    }
}

/// Hashes a key to its lower half, which is uniformly distributed already.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}
