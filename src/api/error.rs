//! Why a request is not decided, as a status of gRPC with details, or as one of HTTP: each error has one code and one
//! reason.

use std::time::Duration;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use prost::Message as _;
use prost_types::Any;
use tollgate_limiter::limiter::{HoldError, LimiterError, NoCounter, RequestError, TooLarge};
use tollgate_store::{HoldIdTooLong, HoldTtlOutOfBounds};
use tollgate_wire::{
    proto::google::rpc::{self, ErrorInfo},
    protobuf::MalformedMessage,
};
use tonic::Code;

/// The domain of the reasons in the details of errors.
const DOMAIN: &str = "tollgate";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// Why a call is not decided.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Error {
    /// The limiter cannot decide.
    #[error(transparent)]
    LimiterError(#[from] LimiterError),
    /// Not a message of the method.
    #[error("the message is not {0}")]
    Malformed(&'static str),
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
    /// The content of the request is invalid or beyond the bounds.
    #[error(transparent)]
    Fault(#[from] RequestFault),
    /// A fault in a request of a call whose requests are decided together.
    #[error("requests[{request}]: {fault}")]
    FaultOf {
        /// The index of the request.
        request: usize,
        /// The fault.
        fault: RequestFault,
    },
    /// A reservation is not made or ended.
    #[error(transparent)]
    Hold(HoldError),
    /// The caller of an operator's call is refused.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A descriptor of an operator's call with a limit or hits.
    #[error("descriptors[{0}]: this call takes neither limits nor hits")]
    LimitOrHits(usize),
    /// A key or a value of an operator's call in which a backslash begins no escape.
    #[error(
        "descriptors[{0}]: a key or a value is not escaped: a backslash is `\\\\`, a byte that is not UTF-8 is as `\\xE9`"
    )]
    NotEscaped(usize),
    /// Limits of their own cannot be listed.
    #[error("the list is not complete: {0}")]
    NotListed(NoCounter),
    /// A page token that no answer has had.
    #[error("page_token is not that of an earlier answer")]
    PageToken,
    /// A descriptor of an operator's call has no counter, or it cannot be reached. Nothing was changed.
    #[error("descriptors[{descriptor}]: {error}")]
    NoCounter {
        /// The index of the descriptor.
        descriptor: usize,
        /// Why.
        error: NoCounter,
    },
}

/// Why one request is refused for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// Not a request.
    #[error("the request is not valid")]
    Malformed,
    /// More requests, descriptors or entries than the bounds allow.
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

/// Why a call over HTTP has no reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// More descriptors or entries than the bounds allow, in one request of a call if it has several. The message was not
    /// built.
    #[error("{}{error}", request.map_or_else(String::new, |request| format!("requests[{request}]: ")))]
    TooLarge {
        /// The index of the request.
        request: Option<usize>,
        /// The bound.
        error: TooLarge,
    },
    /// Not a request of the method in JSON.
    #[error("{}{error}", field.as_ref().map_or_else(String::new, |field| format!("{field}: ")))]
    Malformed {
        /// The path of the value, as in `descriptors[0].entries[1].value`; `None` at the top.
        field: Option<String>,
        /// The cause, with line and column.
        error: serde_json::Error,
    },
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(usize),
    #[error("cannot read the body: {0}")]
    BodyBroken(axum::Error),
    #[error("timeout: the body did not arrive within {0:?}")]
    BodySlow(Duration),
    #[error("too many concurrent large bodies")]
    BodiesBusy,
    #[error("cannot parse the body: {0}")]
    ParserFailed(tokio::task::JoinError),
    #[error("too many concurrent calls")]
    CallsBusy,
    /// A panic, which is a bug and was logged.
    #[error("the call failed")]
    CallFailed,
    #[error(transparent)]
    Undecided(#[from] Error),
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
    /// The error of a message that is to be `what` and has this fault.
    pub(super) fn in_message(what: &'static str) -> impl Fn(RequestFault) -> Self {
        move |fault| match fault {
            RequestFault::Malformed => Self::Malformed(what),
            fault => Self::Fault(fault),
        }
    }

    /// Whether the request itself is invalid, so that a retry is useless.
    pub fn is_caller_error(self) -> bool {
        match self.code() {
            Code::Unavailable | Code::ResourceExhausted => false,
            _the_callers => true,
        }
    }

    /// Whether the request was not looked at, so that it has charged nothing.
    pub(super) fn has_charged_nothing(self) -> bool {
        matches!(self.reason().1, "NO_RULES" | "JOINING")
    }

    /// The reason, as errors name it.
    pub fn reason_name(self) -> &'static str {
        self.reason().1
    }

    /// The status code. Never `UNKNOWN`: Envoy lets a request with this status pass, whatever its failure mode.
    pub fn code(self) -> Code {
        self.reason().0
    }

    /// The error with its reason, as it is sent.
    pub fn details(self) -> rpc::Status {
        let (code, reason) = self.reason();
        details(code, reason, self.to_string())
    }
}

