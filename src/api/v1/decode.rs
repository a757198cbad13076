//! Decodes calls and their requests without copying.

use std::time::Duration;

use prost::Message as _;
use smallvec::SmallVec;
use tollgate_counter::algorithm::Operation;
use tollgate_limiter::limiter::{self, CallSize, HoldRequest, RequestBounds, TooLarge};
use tollgate_store::{HoldId, HoldIdTooLong, HoldTerms, OnExpiry};
use tollgate_wire::{
    proto::tollgate::v1::check_request::Mode,
    protobuf::{FieldValue, MalformedMessage, MessageFields, text},
};

use crate::api::{
    call::Verb,
    descriptors::{DecodedDescriptor, Descriptors},
    error::Error,
};

/// The text of the error of a message that is not a request of a call.
pub(super) const MALFORMED_REQUEST: &str = "the request is not valid";
const REQUEST_ID_TOO_LONG: &str = "request_id: too long; at most 63 bytes are allowed";
const HITS_OF_PEEK: &str = "a peek has no hits: leave them out of the request and of its descriptors";

/// The encoded requests of a call.
pub(super) struct EncodedRequests<'m> {
    pub(super) each: SmallVec<[&'m [u8]; 32]>,
    pub(super) mode: Mode,
}

/// A decoded request.
#[derive(Debug, Default)]
pub(super) struct DecodedRequest<'m> {
    pub(super) id: &'m str,
    // Empty unless the charge or the refund counts once.
    request_id: &'m str,
    hits: u64,
    descriptors: Descriptors<'m>,
}

impl<'m> EncodedRequests<'m> {
    /// Decodes a call within `bounds`. Its requests are decoded later, one by one.
    #[inline]
    pub(super) fn decode(verb: Verb, message: &'m [u8], bounds: RequestBounds) -> Result<Self, Error> {
        let mut size = CallSize::new(bounds);
        let is_large = message.len() >= CallSize::BYTES_MIN;
        let mut each = SmallVec::new();
        let mut mode = 0;
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(request)) => {
                    size.request()?;
                    if is_large {
                        count(&mut size, request)?;
                    }
                    each.push(request);
                }
                (2, FieldValue::Varint(number)) if verb == Verb::Check => mode = number as i32,
                (1, _wrong_type) => return Err(MalformedMessage.into()),
                (2, _wrong_type) if verb == Verb::Check => return Err(MalformedMessage.into()),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
        }
        if each.is_empty() {
            return Err(Error::no_requests());
        }
        Ok(Self { each, mode: Mode::try_from(mode).map_err(|_| unknown_mode(mode))? })
    }
}

/// Counts the descriptors and entries of a request. A request that is invalid by itself is left to
/// [`DecodedRequest::decode`].
fn count(size: &mut CallSize, request: &[u8]) -> Result<(), TooLarge> {
    count_parts(size, request).or_else(|error| if error.is_of_request() { Ok(()) } else { Err(error) })
}

fn count_parts(size: &mut CallSize, request: &[u8]) -> Result<(), TooLarge> {
    let mut fields = MessageFields::new(request);
    while let Ok(Some((number, value))) = fields.next_field() {
        let (2, FieldValue::Bytes(descriptor)) = (number, value) else { continue };
        size.descriptor()?;
        let mut fields = MessageFields::new(descriptor);
        while let Ok(Some((number, value))) = fields.next_field() {
            if let (1, FieldValue::Bytes(_)) = (number, value) {
                size.entry()?;
            }
        }
    }
    Ok(())
}

impl<'m> DecodedRequest<'m> {
    /// Decodes a request within `bounds`.
    pub(super) fn decode(message: &'m [u8], bounds: RequestBounds) -> Result<Self, Error> {
        let mut request = Self::default();
        request.read(message, bounds).map_err(Error::with_malformed_text(MALFORMED_REQUEST))?;
        Ok(request)
    }

