//! The text form of keys and values, which are bytes, and of whole descriptors: `key=value,key=value`.
//!
//! UTF-8 is text as it is. Another byte is `\xE9`, a backslash is `\\`, and a hidden character is escaped as in Rust
//! (`\n`, `\u{1b}`), so the text can be printed, and different bytes have different texts. In the text of a descriptor a
//! backslash also stands before a comma and an equals sign of a part. [`unescaped`] and [`parse`] read all of it back.

use std::{borrow::Cow, fmt::Write as _, str::Chars};

use crate::printable;

/// The characters that separate the parts of a descriptor.
const SEPARATORS: &[char] = &[',', '='];

/// The key and the value of an entry.
pub type OwnedEntry = (Vec<u8>, Vec<u8>);

/// A key or a value as text, from which [`unescaped`] reads the same bytes.
pub fn escaped(part: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(part) {
        Ok(text) if !text.contains(|character| character == '\\' || printable::is_hidden(character)) => {
            Cow::Borrowed(text)
        }
        Ok(_) | Err(_) => {
            let mut text = String::with_capacity(part.len());
            push_escaped(part, &[], &mut text);
            Cow::Owned(text)
        }
    }
}

/// The key or the value of an escaped text. Text without a backslash stands for itself.
///
/// # Errors
///
/// A backslash begins no escape.
pub fn unescaped(text: &str) -> Result<Cow<'_, [u8]>, String> {
    if !text.contains('\\') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let mut part = Vec::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        read(character, &mut characters, &mut part)?;
    }
    Ok(Cow::Owned(part))
}

/// Formats keys and values so that [`parse`] reads the same entries.
pub fn format<K: AsRef<[u8]>, V: AsRef<[u8]>>(entries: impl IntoIterator<Item = (K, V)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push(',');
        }
        push_escaped(key.as_ref(), SEPARATORS, &mut text);
        text.push('=');
        push_escaped(value.as_ref(), SEPARATORS, &mut text);
    }
    text
}

/// Parses a descriptor of at least one entry.
///
/// # Errors
///
/// An entry has no key or no equals sign, or a backslash begins no escape.
pub fn parse(text: &str) -> Result<Vec<OwnedEntry>, String> {
    let mut entries = Vec::new();
    let mut key = None;
    let mut part = Vec::new();
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('=') if key.is_none() => key = Some(std::mem::take(&mut part)),
            end @ (Some(',') | None) => {
                let Some(key) = key.take() else {
                    return Err(format!("`{}` has no `=`; write key=value", escaped(&part)));
                };
                let value = std::mem::take(&mut part);
                if key.is_empty() {
                    return Err(format!("`={}` has no key; write key=value", escaped(&value)));
                }
                entries.push((key, value));
                if end.is_none() {
                    return Ok(entries);
                }
            }
            Some(character) => read(character, &mut characters, &mut part)?,
        }
    }
}

fn push_escaped(part: &[u8], separators: &[char], text: &mut String) {
    let is_plain =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':');
    for chunk in part.utf8_chunks() {
        if chunk.valid().as_bytes().iter().all(is_plain) {
            text.push_str(chunk.valid());
        } else {
            for character in chunk.valid().chars() {
                if character == '\\' || separators.contains(&character) {
                    text.push('\\');
                }
                text.extend(printable::visible(character));
            }
        }
        for byte in chunk.invalid() {
            // Infallible: a text grows as needed.
            let _ = write!(text, "\\x{byte:02X}");
        }
    }
}

/// Appends what `first`, and the rest of the escape that it begins, stand for.
fn read(first: char, rest: &mut Chars<'_>, part: &mut Vec<u8>) -> Result<(), String> {
    let character = if first == '\\' {
        match rest.next().ok_or("trailing backslash")? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' => return hexadecimal_byte(rest).map(|byte| part.push(byte)),
            'u' => numbered(rest)?,
            other if other.is_alphanumeric() => {
                return Err(format!("`\\{other}` is no escape; write `\\\\` for a backslash"));
            }
            plain => plain,
        }
    } else {
        first
    };
    part.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(())
}

