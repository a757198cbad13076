//! Why calls of operators are refused.

use tollgate_limiter::limiter::NoCounter;
use tonic::Code;

use crate::api::error::reason::Reason;

/// Why a call of an operator is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// The caller has not presented the admin token.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A descriptor with a limit or hits.
    #[error("descriptors[{0}]: this call takes neither limits nor hits")]
    LimitOrHits(usize),
    /// A key or a value in which a backslash begins no escape.
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
    /// A descriptor has no counter, or it cannot be reached.
    #[error("descriptors[{descriptor}]: {error}")]
    NoCounter {
        /// The index of the descriptor.
        descriptor: usize,
        /// Why.
        error: NoCounter,
    },
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

impl Reason for OperatorError {
    fn reason(&self) -> (Code, &'static str) {
        match self {
            Self::LimitOrHits(_) => (Code::InvalidArgument, "LIMIT_OR_HITS"),
            Self::NotEscaped(_) => (Code::InvalidArgument, "NOT_ESCAPED"),
            Self::PageToken => (Code::InvalidArgument, "PAGE_TOKEN"),
            Self::Access(error) => error.reason(),
            Self::NotListed(error) | Self::NoCounter { error, .. } => error.reason(),
        }
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