impl HttpError {
    pub(super) fn status(&self) -> StatusCode {
        self.status_and_reason().0
    }

    /// The error as `tollgate.v1` sends it.
    pub(super) fn details(&self) -> rpc::Status {
        let (code, reason) = self.reason();
        details(code, reason, self.to_string())
    }

    /// The status code, and the reason in the details.
    pub(super) fn reason(&self) -> (Code, &'static str) {
        self.status_and_reason().1
    }

    fn status_and_reason(&self) -> (StatusCode, (Code, &'static str)) {
        match self {
            Self::Malformed { .. } | Self::BodyBroken(_) => {
                (StatusCode::BAD_REQUEST, (Code::InvalidArgument, "MALFORMED"))
            }
            Self::TooLarge { .. } => (StatusCode::BAD_REQUEST, (Code::InvalidArgument, "TOO_LARGE")),
            Self::BodyTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, (Code::InvalidArgument, "TOO_LARGE")),
            Self::BodySlow(_) => (StatusCode::REQUEST_TIMEOUT, (Code::DeadlineExceeded, "BODY_TIMEOUT")),
            Self::BodiesBusy | Self::CallsBusy => {
                (StatusCode::SERVICE_UNAVAILABLE, (Code::ResourceExhausted, "OVERLOADED"))
            }
            Self::ParserFailed(_) | Self::CallFailed => {
                (StatusCode::INTERNAL_SERVER_ERROR, (Code::Internal, "INTERNAL"))
            }
            Self::Undecided(error) => (status_of(*error), (error.code(), error.reason_name())),
        }
    }

    /// The exceeded bound, if that is the reason.
    pub(super) fn too_large(&self) -> Option<TooLarge> {
        match self {
            Self::TooLarge { error, .. } => Some(*error),
            _other => None,
        }
    }
}

