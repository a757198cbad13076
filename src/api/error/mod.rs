//! Why a request is not decided, as a status of gRPC with details.

use prost::Message as _;
use tollgate_limiter::limiter::{HoldError, LimiterError, RequestError};
use tollgate_wire::proto::google::rpc;
use tonic::Code;

mod call;
mod operator;
mod reason;

pub use call::{CallError, RequestFault, RlsDecodeError};
pub use operator::{AccessError, OperatorError};
pub(in crate::api) use reason::details;

pub(in crate::api) use reason::Reason;

/// Why a request is not decided.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Error {
    /// The limiter cannot decide.
    #[error(transparent)]
    LimiterError(#[from] LimiterError),
    /// The message is invalid or beyond the bounds.
    #[error(transparent)]
    Decode(#[from] RlsDecodeError),
    /// The content of the request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The content of a call of `tollgate.v1` is invalid.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The content of one request of such a call is invalid.
    #[error(transparent)]
    Fault(#[from] RequestFault),
    /// A reservation is not made or ended.
    #[error(transparent)]
    Hold(HoldError),
    /// A call of an operator is refused.
    #[error(transparent)]
    Operator(#[from] OperatorError),
}

impl Error {
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

impl From<HoldError> for Error {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Limiter(error) => Self::LimiterError(error),
            HoldError::Request(error) => Self::Request(error),
            error => Self::Hold(error),
        }
    }
}

impl Reason for Error {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::LimiterError(error) => error.reason(),
            Self::Decode(error) => error.reason(),
            Self::Request(error) => error.reason(),
            Self::Call(error) => error.reason(),
            Self::Fault(error) => error.reason(),
            Self::Hold(error) => error.reason(),
            Self::Operator(error) => error.reason(),
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let details = error.details();
        Self::with_details(error.code(), details.message.clone(), details.encode_to_vec().into())
    }
}
