//! Descriptors as people write them: `key=value,key=value`, in which a backslash takes the next character as it is.

use crate::api::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

/// Reads a descriptor; at least one entry.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, String::new());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('\\') => part.push(characters.next().ok_or("a backslash at the end takes nothing")?),
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

/// Writes a descriptor, of keys and values, so that [`parse`] reads it.
pub fn format<'e>(entries: impl IntoIterator<Item = (&'e str, &'e str)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push(',');
        }
        push_escaped(key, &mut text);
        text.push('=');
        push_escaped(value, &mut text);
    }
    text
}

fn push_escaped(part: &str, text: &mut String) {
    for character in part.chars() {
        if matches!(character, '\\' | ',' | '=') {
            text.push('\\');
        }
        text.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_backslash_takes_a_comma_or_an_equals_sign_as_it_is() {
        assert_eq!(
            parse(r"path=/a\,b,que\=ry=x=y,empty="),
            Ok(vec![entry("path", "/a,b"), entry("que=ry", "x=y"), entry("empty", "")])
        );
    }

    #[test]
    fn a_descriptor_without_a_key_or_an_equals_sign_is_refused_with_what_is_wrong() {
        for (text, wrong) in [("user", "`user` has no `=`"), ("a=b,", "`` has no `=`"), ("=b", "has no key")]
        {
            assert!(parse(text).unwrap_err().contains(wrong), "{text}");
        }
    }

    #[test]
    fn a_descriptor_that_is_written_reads_the_same() {
        let given = vec![entry("pa,th", r"/a\b=c,d"), entry("user", "")];
        let pairs = given.iter().map(|entry| (&*entry.key, &*entry.value));
        assert_eq!(parse(&format(pairs)), Ok(given.clone()));
    }
}
