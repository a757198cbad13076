//! Decodes a `RateLimitRequest` without copying: its texts borrow from the message.

use std::{str, time::Duration};

use prost::encoding::{DecodeContext, WireType, skip_field};
use smallvec::SmallVec;

use crate::{
    algorithm::Operation,
    descriptor::Entry,
    limiter::{self, Bounds, Override, TooLarge, UnknownUnit},
    rules::Unit,
};

/// A decoded request.
#[derive(Debug, Default)]
pub struct Request<'m> {
    /// The domain.
    pub domain: &'m str,
    /// Hits of descriptors without hits of their own.
    pub hits_addend: u32,
    descriptors: SmallVec<[Descriptor; 2]>,
    // Entries of all descriptors, in order.
    entries: SmallVec<[Entry<'m>; 8]>,
}

/// A descriptor; its entries are in [`Request`].
#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    entries_end: usize,
    limit: Option<LimitOverride>,
    hits_addend: Option<u64>,
    is_negative_hits: bool,
}

/// A descriptor with its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorView<'r, 'm> {
    pub(super) entries: &'r [Entry<'m>],
    pub(super) limit: Option<LimitOverride>,
    pub(super) hits_addend: Option<u64>,
    pub(super) is_negative_hits: bool,
}

/// A limit override as sent; its unit may be unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LimitOverride {
    pub(super) requests_per_unit: u32,
    pub(super) unit: i32,
}

/// Why a message cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More descriptors or entries than the bounds allow.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Not a `RateLimitRequest`.
    #[error("the message is not a valid RateLimitRequest")]
    Malformed,
}

/// The value of a field.
enum Value<'m> {
    Varint(u64),
    Bytes(&'m [u8]),
    /// A wire type that no known field has.
    Other,
}

/// Iterates over the fields of a message.
struct Fields<'m> {
    rest: &'m [u8],
}

/// Decodes a request within `bounds`, with the same result as `prost`.
#[inline]
pub fn decode(message: &[u8], bounds: Bounds) -> Result<Request<'_>, DecodeError> {
    let mut request = Request::default();
    let mut fields = Fields { rest: message };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(domain)) => request.domain = text(domain)?,
            (2, Value::Bytes(descriptor)) => request.add(descriptor, bounds)?,
            (3, Value::Varint(hits)) => request.hits_addend = hits as u32,
            (1..=3, _wrong_type) => return Err(DecodeError::Malformed),
            (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
        }
    }
    Ok(request)
}

impl<'m> Request<'m> {
    #[inline]
    fn add(&mut self, message: &'m [u8], bounds: Bounds) -> Result<(), DecodeError> {
        let (index, begin) = (self.descriptors.len(), self.entries.len());
        bounds.descriptor(index)?;
        let mut descriptor = Descriptor::default();
        let mut fields = Fields { rest: message };
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(message)) => {
                    bounds.entry(index, self.entries.len() - begin)?;
                    self.entries.push(entry(message)?);
                }
                // A message field that is sent twice is merged.
                (2, Value::Bytes(limit)) => descriptor.limit.get_or_insert_default().merge(limit)?,
                (3, Value::Bytes(hits)) => merge_uint64(descriptor.hits_addend.get_or_insert(0), hits)?,
                (4, Value::Varint(is_negative)) => descriptor.is_negative_hits = is_negative != 0,
                (1..=4, _wrong_type) => return Err(DecodeError::Malformed),
                (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
            }
        }
        descriptor.entries_end = self.entries.len();
        self.descriptors.push(descriptor);
        Ok(())
    }

    /// The descriptors with their entries.
    pub(super) fn descriptor_views(&self) -> impl Iterator<Item = DescriptorView<'_, 'm>> {
        let mut begin = 0;
        self.descriptors.iter().map(move |descriptor| {
            let entries = &self.entries[begin..descriptor.entries_end];
            begin = descriptor.entries_end;
            let Descriptor { limit, hits_addend, is_negative_hits, .. } = *descriptor;
            DescriptorView { entries, limit, hits_addend, is_negative_hits }
        })
    }

    /// The request in the form of the limiter. `timeout` is the time that the caller waits.
    #[inline]
    pub fn limiter_request(
        &self,
        timeout: Option<Duration>,
    ) -> Result<limiter::Request<'_>, limiter::RequestError> {
        let descriptors = self.descriptor_views().map(|view| limiter::Descriptor {
            entries: view.entries,
            operation: view.operation(self.hits_addend),
            limit: view.limit.map(|LimitOverride { requests_per_unit, unit: number }| Override {
                requests_per_unit,
                unit: unit(number).ok_or(UnknownUnit(number)),
            }),
        });
        limiter::Request::new(self.domain, descriptors, timeout)
    }
}

