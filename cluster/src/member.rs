//! The id of a member.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tollgate_counter::time::{SECOND, Timestamp};

/// Identifies a process for its lifetime: the second of its start and a random number, never an address. The process
/// that started earlier has the smaller id, by the clocks of both. Displayed as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(u64);

/// Why a member or the session with it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The process has certainly ended: its address refuses connections, another process has it, it sent a goodbye, or
    /// an operator says so. Its id never returns.
    Dead,
    /// The process may live, but was silent for too long, or one of the two sides discarded the session.
    Forgotten,
}

impl MemberId {
    /// The id of a process that starts at this instant; never 0.
    pub fn starting_at(start: Timestamp) -> Self {
        let second = (start.as_nanos() / SECOND).clamp(1, u64::from(u32::MAX));
        Self(second << u32::BITS | u64::from(rand::random::<u32>()))
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
    fn member_id_of_earlier_start_is_smaller_and_of_same_second_differs() {
        let at = |second| MemberId::starting_at(Timestamp::from_nanos(second * SECOND));
        assert!(at(1_000) < at(1_001) && at(0) < at(2) && at(1) < at(u64::from(u32::MAX)));
        assert_ne!(at(1_000), at(1_000));
    }

    #[test]
    fn member_id_is_displayed_as_16_hexadecimal_digits() {
        let member = MemberId::from_number(0xabc);
        let text = "0000000000000abc";
        assert_eq!((member.to_string().as_str(), text.parse()), (text, Ok(member)));
        for invalid in ["abc", "+000000000000abc", "0000000000000abg", "00000000000000abc", ""] {
            assert_eq!(invalid.parse::<MemberId>(), Err(()), "{invalid}");
        }
    }
}
