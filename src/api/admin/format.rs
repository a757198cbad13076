//! Formats times and keys for operators.

use std::time::Duration;

use tollgate_counter::{descriptor::Key, time::Timestamp};

/// An instant in RFC 3339.
pub(crate) fn instant(instant: Timestamp) -> String {
    let nanos = i128::from(instant.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// `text` as one word of a POSIX shell, whatever its characters.
pub(crate) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A key in hexadecimal.
pub(crate) fn key(key: Key) -> String {
    format!("{:016x}{:016x}", key.high(), key.low())
}
