//! Who takes part: processes, each for as long as it lives.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process, for as long as it lives: random, never an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(u64);

impl MemberId {
    /// One that no other process has.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The member of this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
