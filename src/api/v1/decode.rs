//! Decodes calls and their requests without copying.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::Operation,
    api::{
        call::Verb,
        descriptors::{Descriptor, DescriptorView, Descriptors, Undecodable},
        proto::tollgate::v1::check_request::Mode,
        protobuf::{Fields, Malformed, Value, text},
    },
    limiter::{self, Bounds, CallSize, RequestError, TooLarge},
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
    hits: u64,
    descriptors: Descriptors<'m>,
}

/// Why a call is refused for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not a message of the method.
    #[error("the message is not valid")]
    Malformed,
    /// More requests, or more in them, than the bounds allow.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// No requests.
    #[error("the call has no requests")]
    NoRequests,
    /// An unknown mode.
    #[error("mode: {0} is not a mode; send EACH or TOGETHER")]
    Mode(i32),
    /// A timeout that is no duration.
    #[error("timeout: not a duration of zero or more")]
    Timeout,
    /// A fault in a request of a call whose requests are decided together.
    #[error("requests[{request}]: {fault}")]
    Request {
        /// The index of the request.
        request: usize,
        /// The fault.
        fault: Fault,
    },
}

/// Why one request is refused for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not a request.
    #[error("the request is not valid")]
    Malformed,
    /// More descriptors or entries than the bounds allow.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A peek with hits.
    #[error("a peek has no hits: leave them out of the request and of its descriptors")]
    HitsOfPeek,
    /// The content is invalid.
    #[error(transparent)]
    Content(#[from] RequestError),
}

impl From<Malformed> for CallError {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Malformed> for Fault {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Undecodable> for Fault {
    fn from(error: Undecodable) -> Self {
        match error {
            Undecodable::TooLarge(error) => Self::TooLarge(error),
            Undecodable::Malformed => Self::Malformed,
        }
    }
}

impl<'m> Requests<'m> {
    /// Decodes a call within `bounds`. Its requests are decoded later, one by one.
    #[inline]
    pub(super) fn decode(verb: Verb, message: &'m [u8], bounds: Bounds) -> Result<Self, CallError> {
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

/// Counts the descriptors and entries of a request. A part that cannot be read is left to [`Request::decode`].
fn count(size: &mut CallSize, request: &[u8]) -> Result<(), TooLarge> {
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
    #[inline]
    pub(super) fn decode(message: &'m [u8], bounds: Bounds) -> Result<Self, Fault> {
        let mut request = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(domain)) => request.domain = text(domain)?,
                (2, Value::Bytes(descriptor)) => request.descriptors.add(descriptor, bounds, read_hits)?,
                (3, Value::Varint(hits)) => request.hits = hits,
                (4, Value::Bytes(id)) => request.id = text(id)?,
                (1..=4, _wrong_type) => return Err(Fault::Malformed),
                (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
            }
        }
        Ok(request)
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
        Ok(self.descriptors.limiter_request(self.domain, timeout, operation)?)
    }
}

/// Reads the hits of a descriptor.
pub(super) fn read_hits(descriptor: &mut Descriptor, number: u32, value: Value<'_>) -> Result<(), Malformed> {
    match (number, value) {
        (3, Value::Varint(hits)) => descriptor.hits = Some(hits),
        (3, _wrong_type) => return Err(Malformed),
        (_unknown, Value::Varint(_) | Value::Bytes(_) | Value::Other) => {}
    }
    Ok(())
}
