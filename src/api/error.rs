//! Why a request is not decided, as a status of gRPC with details, or as one of HTTP: each error has one code and one
//! reason.

use std::fmt;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use prost::Message as _;
use prost_types::Any;
use tollgate_counter::named;
use tollgate_limiter::limiter::{HoldError, LimiterError, NoCounter, RequestError, TooLarge};
use tollgate_store::HoldTtlOutOfBounds;
use tollgate_wire::{
    proto::google::rpc::{self, ErrorInfo},
    protobuf::MalformedMessage,
};
use tonic::Code;

/// The domain of the reasons in the details of errors.
const DOMAIN: &str = "tollgate";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
/// The reason of a request that cannot be read.
pub(super) const MALFORMED: &str = "MALFORMED";

/// Why a call, or one request of it, is not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The status code. Never `UNKNOWN`: Envoy lets a request with this status pass, whatever its failure mode.
    pub code: Code,
    /// The reason, as the details name it.
    pub reason: &'static str,
    pub(super) message: Box<str>,
    /// What the error is counted as; `None` if it is counted elsewhere, or is not of a request for a decision.
    pub(super) counted: Option<Unanswered>,
}

named! {
    /// What a request without a decision is counted as.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Unanswered {
        /// No rules are loaded.
        NoRules = "no_rules",
        /// The slot owner is not known yet, or counters are out of reach.
        Joining = "joining",
        /// Too many remote checks are open.
        Overloaded = "overloaded",
        /// The owner of a reservation could not be reached.
        OwnerUnreachable = "owner_unreachable",
        /// The request is invalid.
        Invalid = "invalid",
        /// An operator's call is without the right admin token.
        WrongToken = "wrong_token",
    }
}

/// Why a call over HTTP has no reply.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct HttpError {
    /// The status of the response.
    pub(super) status: StatusCode,
    /// The error.
    pub(super) error: Error,
}

/// Why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The caller has not presented the token.
    #[error("this needs `authorization: Bearer TOKEN`, with the token of admin.token_file")]
    Refused,
    /// No token is set, so that none can be presented.
    #[error("this needs admin.token_file, which is not set")]
    NoToken,
    /// Too many callers try tokens.
    #[error("too many tokens are tried; try again later")]
    Busy,
    /// The token file cannot be used. The file is named in the log only.
    #[error("admin.token_file cannot be used; see the log")]
    Unusable,
}

impl Error {
    /// An error that is not counted as an unanswered request.
    pub(crate) fn new(code: Code, reason: &'static str, message: impl Into<Box<str>>) -> Self {
        Self { code, reason, message: message.into(), counted: None }
    }

    /// The error of an invalid request.
    pub(super) fn invalid(reason: &'static str, message: impl Into<Box<str>>) -> Self {
        Self { counted: Some(Unanswered::Invalid), ..Self::new(Code::InvalidArgument, reason, message) }
    }

    /// The error of a call without requests.
    pub(super) fn no_requests() -> Self {
        Self::invalid("NO_REQUESTS", "the call has no requests")
    }

    /// The error in the part of a call at `place`, as in `requests[3]`.
    pub(super) fn at(self, place: impl fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message).into(), ..self }
    }

    /// The error of a message: with `text` if the message cannot be read.
    pub(super) fn with_malformed_text(text: &'static str) -> impl Fn(Self) -> Self {
        move |error| if error.reason == MALFORMED { Self { message: text.into(), ..error } } else { error }
    }

    /// Whether the request itself is invalid, so that a retry is useless.
    pub fn is_caller_error(&self) -> bool {
        match self.code {
            Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Internal => false,
            _the_callers => true,
        }
    }

    /// Whether the request was not looked at, so that it has charged nothing.
    pub(super) fn has_charged_nothing(&self) -> bool {
        matches!(self.reason, "NO_RULES" | "JOINING")
    }

    /// The error with its reason, as it is sent.
    pub fn details(&self) -> rpc::Status {
        let info =
            ErrorInfo { reason: self.reason.to_owned(), domain: DOMAIN.to_owned(), ..ErrorInfo::default() };
        let info = Any { type_url: ERROR_INFO.to_owned(), value: info.encode_to_vec() };
        rpc::Status { code: self.code.into(), message: self.message.to_string(), details: vec![info] }
    }
}

