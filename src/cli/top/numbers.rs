//! Numbers as operators read them.

/// A whole number with separators: `1,234,567`.
pub(super) fn whole(value: u64) -> String {
    let digits = value.to_string();
    let first = digits.len() % 3;
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && index % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 rule`, `2 rules`.
pub(super) fn count(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", whole(value), if value == 1 { "" } else { "s" })
}

/// A rate: tenths below 100.
pub(super) fn rate(value: f64) -> String {
    if value > 0.0 && value < 99.95 { format!("{value:.1}") } else { rounded(value) }
}

/// A share of a whole; a dash if there is none.
pub(super) fn share(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.1} %", 100.0 * part / all) } else { "–".to_owned() }
}

/// A time in the unit in which it is short.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.001 => format!("{} µs", rounded(seconds * 1e6)),
        _ if seconds < 1.0 => format!("{} ms", short(seconds * 1e3)),
        _ if seconds < 120.0 => format!("{} s", short(seconds)),
        _ if seconds < 7_200.0 => format!("{} min", rounded(seconds / 60.0)),
        _ if seconds < 172_800.0 => format!("{} h", rounded(seconds / 3_600.0)),
        _ => format!("{} days", rounded(seconds / 86_400.0)),
    }
}

/// Tenths only where they are not zero.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from float saturates"
)]
fn rounded(value: f64) -> String {
    whole(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_separators() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.04, 12.34, 99.97, 12_345.6].map(rate), ["0", "0.0", "12.3", "100", "12,346"]);
        assert_eq!(
            [0.00005, 0.0025, 1.0, 90.0, 300.0, 86_400.0].map(time),
            ["50 µs", "2.5 ms", "1 s", "90 s", "5 min", "24 h"]
        );
        assert_eq!((share(1.0, 3.0), share(0.0, 0.0)), ("33.3 %".to_owned(), "–".to_owned()));
        assert_eq!((count(1, "rule"), count(0, "rule")), ("1 rule".to_owned(), "0 rules".to_owned()));
        assert_eq!(rate(f64::INFINITY), whole(u64::MAX));
    }
}
