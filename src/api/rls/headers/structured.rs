//! Values of structured fields (RFC 9651).

use std::fmt::Write as _;

/// The largest integer: it has 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// An integer. Larger ones become the largest.
pub(super) fn integer(number: u64) -> u64 {
    number.min(INTEGER_MAX)
}

/// A string. It can hold printable ASCII only, so the bytes of other characters, and `%`, are written as `%XX`.
pub(super) fn string(text: &str) -> String {
    let mut string = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => string.extend(['\\', char::from(byte)]),
            b' '..=b'~' if byte != b'%' => string.push(char::from(byte)),
            _other => {
                // Writing to a string does not fail.
                let _ = write!(string, "%{byte:02X}");
            }
        }
    }
    string.push('"');
    string
}

/// A byte sequence: Base64 between colons.
pub(super) fn byte_sequence(bytes: &[u8]) -> String {
    let mut sequence = String::from(":");
    for chunk in bytes.chunks(3) {
        let filled = chunk.iter().chain([0; 2].iter()).take(3);
        let block = filled.fold(0_usize, |block, byte| block << 8 | usize::from(*byte));
        let digits = [18, 12, 6, 0].map(|shift| char::from(BASE64[block >> shift & 63]));
        sequence.extend(digits.iter().take(chunk.len() + 1));
        sequence.extend((chunk.len()..3).map(|_| '='));
    }
    sequence.push(':');
    sequence
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, Parser};

    use super::*;

    fn parsed(text: &str) -> BareItem {
        Parser::new(text).parse::<Item>().unwrap_or_else(|error| panic!("{text}: {error}")).bare_item
    }

    proptest! {
        #[test]
        fn string_is_parsed_to_its_text(text in "[ -$&-~]{0,40}") {
            let item = parsed(&string(&text));
            prop_assert_eq!(item.as_string().unwrap().as_str(), text);
        }

        #[test]
        fn any_text_is_a_string_of_its_own(one in ".{0,8}", other in ".{0,8}") {
            let strings = [&one, &other].map(|text| parsed(&string(text)));
            prop_assert_eq!(strings[0] == strings[1], one == other);
        }

        #[test]
        fn byte_sequence_is_parsed_to_its_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let item = parsed(&byte_sequence(&bytes));
            prop_assert_eq!(item.as_byte_sequence().unwrap(), bytes);
        }

        #[test]
        fn integer_has_at_most_15_digits(number: u64) {
            let text = integer(number).to_string();
            prop_assert!(parsed(&text).as_integer().is_some() && text.len() <= 15);
        }
    }

    #[test]
    fn characters_beyond_ascii_are_written_as_bytes() {
        assert_eq!(string("é 50%\n"), r#""%C3%A9 50%25%0A""#);
    }
}