/// The byte of two hexadecimal digits.
fn hexadecimal_byte(rest: &mut Chars<'_>) -> Result<u8, String> {
    let mut digit = || rest.next().and_then(|digit| digit.to_digit(16));
    let byte = digit().zip(digit()).map(|(high, low)| (high << 4 | low) as u8);
    byte.ok_or_else(|| "`\\x` without two hexadecimal digits".to_owned())
}

/// The character whose number stands between braces.
fn numbered(rest: &mut Chars<'_>) -> Result<char, String> {
    let inner = rest.as_str().strip_prefix('{').and_then(|inner| inner.split_once('}'));
    let (number, after) = inner.ok_or("`\\u` without a number in `{}`")?;
    *rest = after.chars();
    let number = u32::from_str_radix(number, 16).ok().and_then(char::from_u32);
    number
        .ok_or_else(|| "`\\u{..}` with something else than the hexadecimal number of a character".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(key: &str, value: &str) -> OwnedEntry {
        (key.into(), value.into())
    }

    /// Bytes of which many are part of UTF-8, of escapes, or of neither.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let any = prop::collection::vec(any::<u8>(), 0..12);
        let text = r"[\\xXEeu{}19n,=é\x1b\u{202e}]{0,12}".prop_map(String::into_bytes);
        let mixed = (any.clone(), text.clone()).prop_map(|(one, other)| [one, other].concat());
        prop_oneof![any, text, mixed]
    }

    #[test]
    fn backslash_escapes_comma_and_equals_sign() {
        assert_eq!(
            parse(r"path=/a\,b,que\=ry=x=y,empty="),
            Ok(vec![entry("path", "/a,b"), entry("que=ry", "x=y"), entry("empty", "")])
        );
    }

    #[test]
    fn byte_and_its_escaped_text_are_shown_differently() {
        for (part, text) in [
            (&b"caf\xe9"[..], r"caf\xE9"),
            (br"caf\xE9", r"caf\\xE9"),
            ("café".as_bytes(), "café"),
            (b"\xff\x00\xe2\x82", r"\xFF\u{0}\xE2\x82"),
            (b"a,b=c", "a,b=c"),
        ] {
            assert_eq!(escaped(part), text);
            assert_eq!(unescaped(text).as_deref(), Ok(part));
        }
        assert_eq!(format([(&b"k\xff"[..], &br"a,\"[..])]), r"k\xFF=a\,\\");
        assert_eq!(unescaped(r"\xe9").as_deref(), Ok(&b"\xe9"[..]));
    }

    #[test]
    fn descriptor_without_key_or_equals_sign_is_an_error() {
        for (text, wrong) in [("user", "`user` has no `=`"), ("a=b,", "`` has no `=`"), ("=b", "has no key")]
        {
            assert!(parse(text).unwrap_err().contains(wrong), "{text}");
        }
    }

    #[test]
    fn malformed_escape_is_an_error() {
        for (text, wrong) in [
            (r"a=\u{1b", r"\u"),
            (r"a=\u1b", r"\u"),
            (r"a=\u{}", r"\u{"),
            (r"a=\u{d800}", r"\u{"),
            (r"a=\u{x}", r"\u{"),
            (r"a=\x", r"\x"),
            (r"a=\xE", r"\x"),
            (r"a=\xG0", r"\x"),
            (r"a=\d", r"`\d` is no escape"),
            (r"a=\", "trailing"),
        ] {
            assert!(parse(text).unwrap_err().contains(wrong), "{text}");
            assert!(unescaped(text).unwrap_err().contains(wrong), "{text}");
        }
    }

    proptest! {
        #[test]
        fn escaped_part_is_read_back_for_any_bytes(part in part()) {
            let text = escaped(&part);
            prop_assert!(!text.contains(printable::is_hidden), "{:?}", text);
            let read = unescaped(&text);
            prop_assert_eq!(read.as_deref(), Ok(&*part));
        }

        #[test]
        fn descriptor_is_read_back_for_any_bytes(
            given in prop::collection::vec((part().prop_filter("no key", |key| !key.is_empty()), part()), 1..4),
        ) {
            let text = format(given.iter().map(|(key, value)| (key, value)));
            prop_assert!(!text.contains(printable::is_hidden), "{:?}", text);
            prop_assert_eq!(parse(&text), Ok(given));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in any::<String>()) {
            let _ = (unescaped(&text), parse(&text));
        }
    }
}
