//! The text form of descriptors: `key=value,key=value`. A backslash escapes the next character; `\n`, `\r`, `\t` and
//! `\u{1b}` stand for characters that cannot be printed.

use std::str::Chars;

use crate::api::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

pub use tollgate_limiter::descriptor::format;

/// Parses a descriptor of at least one entry.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, String::new());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('\\') => part.push(unescaped(&mut characters)?),
            Some('=') if key.is_none() => key = Some(std::mem::take(&mut part)),
            Some(',') | None if key.is_none() => return Err(format!("`{part}` has no `=`; write key=value")),
            end @ (Some(',') | None) => {
                let (key, value) = (key.take().unwrap_or_default(), std::mem::take(&mut part));
                if key.is_empty() {
                    return Err(format!("`={value}` has no key; write key=value"));
                }
                entries.push(Entry { key, value });
                if end.is_none() {
                    return Ok(entries);
                }
            }
            Some(character) => part.push(character),
        }
    }
}

/// The character that is written after a backslash.
fn unescaped(characters: &mut Chars<'_>) -> Result<char, String> {
    Ok(match characters.next().ok_or("trailing backslash")? {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' if characters.as_str().starts_with('{') => {
            let (number, rest) = characters.as_str()[1..].split_once('}').ok_or("`\\u{` without `}`")?;
            *characters = rest.chars();
            let number = u32::from_str_radix(number, 16).ok().and_then(char::from_u32);
            number.ok_or("`\\u{..}` with something else than the hexadecimal number of a character")?
        }
        plain => plain,
    })
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::printable;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn backslash_escapes_comma_and_equals_sign() {
        assert_eq!(
            parse(r"path=/a\,b,que\=ry=x=y,empty="),
            Ok(vec![entry("path", "/a,b"), entry("que=ry", "x=y"), entry("empty", "")])
        );
    }

    #[test]
    fn descriptor_without_key_or_equals_sign_is_an_error() {
        for (text, wrong) in [("user", "`user` has no `=`"), ("a=b,", "`` has no `=`"), ("=b", "has no key")]
        {
            assert!(parse(text).unwrap_err().contains(wrong), "{text}");
        }
    }

    #[test]
    fn formatted_descriptor_parses_to_same_entries() {
        let given = vec![
            entry("pa,th", r"/a\b=c,d"),
            entry("user", ""),
            entry("hidden", "\x1b]0;\x07\r\n\t\u{9b}\u{202e}"),
            entry("spelled", r"\u{1b}\n"),
        ];
        let text = format(given.iter().map(|entry| (&*entry.key, &*entry.value)));
        assert!(!text.contains(printable::is_hidden), "{text:?}");
        assert_eq!(parse(&text), Ok(given.clone()));
    }

    #[test]
    fn malformed_number_of_a_character_is_an_error() {
        for text in [r"a=\u{1b", r"a=\u{}", r"a=\u{d800}", r"a=\u{x}"] {
            assert!(parse(text).unwrap_err().contains(r"\u{"), "{text}");
        }
    }
}
