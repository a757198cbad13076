//! Decodes calls and their requests without copying.

use std::time::Duration;

use prost::Message as _;
use smallvec::SmallVec;
use tollgate_limiter::{
    algorithm::Operation,
    limiter::{self, CallSize, RequestBounds, TooLarge},
    store::{HoldId, HoldTerms, OnExpiry},
};

use crate::api::{
    call::Verb,
    descriptors::{Descriptor, DescriptorView, Descriptors},
    error::{CallError, Fault},
    proto::tollgate::v1::check_request::Mode,
    protobuf::{Fields, Malformed, Value, text},
};

/// The encoded requests of a call.
pub(super) struct Requests<'m> {
    pub(super) each: SmallVec<[&'m [u8]; 32]>,
    pub(super) mode: Mode,
}

/// A decoded request.
#[derive(Debug, Default)]
pub(super) struct Request<'m> {
    pub(super) domain: &'m str,
    pub(super) id: &'m str,
    // Empty unless the charge or the refund counts once.
    request_id: &'m str,
    hits: u64,
    descriptors: Descriptors<'m>,
}

impl<'m> Requests<'m> {
    /// Decodes a call within `bounds`. Its requests are decoded later, one by one.
    #[inline]
    pub(super) fn decode(verb: Verb, message: &'m [u8], bounds: RequestBounds) -> Result<Self, CallError> {
        let (mut size, is_large) = (CallSize::new(bounds), message.len() >= CallSize::BYTES_MIN);
        let (mut each, mut mode) = (SmallVec::new(), 0);
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(request)) => {
                    size.request()?;
                    if is_large {
                        count(&mut size, request)?;
                    }
                    each.push(request);
                }
                (2, Value::Varint(number)) if verb == Verb::Check => mode = number as i32,
                (1, _wrong_type) => return Err(CallError::Malformed),
                (2, _wrong_type) if verb == Verb::Check => return Err(CallError::Malformed),
                (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
            }
        }
        if each.is_empty() {
            return Err(CallError::NoRequests);
        }
        Ok(Self { each, mode: Mode::try_from(mode).map_err(|_| CallError::Mode(mode))? })
    }
}

/// Counts the descriptors and entries of a request. A request that is invalid by itself is left to [`Request::decode`].
fn count(size: &mut CallSize, request: &[u8]) -> Result<(), TooLarge> {
    count_parts(size, request).or_else(|error| if error.is_of_request() { Ok(()) } else { Err(error) })
}

fn count_parts(size: &mut CallSize, request: &[u8]) -> Result<(), TooLarge> {
    let mut fields = Fields::of(request);
    while let Ok(Some((number, value))) = fields.next() {
        let (2, Value::Bytes(descriptor)) = (number, value) else { continue };
        size.descriptor()?;
        let mut fields = Fields::of(descriptor);
        while let Ok(Some((number, value))) = fields.next() {
            if let (1, Value::Bytes(_)) = (number, value) {
                size.entry()?;
            }
        }
    }
    Ok(())
}

impl<'m> Request<'m> {
    /// Decodes a request within `bounds`.
    pub(super) fn decode(message: &'m [u8], bounds: RequestBounds) -> Result<Self, Fault> {
        let mut request = Self::default();
        request.read(message, bounds)?;
        Ok(request)
    }

    /// Decodes a message into this empty request: requests are too large to move.
    #[inline]
    pub(super) fn read(&mut self, message: &'m [u8], bounds: RequestBounds) -> Result<(), Fault> {
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(domain)) => self.domain = text(domain)?,
                (2, Value::Bytes(descriptor)) => self.descriptors.add(descriptor, bounds, read_hits)?,
                (3, Value::Varint(hits)) => self.hits = hits,
                (4, Value::Bytes(id)) => self.id = text(id)?,
                (5, Value::Bytes(id)) => self.request_id = text(id)?,
                (1..=5, _wrong_type) => return Err(Fault::Malformed),
                (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
            }
        }
        Ok(())
    }

    /// How it is charged or refunded once, remembered for at least `window`; `None` if it has no id for that.
    #[inline]
    pub(super) fn once(&self, verb: Verb, window: Duration) -> Result<Option<HoldTerms>, Fault> {
        if self.request_id.is_empty() {
            return Ok(None);
        }
        let id = match verb {
            Verb::Check => HoldId::for_request(self.request_id)?,
            Verb::Refund => HoldId::for_refund(self.request_id)?,
            Verb::Peek => return Err(Fault::MisplacedRequestId),
        };
        Ok(Some(HoldTerms::new(id, window, OnExpiry::Charge)?))
    }

    /// The same request, if it has no id for being charged once.
    pub(super) fn without_request_id(self) -> Result<Self, Fault> {
        if self.request_id.is_empty() { Ok(self) } else { Err(Fault::MisplacedRequestId) }
    }

    /// The number of its descriptors.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors.views().count()
    }

    /// The request in the form of the limiter, of a caller that waits for `timeout`.
    #[inline]
    pub(super) fn limiter_request(
        &self,
        verb: Verb,
        timeout: Option<Duration>,
    ) -> Result<limiter::Request<'_>, Fault> {
        let has_hits = || self.hits != 0 || self.descriptors.views().any(|view| view.hits.is_some());
        if verb == Verb::Peek && has_hits() {
            return Err(Fault::HitsOfPeek);
        }
        let operation = |view: &DescriptorView<'_, '_>| match (verb, view.hits.unwrap_or(self.hits.max(1))) {
            (Verb::Peek, _) | (Verb::Check | Verb::Refund, 0) => Operation::Peek,
            (Verb::Check, hits) => Operation::Charge(hits),
            (Verb::Refund, hits) => Operation::Refund(hits),
        };
        let request = self.descriptors.limiter_request(self.domain, timeout, operation)?;
        // The answer does not wait for the turn.
        Ok(request.with_any_turn())
    }
}

/// The domain and the descriptors of a call with one request.
#[derive(Default)]
pub(super) struct Named<'m> {
    pub(super) domain: &'m str,
    pub(super) descriptors: Descriptors<'m>,
}

impl<'m> Named<'m> {
    /// Decodes a call within `bounds`. `other` reads its other fields.
    pub(super) fn decode(
        message: &'m [u8],
        bounds: RequestBounds,
        mut other: impl FnMut(u32, Value<'m>) -> Result<(), CallError>,
    ) -> Result<Self, CallError> {
        let mut named = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(domain)) => named.domain = text(domain)?,
                (2, Value::Bytes(descriptor)) => named.descriptors.add(descriptor, bounds, read_hits)?,
                (1..=2, _wrong_type) => return Err(CallError::Malformed),
                (number, value) => other(number, value)?,
            }
        }
        Ok(named)
    }
}

/// A duration of zero or more.
pub(super) fn duration(message: &[u8]) -> Option<Duration> {
    prost_types::Duration::decode(message).ok()?.try_into().ok()
}

/// Reads the hits of a descriptor, and what happens to them at an expiry.
fn read_hits(descriptor: &mut Descriptor, number: u32, value: Value<'_>) -> Result<(), Malformed> {
    match (number, value) {
        (3, Value::Varint(hits)) => descriptor.hits = Some(hits),
        (4, Value::Varint(number)) => descriptor.on_expiry = Some(number as i32),
        (3..=4, _wrong_type) => return Err(Malformed),
        (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
    }
    Ok(())
}