    /// Decodes a message into this empty request: requests are too large to move.
    #[inline]
    pub(super) fn read(&mut self, message: &'m [u8], bounds: RequestBounds) -> Result<(), Error> {
        let Self { id, request_id, hits, descriptors } = self;
        descriptors.read(message, bounds, read_hits, |number, value| {
            match (number, value) {
                (3, FieldValue::Varint(number)) => *hits = number,
                (4, FieldValue::Bytes(bytes)) => *id = text(bytes)?,
                (5, FieldValue::Bytes(bytes)) => *request_id = text(bytes)?,
                (3..=5, _wrong_type) => return Err(MalformedMessage.into()),
                (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
            }
            Ok(())
        })
    }

    /// How the request is charged or refunded once, with its id retained for at least `window`; `None` without an id.
    #[inline]
    pub(super) fn once(&self, verb: Verb, window: Duration) -> Result<Option<HoldRequest>, Error> {
        if self.request_id.is_empty() {
            return Ok(None);
        }
        let terms = |id: Result<HoldId, HoldIdTooLong>| {
            let id = id.map_err(|_| Error::invalid("INVALID_ID", REQUEST_ID_TOO_LONG))?;
            Ok::<_, Error>(HoldTerms::new(id, window, OnExpiry::Charge)?)
        };
        Ok(Some(match verb {
            Verb::Check => HoldRequest::ChargeOnce(terms(HoldId::for_request(self.request_id))?),
            Verb::Refund => HoldRequest::RefundOnce(terms(HoldId::for_refund(self.request_id))?),
            Verb::Peek => return Err(misplaced_request_id()),
        }))
    }

    /// Returns the request, or an error if it has an id for being charged once.
    pub(super) fn without_request_id(self) -> Result<Self, Error> {
        if self.request_id.is_empty() { Ok(self) } else { Err(misplaced_request_id()) }
    }

    /// The number of the request's descriptors.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors.each.len()
    }

    /// The request in the form of the limiter, of a caller that waits for `timeout`.
    #[inline]
    pub(super) fn limiter_request(
        &self,
        verb: Verb,
        timeout: Option<Duration>,
    ) -> Result<limiter::Request<'_>, Error> {
        let has_hits = || self.hits != 0 || self.descriptors.each.iter().any(|view| view.hits.is_some());
        if verb == Verb::Peek && has_hits() {
            return Err(Error::invalid("HITS_OF_PEEK", HITS_OF_PEEK));
        }
        let operation = |view: &DecodedDescriptor| match (verb, view.hits.unwrap_or(self.hits.max(1))) {
            (Verb::Peek, _) | (Verb::Check | Verb::Refund, 0) => Operation::Peek,
            (Verb::Check, hits) => Operation::Charge(hits),
            (Verb::Refund, hits) => Operation::Refund(hits),
        };
        let request = self.descriptors.limiter_request(timeout, operation)?;
        // The answer does not wait for the turn.
        Ok(request.with_any_turn())
    }
}

/// Decodes a call with one request within `bounds`. `other` reads its fields behind the domain and the descriptors.
pub(super) fn decode_descriptors<'m>(
    message: &'m [u8],
    bounds: RequestBounds,
    other: impl FnMut(u32, FieldValue<'m>) -> Result<(), Error>,
) -> Result<Descriptors<'m>, Error> {
    let mut descriptors = Descriptors::default();
    descriptors.read(message, bounds, read_hits, other)?;
    Ok(descriptors)
}

fn unknown_mode(mode: i32) -> Error {
    Error::invalid("UNKNOWN_MODE", format!("mode: {mode} is not a mode; send EACH or TOGETHER"))
}

fn misplaced_request_id() -> Error {
    let why = "request_id: only a charge or a refund that is decided by itself has one; leave it out";
    Error::invalid("MISPLACED_REQUEST_ID", why)
}

/// A duration of zero or more.
pub(super) fn duration(message: &[u8]) -> Option<Duration> {
    prost_types::Duration::decode(message).ok()?.try_into().ok()
}

/// Reads the hits of a descriptor, and what happens to them at an expiry.
fn read_hits(
    descriptor: &mut DecodedDescriptor,
    number: u32,
    value: FieldValue<'_>,
) -> Result<(), MalformedMessage> {
    match (number, value) {
        (3, FieldValue::Varint(hits)) => descriptor.hits = Some(hits),
        (4, FieldValue::Varint(number)) => descriptor.on_expiry = Some(number as i32),
        (3..=4, _wrong_type) => return Err(MalformedMessage),
        (_unknown, FieldValue::Varint(_) | FieldValue::Bytes(_) | FieldValue::Other) => {}
    }
    Ok(())
}
