//! The text form of descriptors: `key=value,key=value`. A backslash escapes the next character; hidden characters are
//! escaped as in Rust, so the text can be printed.

use crate::printable;

/// Formats keys and values so that a reader of this form finds the same entries.
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
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':');
    if part.bytes().all(is_plain) {
        return text.push_str(part);
    }
    for character in part.chars() {
        if matches!(character, '\\' | ',' | '=') {
            text.push('\\');
        }
        text.extend(printable::visible(character));
    }
}
