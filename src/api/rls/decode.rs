//! Decodes a `RateLimitRequest` without copying: its texts borrow from the message.

use std::time::Duration;

use tollgate_counter::algorithm::Operation;
use tollgate_limiter::limiter::{self, RequestBounds};
use tollgate_wire::protobuf::{FieldValue, MalformedMessage, MessageFields};

use crate::api::{
    descriptors::{DecodedDescriptor, Descriptors},
    error::Error,
};

/// A decoded request.
#[derive(Debug, Default)]
pub struct RlsRequest<'m> {
    /// Hits of descriptors without hits of their own.
    pub hits_addend: u32,
    pub(super) descriptors: Descriptors<'m>,
}

/// Hits as they were sent.
#[derive(Clone, Debug)]
pub(super) struct SentHits {
    pub(super) of_request: u32,
    // Those of each descriptor.
    pub(super) each: Vec<Option<u64>>,
}

/// Decodes a request within `bounds`, with the same result as `prost`.
pub fn decode(message: &[u8], bounds: RequestBounds) -> Result<RlsRequest<'_>, Error> {
    let mut request = RlsRequest::default();
    request.read(message, bounds)?;
    Ok(request)
}

/// Reads the fields of a descriptor that only this protocol has.
fn read_hits(
    descriptor: &mut DecodedDescriptor,
    number: u32,
    value: FieldValue<'_>,
) -> Result<(), MalformedMessage> {
    match (number, value) {
        (3, FieldValue::Bytes(hits)) => merge_uint64(descriptor.hits.get_or_insert(0), hits)?,
        (4, FieldValue::Varint(is_negative)) => descriptor.is_negative_hits = is_negative != 0,
        (3..=4, _wrong_type) => return Err(MalformedMessage),
        (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
    }
    Ok(())
}

impl<'m> RlsRequest<'m> {
    /// Reads a message within `bounds` into an empty request. A request has 400 bytes, and is not moved here.
    #[inline]
    pub(super) fn read(&mut self, message: &'m [u8], bounds: RequestBounds) -> Result<(), Error> {
        let Self { hits_addend, descriptors } = self;
        descriptors.read(message, bounds, read_hits, |number, value| {
            match (number, value) {
                (3, FieldValue::Varint(hits)) => *hits_addend = hits as u32,
                (3, _wrong_type) => return Err(MalformedMessage.into()),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
            Ok(())
        })
    }

    /// The hits.
    pub(super) fn sent_hits(&self) -> SentHits {
        let each = self.descriptors.each.iter().map(|view| view.hits).collect();
        SentHits { of_request: self.hits_addend, each }
    }

    /// The request in the form of the limiter. `timeout` is the time that the caller waits.
    #[inline]
    pub fn limiter_request(
        &self,
        timeout: Option<Duration>,
    ) -> Result<limiter::Request<'_>, limiter::RequestError> {
        let operation = |view: &DecodedDescriptor| operation(view, self.hits_addend);
        self.descriptors.limiter_request(timeout, operation)
    }
}

/// Hits of the descriptor override hits of the request; 0 of them peek. 0 hits of the request mean 1.
fn operation(view: &DecodedDescriptor, of_request: u32) -> Operation {
    match view.hits.unwrap_or_else(|| of_request.max(1).into()) {
        0 => Operation::Peek,
        hits if view.is_negative_hits => Operation::Refund(hits),
        hits => Operation::Charge(hits),
    }
}

/// A `UInt64Value`.
fn merge_uint64(number: &mut u64, message: &[u8]) -> Result<(), MalformedMessage> {
    let mut fields = MessageFields::new(message);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, FieldValue::Varint(value)) => *number = value,
            (1, _wrong_type) => return Err(MalformedMessage),
            (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
        }
    }
    Ok(())
}
