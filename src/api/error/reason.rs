//! What an error says in the status of an answer: its code and its reason. Each error says it itself.

use prost::Message as _;
use prost_types::Any;
use tollgate_limiter::limiter::{HoldError, LimiterError, NoCounter, RequestError};
use tollgate_wire::proto::google::rpc::{self, ErrorInfo};
use tonic::Code;

/// The domain of the reasons in the details of errors.
const DOMAIN: &str = "tollgate";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// An error of a request.
pub(in crate::api) trait Reason {
    /// The status code, and the reason in the details.
    fn reason(&self) -> (Code, &'static str);
}

/// A status with a reason.
pub(in crate::api) fn details(code: Code, reason: &str, message: String) -> rpc::Status {
    let info = ErrorInfo { reason: reason.to_owned(), domain: DOMAIN.to_owned(), ..ErrorInfo::default() };
    let info = Any { type_url: ERROR_INFO.to_owned(), value: info.encode_to_vec() };
    rpc::Status { code: code.into(), message, details: vec![info] }
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
