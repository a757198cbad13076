//! Instants as logs write them.

use tollgate_counter::time::{SECOND, Timestamp};

/// Reads RFC 3339, the time of NGINX and Apache as in `02/Jan/2026:03:04:05 +0000`, or a number since 1970: seconds
/// below 10^11, then milliseconds, microseconds and nanoseconds, each for a thousand times as many.
pub(in crate::simulate) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return number(text);
    }
    let parsed = match text.contains('/') {
        true => jiff::Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", text),
        false => text.parse(),
    };
    let parsed = parsed.ok()?;
    u64::try_from(parsed.as_nanosecond()).ok().map(Timestamp::from_nanos)
}

/// The instant that a text names, or an error for a text that names none.
pub(super) fn required(text: &str) -> Result<Timestamp, String> {
    parse(text)
        .ok_or_else(|| format!("`{text}` is no time; RFC 3339, `02/Jan/2026:03:04:05 +0000`, or seconds or milliseconds since 1970 are"))
}

fn number(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    let unit = match whole {
        0..100_000_000_000 => SECOND,
        100_000_000_000..100_000_000_000_000 => SECOND / 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => SECOND / 1_000_000,
        _ => 1,
    };
    let mut nanos = whole.checked_mul(unit)?;
    let mut digit_nanos = unit;
    for digit in fraction.bytes() {
        digit_nanos /= 10;
        nanos = nanos
            .checked_add(u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?) * digit_nanos)?;
    }
    Some(Timestamp::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_an_instant_are_read() {
        let nanos = |text: &str| parse(text).map(Timestamp::as_nanos);
        for text in [
            "2026-01-02T03:04:05.250Z",
            "2026-01-02T05:04:05.25+02:00",
            "1767323045.25",
            "1767323045250",
            "1767323045250000",
            "1767323045250000000",
        ] {
            assert_eq!(nanos(text), Some(1_767_323_045_250_000_000), "{text}");
        }
        assert_eq!(nanos("1767323045250.5"), Some(1_767_323_045_250_500_000));
        assert_eq!(nanos("02/Jan/2026:05:04:05 +0200"), Some(1_767_323_045_000_000_000));
        assert_eq!(nanos("0"), Some(0));
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            ".",
            "1.2.3",
            "-5",
            "soon",
            "2026-01-02",
            "99999999999999999999",
            "1969-01-01T00:00:00Z",
            "02/Jan/2026",
            "2/2026",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
