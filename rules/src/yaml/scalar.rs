//! Resolves scalars by the rules of YAML 1.1.

use std::borrow::Cow;

use crate::yaml::{Scalar, quote};

/// A scalar with its implicit type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resolved {
    /// Absent, `~` or `null`.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// An integer: decimal, `0x`, `0b`, `0o`, or octal with a leading zero; `_` may separate digits.
    Integer(i128),
    /// A number that is no [`Resolved::Integer`].
    Float(f64),
    /// Any other scalar, and every quoted one.
    Text,
}

impl Scalar<'_> {
    /// The scalar with its implicit type.
    pub fn resolve(&self) -> Resolved {
        if self.quoted {
            return Resolved::Text;
        }
        match &*self.text {
            "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
                Resolved::Bool(true)
            }
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
                Resolved::Bool(false)
            }
            text => number(text).unwrap_or(Resolved::Text),
        }
    }

    /// A description for messages.
    pub(crate) fn describe(&self) -> String {
        let shown = quote(&self.text);
        match self.resolve() {
            Resolved::Null => "nothing".into(),
            Resolved::Bool(_) => format!("the boolean {shown}"),
            Resolved::Integer(_) | Resolved::Float(_) => format!("the number {shown}"),
            Resolved::Text if self.quoted => format!("the text {shown} in quotes"),
            Resolved::Text => format!("the text {shown}"),
        }
    }
}

fn number(text: &str) -> Option<Resolved> {
    let starts = text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'));
    if !starts || text.len() > 400 {
        return None;
    }
    let plain = if text.contains('_') { Cow::Owned(text.replace('_', "")) } else { Cow::Borrowed(text) };
    integer(&plain).map(Resolved::Integer).or_else(|| float(&plain).map(Resolved::Float))
}

fn integer(plain: &str) -> Option<i128> {
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(plain)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

fn float(plain: &str) -> Option<f64> {
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(plain);
    let sign = if plain.starts_with('-') { -1.0 } else { 1.0 };
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    // The rest must start with a digit: Rust would also parse `inf` and `nan`.
    let digits = unsigned.trim_start_matches('.').starts_with(|first: char| first.is_ascii_digit());
    if digits { plain.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Resolved {
        Scalar { text: text.into(), quoted: false }.resolve()
    }

    #[test]
    fn integers_follow_yaml_1_1() {
        for (text, value) in [
            ("0", 0),
            ("12", 12),
            ("+7", 7),
            ("-3", -3),
            ("0x1F", 31),
            ("0b101", 5),
            ("0o17", 15),
            ("010", 8),
            ("1_000_000", 1_000_000),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(plain(text), Resolved::Integer(value), "{text}");
        }
    }

    #[test]
    fn other_numbers_are_floats() {
        for (text, value) in
            [("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("09", 9.0), ("-.inf", f64::NEG_INFINITY)]
        {
            assert_eq!(plain(text), Resolved::Float(value), "{text}");
        }
    }

    #[test]
    fn booleans_follow_yaml_1_1() {
        for text in ["y", "Yes", "on", "TRUE"] {
            assert_eq!(plain(text), Resolved::Bool(true), "{text}");
        }
        for text in ["n", "No", "off", "False"] {
            assert_eq!(plain(text), Resolved::Bool(false), "{text}");
        }
        for text in
            ["yEs", "tRUE", "inf", "-inf", "nan", "1.2.3", "0x", "0xg", "-", "1s", "--1", "2026-01-01"]
        {
            assert_eq!(plain(text), Resolved::Text, "{text}");
        }
    }

    #[test]
    fn quoted_scalar_is_text() {
        for text in ["1", "true", "~", ""] {
            assert_eq!(Scalar { text: text.into(), quoted: true }.resolve(), Resolved::Text, "{text}");
        }
    }
}
