//! The `grpc-timeout` header.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The timeout of the caller; `None` if the header is absent or malformed.
pub fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(&GRPC_TIMEOUT)?.to_str().ok()?)
}

/// Parses one to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    const DIGITS_MAX: usize = 8;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _no_unit => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_has_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("2H", Duration::from_secs(7_200)),
            ("3M", Duration::from_secs(180)),
            ("42S", Duration::from_secs(42)),
            ("250m", Duration::from_millis(250)),
            ("00000007u", Duration::from_micros(7)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
            ("0S", Duration::ZERO),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in ["", "S", "1", "1s", "1 S", "-1S", "+1S", "1.5S", "123456789n", "1SS", "1é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
