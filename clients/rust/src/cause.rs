//! Why a call failed.

use std::error::Error;

use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::StatusExt;

/// What made a call fail.
pub(crate) enum Cause {
    /// The answer of the server.
    Server,
    /// The answer of a replica that decides no calls yet, so nothing was charged.
    NotReady,
    /// The deadline has passed: tonic keeps it too, and calls it a cancellation.
    Timeout,
    /// The connection was closed, and the call not sent.
    NotSent,
    /// The connection failed; the call may have been sent.
    Connection,
}

impl Cause {
    /// The cause of the failed call that ended with this status.
    pub(crate) fn from_status(status: &Status) -> Self {
        let Some(first) = status.source() else {
            return if is_not_ready(status) { Self::NotReady } else { Self::Server };
        };
        let mut causes =
            std::iter::successors(Some(first), |cause: &&(dyn Error + 'static)| (*cause).source());
        let known = causes.find_map(|cause| match cause {
            _ if cause.is::<TimeoutExpired>() => Some(Self::Timeout),
            _ if cause.is::<ConnectError>() => Some(Self::NotSent),
            _ => None,
        });
        known.unwrap_or(Self::Connection)
    }
}

fn is_not_ready(status: &Status) -> bool {
    let reason = status.get_details_error_info().map(|info| info.reason);
    status.code() == Code::Unavailable && matches!(reason.as_deref(), Some("NO_RULES" | "JOINING"))
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
