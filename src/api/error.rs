//! Why a request is not decided, as a status of gRPC with details.

use prost::Message as _;
use prost_types::Any;
use tollgate_limiter::limiter::{HoldError, LimiterError, NoCounter, RequestError};
use tonic::Code;

use crate::api::{
    admin::AccessError,
    proto::google::rpc::{self, ErrorInfo},
    rls::DecodeError,
    v1::{CallError, Fault, ResetError},
};

/// The domain of the reasons in the details of errors.
const DOMAIN: &str = "tollgate";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// Why a request is not decided.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Error {
    /// The limiter cannot decide.
    #[error(transparent)]
    LimiterError(#[from] LimiterError),
    /// The message is invalid or beyond the bounds.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The content of the request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The content of a call of `tollgate.v1` is invalid.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The content of one request of such a call is invalid.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A reservation is not made or ended.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// Counters are not reset.
    #[error(transparent)]
    Reset(#[from] ResetError),
}

impl Error {
    /// Whether the request itself is invalid, so that a retry is useless.
    pub fn is_caller_error(self) -> bool {
        match self.code() {
            Code::Unavailable | Code::ResourceExhausted => false,
            _the_callers => true,
        }
    }

    /// Whether the counters are elsewhere, so that the request is decided by waiting for them.
    pub(super) fn is_elsewhere(self) -> bool {
        matches!(
            self,
            Self::LimiterError(LimiterError::Remote) | Self::Hold(HoldError::Limiter(LimiterError::Remote))
        )
    }

    /// The status code. Never `UNKNOWN`: Envoy lets a request with this status pass, whatever its failure mode.
    pub fn code(self) -> Code {
        match self {
            Self::Decode(_) | Self::Request(_) | Self::Call(_) | Self::Fault(_) => Code::InvalidArgument,
            Self::LimiterError(LimiterError::Overloaded) => Code::ResourceExhausted,
            Self::LimiterError(
                LimiterError::NoRules | LimiterError::Joining | LimiterError::Remote | LimiterError::NoStore,
            ) => Code::Unavailable,
            Self::Hold(error) => match error {
                HoldError::Request(error) => Self::Request(error).code(),
                HoldError::Limiter(error) => Self::LimiterError(error).code(),
                HoldError::Ttl(_) | HoldError::NotCharge { .. } => Code::InvalidArgument,
                HoldError::Exhausted => Code::ResourceExhausted,
                HoldError::OwnerUnreachable => Code::Unavailable,
            },
            Self::Reset(ResetError::LimitOrHits(_)) => Code::InvalidArgument,
            Self::Reset(ResetError::Access(error)) => match error {
                AccessError::Refused => Code::Unauthenticated,
                AccessError::NoToken => Code::PermissionDenied,
                AccessError::Unusable => Code::Unavailable,
            },
            Self::Reset(ResetError::NoCounter { error, .. }) => match error {
                NoCounter::NoRules | NoCounter::Unreachable | NoCounter::NoStore => Code::Unavailable,
                NoCounter::NoDomain | NoCounter::NoRule | NoCounter::Unlimited => Code::NotFound,
            },
        }
    }

    /// The error with its reason, as it is sent.
    pub fn details(self) -> rpc::Status {
        details(self.code(), self.reason(), self.to_string())
    }

    /// The reason in the details.
    fn reason(self) -> &'static str {
        match self {
            Self::LimiterError(error) => match error {
                LimiterError::NoRules => "NO_RULES",
                LimiterError::Joining => "JOINING",
                LimiterError::Remote => "OWNER_UNREACHABLE",
                LimiterError::NoStore => "STORE_UNREACHABLE",
                LimiterError::Overloaded => "OVERLOADED",
            },
            Self::Decode(DecodeError::Malformed)
            | Self::Call(CallError::Malformed | CallError::Request { fault: Fault::Malformed, .. })
            | Self::Fault(Fault::Malformed) => "MALFORMED",
            Self::Decode(DecodeError::TooLarge(_))
            | Self::Call(CallError::TooLarge(_) | CallError::Request { fault: Fault::TooLarge(_), .. })
            | Self::Fault(Fault::TooLarge(_)) => "TOO_LARGE",
            Self::Call(CallError::NoRequests) => "NO_REQUESTS",
            Self::Call(CallError::Mode(_)) => "UNKNOWN_MODE",
            Self::Call(CallError::Timeout) => "INVALID_TIMEOUT",
            Self::Call(CallError::Ttl) => "INVALID_TTL",
            Self::Call(CallError::OnExpiry(_)) => "UNKNOWN_ON_EXPIRY",
            Self::Call(CallError::NoId | CallError::LongId(_)) => "INVALID_ID",
            Self::Call(CallError::Request { fault: Fault::HitsOfPeek, .. })
            | Self::Fault(Fault::HitsOfPeek) => "HITS_OF_PEEK",
            Self::Call(CallError::Request { fault: Fault::LongRequestId(_), .. })
            | Self::Fault(Fault::LongRequestId(_)) => "INVALID_ID",
            Self::Call(CallError::Request { fault: Fault::RequestIdWindow(_), .. })
            | Self::Fault(Fault::RequestIdWindow(_)) => "INVALID_TTL",
            Self::Call(CallError::Request { fault: Fault::MisplacedRequestId, .. })
            | Self::Fault(Fault::MisplacedRequestId) => "MISPLACED_REQUEST_ID",
            Self::Request(error)
            | Self::Call(CallError::Request { fault: Fault::Content(error), .. })
            | Self::Fault(Fault::Content(error)) => match error {
                RequestError::EmptyDomain => "EMPTY_DOMAIN",
                RequestError::NoDescriptors => "NO_DESCRIPTORS",
                RequestError::SeveralDomains => "SEVERAL_DOMAINS",
                RequestError::Unit { .. } => "UNKNOWN_UNIT",
            },
            Self::Hold(error) => match error {
                HoldError::Request(error) => Self::Request(error).reason(),
                HoldError::Limiter(error) => Self::LimiterError(error).reason(),
                HoldError::Ttl(_) => "INVALID_TTL",
                // Calls of the API only charge.
                HoldError::NotCharge { .. } => "NOT_A_CHARGE",
                HoldError::Exhausted => "TOO_MANY_RESERVATIONS",
                HoldError::OwnerUnreachable => "OWNER_UNREACHABLE",
            },
            Self::Reset(error) => match error {
                ResetError::LimitOrHits(_) => "LIMIT_OR_HITS",
                ResetError::Access(AccessError::Refused) => "WRONG_TOKEN",
                ResetError::Access(AccessError::NoToken) => "NO_TOKEN_SET",
                ResetError::Access(AccessError::Unusable) => "TOKEN_UNUSABLE",
                ResetError::NoCounter { error, .. } => match error {
                    NoCounter::NoRules => "NO_RULES",
                    NoCounter::NoDomain => "UNKNOWN_DOMAIN",
                    NoCounter::NoRule => "NO_RULE",
                    NoCounter::Unlimited => "UNLIMITED",
                    NoCounter::Unreachable => "OWNER_UNREACHABLE",
                    NoCounter::NoStore => "STORE_UNREACHABLE",
                },
            },
        }
    }
}

/// A status with a reason.
pub(super) fn details(code: Code, reason: &str, message: String) -> rpc::Status {
    let info = ErrorInfo { reason: reason.to_owned(), domain: DOMAIN.to_owned(), ..ErrorInfo::default() };
    let info = Any { type_url: ERROR_INFO.to_owned(), value: info.encode_to_vec() };
    rpc::Status { code: code.into(), message, details: vec![info] }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let details = error.details();
        Self::with_details(error.code(), details.message.clone(), details.encode_to_vec().into())
    }
}
