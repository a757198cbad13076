//! Finds fields of messages that this version does not know, and that a decoder skips without a word.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The fields of a message that this version knows.
pub(super) struct KnownFields {
    /// The highest known field number: the numbers from 1 to `max` are known.
    max: u32,
    /// The known fields that are messages and are searched as well: number, name and known fields of each.
    messages: &'static [(u32, &'static str, Self)],
}

impl KnownFields {
    /// The known fields of a `RateLimitConfig`. Its descriptors are read one by one.
    pub(super) const CONFIG: Self = Self { max: 3, messages: &[] };
    /// The known fields of a `RateLimitDescriptor`, without the descriptors in it.
    pub(super) const DESCRIPTOR: Self = Self { max: 8, messages: &[(3, "rate_limit", Self::POLICY)] };
    const POLICY: Self = Self { max: 5, messages: &[(5, "replaces", Self::REPLACE)] };
    const REPLACE: Self = Self { max: 1, messages: &[] };
}

/// The first field of a valid message that is not known: its number behind the names of the fields around it.
pub(super) fn unknown_field(mut bytes: &[u8], known: &KnownFields) -> Option<String> {
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        if number > known.max {
            return Some(number.to_string());
        }
        let message = known.messages.iter().find(|(message, ..)| *message == number);
        match message.filter(|_| wire_type == WireType::LengthDelimited) {
            None => skip_field(wire_type, number, &mut bytes, DecodeContext::default()).ok()?,
            Some((_, name, known)) => {
                let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                let (message, rest) = bytes.split_at_checked(length)?;
                if let Some(field) = unknown_field(message, known) {
                    return Some(format!("{name}.{field}"));
                }
                bytes = rest;
            }
        }
    }
    None
}
