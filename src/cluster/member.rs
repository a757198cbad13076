//! The id of a member.

use std::{fmt, num::NonZeroU64, str::FromStr};

use serde::{Deserialize, Serialize};

/// Identifies a process for its lifetime: random, never an address. Displayed as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(u64);

impl MemberId {
    /// A random id, which is never 0.
    pub fn random() -> Self {
        Self(rand::random::<NonZeroU64>().get())
    }

    /// The id with this number. 0 is not valid: no link is made with it.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number.
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

impl FromStr for MemberId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_canonical = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).map_err(drop)?;
        if is_canonical { Ok(Self(number)) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_id_is_displayed_as_16_hexadecimal_digits() {
        let (member, text) = (MemberId::from_number(0xabc), "0000000000000abc");
        assert_eq!((member.to_string().as_str(), text.parse()), (text, Ok(member)));
        for invalid in ["abc", "+000000000000abc", "0000000000000abg", "00000000000000abc", ""] {
            assert_eq!(invalid.parse::<MemberId>(), Err(()), "{invalid}");
        }
    }
}
