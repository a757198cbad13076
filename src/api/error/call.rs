//! Why a call or one of its requests is refused for its content.

use tollgate_limiter::limiter::{RequestError, TooLarge};
use tollgate_store::{HoldIdTooLong, HoldTtlOutOfBounds};
use tollgate_wire::protobuf::MalformedMessage;
use tonic::Code;

use crate::api::{descriptors::Undecodable, error::reason::Reason};

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
    /// A time until the expiry that is no duration.
    #[error("ttl: not a duration from 1 ms to 24 h")]
    Ttl,
    /// An unknown way to expire.
    #[error("on_expiry: {0} is unknown; send RELEASE or CHARGE")]
    OnExpiry(i32),
    /// A reservation to end without an id.
    #[error("reservation_id: missing; send that of the reservation")]
    NoId,
    /// An id that is too long.
    #[error("reservation_id: {0}")]
    LongId(#[from] HoldIdTooLong),
    /// A fault in a request of a call whose requests are decided together.
    #[error("requests[{request}]: {fault}")]
    Request {
        /// The index of the request.
        request: usize,
        /// The fault.
        fault: RequestFault,
    },
}

/// Why one request is refused for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// Not a request.
    #[error("the request is not valid")]
    Malformed,
    /// More descriptors or entries than the bounds allow.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A peek with hits.
    #[error("a peek has no hits: leave them out of the request and of its descriptors")]
    HitsOfPeek,
    /// An id for being charged once that is too long.
    #[error("request_id: too long; at most 63 bytes are allowed")]
    LongRequestId(#[from] HoldIdTooLong),
    /// The time for which such ids are retained.
    #[error(transparent)]
    RequestIdWindow(#[from] HoldTtlOutOfBounds),
    /// An id for being charged once, of a request that cannot have one.
    #[error("request_id: only a charge or a refund that is decided by itself has one; leave it out")]
    MisplacedRequestId,
    /// The content is invalid.
    #[error(transparent)]
    Content(#[from] RequestError),
}

impl Reason for CallError {
    fn reason(&self) -> (Code, &'static str) {
        let reason = match self {
            Self::Malformed => "MALFORMED",
            Self::TooLarge(_) => "TOO_LARGE",
            Self::NoRequests => "NO_REQUESTS",
            Self::Mode(_) => "UNKNOWN_MODE",
            Self::Timeout => "INVALID_TIMEOUT",
            Self::Ttl => "INVALID_TTL",
            Self::OnExpiry(_) => "UNKNOWN_ON_EXPIRY",
            Self::NoId | Self::LongId(_) => "INVALID_ID",
            Self::Request { fault, .. } => return fault.reason(),
        };
        (Code::InvalidArgument, reason)
    }
}

impl Reason for RequestFault {
    fn reason(&self) -> (Code, &'static str) {
        let reason = match self {
            Self::Malformed => "MALFORMED",
            Self::TooLarge(_) => "TOO_LARGE",
            Self::HitsOfPeek => "HITS_OF_PEEK",
            Self::LongRequestId(_) => "INVALID_ID",
            Self::RequestIdWindow(_) => "INVALID_TTL",
            Self::MisplacedRequestId => "MISPLACED_REQUEST_ID",
            Self::Content(error) => return error.reason(),
        };
        (Code::InvalidArgument, reason)
    }
}

impl From<MalformedMessage> for CallError {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}

impl From<MalformedMessage> for RequestFault {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}

impl From<Undecodable> for CallError {
    fn from(error: Undecodable) -> Self {
        match error {
            Undecodable::TooLarge(error) => Self::TooLarge(error),
            Undecodable::Malformed => Self::Malformed,
        }
    }
}

impl From<Undecodable> for RequestFault {
    fn from(error: Undecodable) -> Self {
        match error {
            Undecodable::TooLarge(error) => Self::TooLarge(error),
            Undecodable::Malformed => Self::Malformed,
        }
    }
}

/// Why a message of Envoy's service cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RlsDecodeError {
    /// More descriptors or entries than the bounds allow.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Not a `RateLimitRequest`.
    #[error("the message is not a valid RateLimitRequest")]
    Malformed,
}

impl Reason for RlsDecodeError {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::TooLarge(_) => (Code::InvalidArgument, "TOO_LARGE"),
            Self::Malformed => (Code::InvalidArgument, "MALFORMED"),
        }
    }
}

impl From<Undecodable> for RlsDecodeError {
    fn from(error: Undecodable) -> Self {
        match error {
            Undecodable::TooLarge(error) => Self::TooLarge(error),
            Undecodable::Malformed => Self::Malformed,
        }
    }
}

impl From<MalformedMessage> for RlsDecodeError {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}
