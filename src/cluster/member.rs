//! Who takes part.

use std::{fmt, num::NonZeroU64};

use serde::{Deserialize, Serialize};

/// A process, for as long as it lives: random, never an address. Shown as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(u64);

impl MemberId {
    /// One that nobody else has, as far as chance goes.
    pub fn random() -> Self {
        Self(rand::random::<NonZeroU64>().get())
    }

    /// The one of this number, which is not 0: nobody links with that.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_shown_as_16_hexadecimal_digits() {
        assert_eq!(MemberId::from_number(0xabc).to_string(), "0000000000000abc");
    }
}