fn status_of(error: Error) -> StatusCode {
    match error.code() {
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        _ if error.is_caller_error() => StatusCode::BAD_REQUEST,
        _the_servers => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}

/// A status with a reason.
pub(super) fn details(code: Code, reason: &str, message: String) -> rpc::Status {
    let info = ErrorInfo { reason: reason.to_owned(), domain: DOMAIN.to_owned(), ..ErrorInfo::default() };
    let info = Any { type_url: ERROR_INFO.to_owned(), value: info.encode_to_vec() };
    rpc::Status { code: code.into(), message, details: vec![info] }
}

/// An error of a request.
pub(super) trait Reason {
    /// The status code, and the reason in the details.
    fn reason(&self) -> (Code, &'static str);
}

impl Reason for Error {
    fn reason(&self) -> (Code, &'static str) {
        let reason = match self {
            Self::LimiterError(error) => return error.reason(),
            Self::Fault(fault) | Self::FaultOf { fault, .. } => return fault.reason(),
            Self::Hold(error) => return error.reason(),
            Self::Access(error) => return error.reason(),
            Self::NotListed(error) | Self::NoCounter { error, .. } => return error.reason(),
            Self::Malformed(_) => "MALFORMED",
            Self::NoRequests => "NO_REQUESTS",
            Self::Mode(_) => "UNKNOWN_MODE",
            Self::Timeout => "INVALID_TIMEOUT",
            Self::Ttl => "INVALID_TTL",
            Self::OnExpiry(_) => "UNKNOWN_ON_EXPIRY",
            Self::NoId | Self::LongId(_) => "INVALID_ID",
            Self::LimitOrHits(_) => "LIMIT_OR_HITS",
            Self::NotEscaped(_) => "NOT_ESCAPED",
            Self::PageToken => "PAGE_TOKEN",
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

impl Reason for AccessError {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::Refused => (Code::Unauthenticated, "WRONG_TOKEN"),
            Self::NoToken => (Code::PermissionDenied, "NO_TOKEN_SET"),
            Self::Busy => (Code::ResourceExhausted, "TOO_MANY_TOKENS"),
            Self::Unusable => (Code::Unavailable, "TOKEN_UNUSABLE"),
        }
    }
}

impl Reason for LimiterError {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::NoRules => (Code::Unavailable, "NO_RULES"),
            Self::Joining => (Code::Unavailable, "JOINING"),
            Self::Remote => (Code::Unavailable, "OWNER_UNREACHABLE"),
            Self::NoStore => (Code::Unavailable, "STORE_UNREACHABLE"),
            Self::Overloaded => (Code::ResourceExhausted, "OVERLOADED"),
        }
    }
}

impl Reason for RequestError {
    fn reason(&self) -> (Code, &'static str) {
        let reason = match self {
            Self::EmptyDomain => "EMPTY_DOMAIN",
            Self::NoDescriptors => "NO_DESCRIPTORS",
            Self::SeveralDomains => "SEVERAL_DOMAINS",
            Self::Unit { .. } => "UNKNOWN_UNIT",
        };
        (Code::InvalidArgument, reason)
    }
}

impl Reason for HoldError {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::Request(error) => error.reason(),
            Self::Limiter(error) => error.reason(),
            Self::Ttl(_) => (Code::InvalidArgument, "INVALID_TTL"),
            // A check with a `request_id` has a descriptor with 0 hits.
            Self::NotCharge { .. } => (Code::InvalidArgument, "NOT_A_CHARGE"),
            Self::Exhausted => (Code::ResourceExhausted, "TOO_MANY_RESERVATIONS"),
            Self::OwnerUnreachable => (Code::Unavailable, "OWNER_UNREACHABLE"),
        }
    }
}

impl Reason for NoCounter {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::NoRules => (Code::Unavailable, "NO_RULES"),
            Self::Unreachable => (Code::Unavailable, "OWNER_UNREACHABLE"),
            Self::NoStore => (Code::Unavailable, "STORE_UNREACHABLE"),
            Self::NoDomain => (Code::NotFound, "UNKNOWN_DOMAIN"),
            Self::NoRule => (Code::NotFound, "NO_RULE"),
            Self::Unlimited => (Code::NotFound, "UNLIMITED"),
        }
    }
}

impl From<HoldError> for Error {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Limiter(error) => error.into(),
            HoldError::Request(error) => error.into(),
            error => Self::Hold(error),
        }
    }
}

impl From<MalformedMessage> for Error {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed("valid")
    }
}

impl From<MalformedMessage> for RequestFault {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}

impl From<TooLarge> for Error {
    fn from(error: TooLarge) -> Self {
        Self::Fault(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Fault(error.into())
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let details = error.details();
        Self::with_details(error.code(), details.message.clone(), details.encode_to_vec().into())
    }
}