impl DescriptorView<'_, '_> {
    /// Hits of the descriptor override hits of the request; 0 of them peek. 0 hits of the request mean 1.
    fn operation(&self, of_request: u32) -> Operation {
        match self.hits_addend.unwrap_or_else(|| of_request.max(1).into()) {
            0 => Operation::Peek,
            hits if self.is_negative_hits => Operation::Refund(hits),
            hits => Operation::Charge(hits),
        }
    }
}

impl LimitOverride {
    fn merge(&mut self, message: &[u8]) -> Result<(), DecodeError> {
        let mut fields = Fields { rest: message };
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Varint(number)) => self.requests_per_unit = number as u32,
                (2, Value::Varint(number)) => self.unit = number as i32,
                (1..=2, _wrong_type) => return Err(DecodeError::Malformed),
                (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
            }
        }
        Ok(())
    }
}

#[inline]
fn entry(message: &[u8]) -> Result<Entry<'_>, DecodeError> {
    let mut entry = Entry { key: "", value: "" };
    let mut fields = Fields { rest: message };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(key)) => entry.key = text(key)?,
            (2, Value::Bytes(value)) => entry.value = text(value)?,
            (1..=2, _wrong_type) => return Err(DecodeError::Malformed),
            (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
        }
    }
    Ok(entry)
}

/// A `UInt64Value`.
fn merge_uint64(number: &mut u64, message: &[u8]) -> Result<(), DecodeError> {
    let mut fields = Fields { rest: message };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Varint(value)) => *number = value,
            (1, _wrong_type) => return Err(DecodeError::Malformed),
            (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
        }
    }
    Ok(())
}

/// The unit of a limit override; `None` if the number is unknown.
fn unit(number: i32) -> Option<Unit> {
    match number {
        1 => Some(Unit::Second),
        2 => Some(Unit::Minute),
        3 => Some(Unit::Hour),
        4 => Some(Unit::Day),
        5 => Some(Unit::Month),
        6 => Some(Unit::Year),
        // The enumeration of requests has no week, but that of replies has, and clients send it.
        7 => Some(Unit::Week),
        _no_unit => None,
    }
}

#[inline]
fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    str::from_utf8(bytes).map_err(|_| DecodeError::Malformed)
}

impl<'m> Fields<'m> {
    /// The next field; `None` at the end of the message.
    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Value<'m>)>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.field().map(Some).ok_or(DecodeError::Malformed)
    }

    #[inline]
    fn field(&mut self) -> Option<(u32, Value<'m>)> {
        let key = u32::try_from(self.varint()?).ok()?;
        let number = Some(key >> 3).filter(|number| *number != 0)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            // Groups nest; `prost` bounds their depth.
            wire_type => {
                let wire_type = WireType::try_from(u64::from(wire_type)).ok()?;
                skip_field(wire_type, number, &mut self.rest, DecodeContext::default()).ok()?;
                Value::Other
            }
        };
        Some((number, value))
    }

    #[inline]
    fn bytes(&mut self, length: usize) -> Option<&'m [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        /// Maximum length of a varint, and maximum value of its last byte.
        const BYTES_MAX: usize = 10;
        const LAST_MAX: u8 = 1;
        // Fast path: nearly every number takes one byte.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(u64::from(*byte));
        }
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