impl From<Error> for HttpError {
    fn from(error: Error) -> Self {
        let status = match error.code {
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ if error.is_caller_error() => StatusCode::BAD_REQUEST,
            _the_servers => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, error }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, format!("{self}\n")).into_response()
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        let (code, reason, counted) = match error {
            AccessError::Refused => (Code::Unauthenticated, "WRONG_TOKEN", Some(Unanswered::WrongToken)),
            AccessError::NoToken => (Code::PermissionDenied, "NO_TOKEN_SET", None),
            AccessError::Busy => (Code::ResourceExhausted, "TOO_MANY_TOKENS", Some(Unanswered::WrongToken)),
            AccessError::Unusable => (Code::Unavailable, "TOKEN_UNUSABLE", None),
        };
        Self { counted, ..Self::new(code, reason, error.to_string()) }
    }
}

impl From<LimiterError> for Error {
    #[cold]
    fn from(error: LimiterError) -> Self {
        let (code, reason, counted) = match error {
            LimiterError::NoRules => (Code::Unavailable, "NO_RULES", Unanswered::NoRules),
            LimiterError::Joining => (Code::Unavailable, "JOINING", Unanswered::Joining),
            LimiterError::Remote => (Code::Unavailable, "OWNER_UNREACHABLE", Unanswered::Joining),
            LimiterError::NoStore => (Code::Unavailable, "STORE_UNREACHABLE", Unanswered::Joining),
            LimiterError::Overloaded => (Code::ResourceExhausted, "OVERLOADED", Unanswered::Overloaded),
        };
        Self { counted: Some(counted), ..Self::new(code, reason, error.to_string()) }
    }
}

impl From<RequestError> for Error {
    #[cold]
    fn from(error: RequestError) -> Self {
        let reason = match error {
            RequestError::EmptyDomain => "EMPTY_DOMAIN",
            RequestError::NoDescriptors => "NO_DESCRIPTORS",
            RequestError::SeveralDomains => "SEVERAL_DOMAINS",
            RequestError::Unit { .. } => "UNKNOWN_UNIT",
        };
        Self::invalid(reason, error.to_string())
    }
}

impl From<HoldError> for Error {
    #[cold]
    fn from(error: HoldError) -> Self {
        let message = error.to_string();
        match error {
            HoldError::Request(error) => error.into(),
            HoldError::Limiter(error) => error.into(),
            HoldError::Ttl(error) => error.into(),
            // A check with a `request_id` has a descriptor with 0 hits.
            HoldError::NotCharge { .. } => Self::invalid("NOT_A_CHARGE", message),
            // The store counts it.
            HoldError::Exhausted => Self::new(Code::ResourceExhausted, "TOO_MANY_RESERVATIONS", message),
            HoldError::OwnerUnreachable => Self {
                counted: Some(Unanswered::OwnerUnreachable),
                ..Self::new(Code::Unavailable, "OWNER_UNREACHABLE", message)
            },
        }
    }
}

impl From<NoCounter> for Error {
    fn from(error: NoCounter) -> Self {
        let (code, reason) = match error {
            NoCounter::NoRules => (Code::Unavailable, "NO_RULES"),
            NoCounter::Unreachable => (Code::Unavailable, "OWNER_UNREACHABLE"),
            NoCounter::NoStore => (Code::Unavailable, "STORE_UNREACHABLE"),
            NoCounter::NoDomain => (Code::NotFound, "UNKNOWN_DOMAIN"),
            NoCounter::NoRule => (Code::NotFound, "NO_RULE"),
            NoCounter::Unlimited => (Code::NotFound, "UNLIMITED"),
        };
        Self::new(code, reason, error.to_string())
    }
}

impl From<HoldTtlOutOfBounds> for Error {
    #[cold]
    fn from(error: HoldTtlOutOfBounds) -> Self {
        Self::invalid("INVALID_TTL", error.to_string())
    }
}

impl From<MalformedMessage> for Error {
    #[cold]
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::invalid(MALFORMED, "the message is not valid")
    }
}

impl From<TooLarge> for Error {
    #[cold]
    fn from(error: TooLarge) -> Self {
        Self::invalid("TOO_LARGE", error.to_string())
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let details = error.details().encode_to_vec();
        Self::with_details(error.code, error.message, details.into())
    }
}
