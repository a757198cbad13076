//! Reads and writes Protocol Buffers without generated code: texts borrow from the message that is read, and replies
//! are written into one buffer.

use std::str;

use prost::encoding::{DecodeContext, WireType, encode_varint, encoded_len_varint, skip_field};
use tollgate_counter::descriptor::Entry;

/// Length of the gRPC frame prefix: a flag and the message length.
pub const FRAME_PREFIX_BYTES: usize = 5;

// Wire types: the lower three bits of a field key.
const VARINT: u8 = 0;
const BYTES: u8 = 2;

/// The bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedMessage;

/// The value of a field.
pub enum FieldValue<'m> {
    /// A number.
    Varint(u64),
    /// Bytes, a text or a message.
    Bytes(&'m [u8]),
    /// A wire type that no known field has.
    Other,
}

/// Iterates over the fields of a message.
pub struct MessageFields<'m> {
    rest: &'m [u8],
}

impl<'m> MessageFields<'m> {
    /// The fields of a message.
    pub fn new(message: &'m [u8]) -> Self {
        Self { rest: message }
    }

    /// What follows the last field that was read.
    pub fn rest(&self) -> &'m [u8] {
        self.rest
    }

    /// The next field; `None` at the end of the message.
    // `inline(always)`: the value is matched in registers, not written to memory and read again.
    #[inline(always)]
    pub fn next_field(&mut self) -> Result<Option<(u32, FieldValue<'m>)>, MalformedMessage> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.field().map(Some).ok_or(MalformedMessage)
    }

    #[inline(always)]
    fn field(&mut self) -> Option<(u32, FieldValue<'m>)> {
        let key = u32::try_from(self.varint()?).ok()?;
        let number = Some(key >> 3).filter(|number| *number != 0)?;
        let value = match key & 7 {
            0 => FieldValue::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                FieldValue::Bytes(self.bytes(length)?)
            }
            wire_type => self.other(wire_type, number)?,
        };
        Some((number, value))
    }

    #[cold]
    fn other(&mut self, wire_type: u32, number: u32) -> Option<FieldValue<'m>> {
        // Groups nest; `prost` bounds their depth.
        let wire_type = WireType::try_from(u64::from(wire_type)).ok()?;
        skip_field(wire_type, number, &mut self.rest, DecodeContext::default()).ok()?;
        Some(FieldValue::Other)
    }

    #[inline]
    fn bytes(&mut self, length: usize) -> Option<&'m [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    #[inline(always)]
    fn varint(&mut self) -> Option<u64> {
        // Fast path: nearly every number takes one byte.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(u64::from(*byte));
        }
        self.long_varint()
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Option<u64> {
        /// Maximum length of a varint, and maximum value of its last byte.
        const BYTES_MAX: usize = 10;
        const LAST_MAX: u8 = 1;
        let mut number = 0;
        for (place, byte) in self.rest.iter().take(BYTES_MAX).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return (place + 1 < BYTES_MAX || *byte <= LAST_MAX).then_some(number);
            }
        }
        None
    }
}

/// The bytes as a text.
#[inline]
pub fn text(bytes: &[u8]) -> Result<&str, MalformedMessage> {
    str::from_utf8(bytes).map_err(|_| MalformedMessage)
}

/// Reads an entry of a descriptor, or a pair of the id of a bucket: a key and a value.
#[inline]
pub fn entry(message: &[u8]) -> Result<Entry<'_>, MalformedMessage> {
    let mut entry = Entry { key: &[], value: &[] };
    let mut fields = MessageFields::new(message);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, FieldValue::Bytes(key)) => entry.key = key,
            (2, FieldValue::Bytes(value)) => entry.value = value,
            (1..=2, _wrong_type) => return Err(MalformedMessage),
            (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
        }
    }
    Ok(entry)
}

/// Writes a number field; 0 is omitted.
#[inline]
pub fn number(frame: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        key_and_varint(frame, field << 3 | VARINT, value);
    }
}

#[inline]
fn key_and_varint(frame: &mut Vec<u8>, key: u8, value: u64) {
    // Fast path: nearly every number and length takes one byte.
    if value < 0x80 {
        frame.extend_from_slice(&[key, value as u8]);
    } else {
        frame.push(key);
        encode_varint(value, frame);
    }
}

/// The length of a number field with a key of one byte.
#[inline]
pub fn number_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

/// Writes the key and length of a length-delimited field.
#[inline]
pub fn begin(frame: &mut Vec<u8>, field: u8, length: usize) {
    key_and_varint(frame, field << 3 | BYTES, length as u64);
}

/// The length of a length-delimited field with a key of one byte.
#[inline]
pub fn bytes_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// Writes a text field; the empty one is omitted.
pub fn text_field(out: &mut Vec<u8>, field: u8, text: &str) {
    if !text.is_empty() {
        begin(out, field, text.len());
        out.extend_from_slice(text.as_bytes());
    }
}

/// Writes a message field whose content `write` appends.
#[inline]
pub fn nested(out: &mut Vec<u8>, field: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[field << 3 | BYTES, 0]);
    let begin = out.len();
    write(out);
    match out.len() - begin {
        length @ ..0x80 => out[begin - 1] = length as u8,
        length => make_room_for_length(out, begin, length),
    }
}

/// Writes a length of several bytes, which needs more room than the one byte that was left for it before `begin`.
#[cold]
fn make_room_for_length(out: &mut Vec<u8>, begin: usize, length: usize) {
    let end = out.len();
    let length_bytes = encoded_len_varint(length as u64);
    out.resize(end + length_bytes - 1, 0);
    out.copy_within(begin..end, begin + length_bytes - 1);
    let mut room = &mut out[begin - 1..begin - 1 + length_bytes];
    encode_varint(length as u64, &mut room);
}

/// The prefix of a message of this length.
pub fn frame_prefix(length: usize) -> [u8; FRAME_PREFIX_BYTES] {
    // The reply to a message of at most 4 MiB is far below 4 GiB.
    let [a, b, c, d] = (length as u32).to_be_bytes();
    [0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_message_of_any_length_is_read_as_written() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let mut out = vec![7];
            nested(&mut out, 3, |out| out.extend(std::iter::repeat_n(5, length)));
            number(&mut out, 4, 9);
            let mut fields = MessageFields::new(&out[1..]);
            assert!(
                matches!(fields.next_field(), Ok(Some((3, FieldValue::Bytes(bytes)))) if bytes == vec![5; length])
            );
            assert!(matches!(fields.next_field(), Ok(Some((4, FieldValue::Varint(9))))));
            assert!(matches!(fields.next_field(), Ok(None)));
        }
    }
}
