//! The descriptors of a request of Envoy's protocol or of our own, which have the same entries and limits. They are
//! decoded without copying: texts borrow from the message.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_counter::{algorithm::Operation, descriptor::Entry};
use tollgate_limiter::limiter::{self, Override, RequestBounds, UnknownUnit};
use tollgate_rules::Unit;
use tollgate_wire::protobuf::{FieldValue, MalformedMessage, MessageFields, entry, text};

use crate::api::error::Error;

/// The domain of a request and its decoded descriptors.
#[derive(Debug, Default)]
pub(super) struct Descriptors<'m> {
    pub(super) domain: &'m str,
    pub(super) each: SmallVec<[DecodedDescriptor; 2]>,
    // Entries of all descriptors, in order.
    entries: SmallVec<[Entry<'m>; 8]>,
}

/// A descriptor; its entries are in [`Descriptors`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecodedDescriptor {
    entries_end: usize,
    pub(super) limit: Option<LimitOverride>,
    pub(super) hits: Option<u64>,
    pub(super) is_negative_hits: bool,
    // As sent; it may be unknown.
    pub(super) on_expiry: Option<i32>,
}

/// A limit override as sent; its unit may be unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LimitOverride {
    pub(super) requests_per_unit: u32,
    pub(super) unit: i32,
}

impl<'m> Descriptors<'m> {
    /// Reads a message within `bounds` while this is empty. `hits` reads the fields of a descriptor that the protocols
    /// encode differently, and `other` the fields of the message behind its domain and its descriptors.
    #[inline]
    pub(super) fn read(
        &mut self,
        message: &'m [u8],
        bounds: RequestBounds,
        hits: impl Fn(&mut DecodedDescriptor, u32, FieldValue<'m>) -> Result<(), MalformedMessage>,
        mut other: impl FnMut(u32, FieldValue<'m>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(domain)) => self.domain = text(domain)?,
                (2, FieldValue::Bytes(descriptor)) => self.add(descriptor, bounds, &hits)?,
                (1..=2, _wrong_type) => return Err(MalformedMessage.into()),
                (number, value) => other(number, value)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn add(
        &mut self,
        message: &'m [u8],
        bounds: RequestBounds,
        hits: impl Fn(&mut DecodedDescriptor, u32, FieldValue<'m>) -> Result<(), MalformedMessage>,
    ) -> Result<(), Error> {
        let index = self.each.len();
        let begin = self.entries.len();
        bounds.descriptor(index)?;
        let mut descriptor = DecodedDescriptor::default();
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(message)) => {
                    bounds.entry(index, self.entries.len() - begin)?;
                    self.entries.push(entry(message)?);
                }
                // A message field that is sent twice is merged.
                (2, FieldValue::Bytes(limit)) => descriptor.limit.get_or_insert_default().merge(limit)?,
                (1..=2, _wrong_type) => return Err(MalformedMessage.into()),
                (number, value) => hits(&mut descriptor, number, value)?,
            }
        }
        descriptor.entries_end = self.entries.len();
        self.each.push(descriptor);
        Ok(())
    }

    /// The descriptors with their entries.
    pub(super) fn views(&self) -> impl Iterator<Item = (&[Entry<'m>], &DecodedDescriptor)> {
        let mut begin = 0;
        self.each.iter().map(move |descriptor| {
            let entries = &self.entries[begin..descriptor.entries_end];
            begin = descriptor.entries_end;
            (entries, descriptor)
        })
    }

    /// The request in the form of the limiter. `timeout` is the time that the caller waits.
    #[inline]
    pub(super) fn limiter_request<'a>(
        &'a self,
        timeout: Option<Duration>,
        operation: impl Fn(&DecodedDescriptor) -> Operation,
    ) -> Result<limiter::Request<'a>, limiter::RequestError> {
        let descriptors = self.views().map(|(entries, descriptor)| limiter::Descriptor {
            entries,
            operation: operation(descriptor),
            limit: descriptor.limit.map(|LimitOverride { requests_per_unit, unit: number }| Override {
                requests_per_unit,
                unit: unit(number).ok_or(UnknownUnit(number)),
            }),
        });
        limiter::Request::new(self.domain, descriptors, timeout)
    }
}

impl LimitOverride {
    fn merge(&mut self, message: &[u8]) -> Result<(), MalformedMessage> {
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Varint(number)) => self.requests_per_unit = number as u32,
                (2, FieldValue::Varint(number)) => self.unit = number as i32,
                (1..=2, _wrong_type) => return Err(MalformedMessage),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
        }
        Ok(())
    }
}

/// The number of a unit, as all messages have it; 0 for none of the units.
#[inline]
pub(super) fn unit_number(unit: Option<Unit>) -> i32 {
    match unit {
        None => 0,
        Some(Unit::Second) => 1,
        Some(Unit::Minute) => 2,
        Some(Unit::Hour) => 3,
        Some(Unit::Day) => 4,
        Some(Unit::Month) => 5,
        Some(Unit::Year) => 6,
        Some(Unit::Week) => 7,
    }
}

/// The unit with a number; `None` if the number is that of no unit. The enumeration of requests has no week, but that of
/// replies has, and clients send it.
pub(super) fn unit(number: i32) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit_number(Some(*unit)) == number)
}
