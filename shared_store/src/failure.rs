//! Failures of the store: what an error means for a batch and its connection, and the last one.

use std::{io, sync::Mutex, time::Duration};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tollgate_counter::lock::lock;
use tracing::{info, warn};

/// Why a batch has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchFailure {
    /// The connection is of no more use.
    pub(super) is_broken: bool,
    /// The connection broke, so the batch is sent once more over the next one. If the store had charged it, it is
    /// charged twice.
    pub(super) may_resend: bool,
}

/// Why the last batch failed, if it did.
#[derive(Debug, Default)]
pub(super) struct LastFailure(Mutex<Option<String>>);

impl BatchFailure {
    /// What an error means.
    pub(super) fn from_error(error: &RedisError) -> Self {
        let (is_broken, may_resend) = match error.kind() {
            _ if error.is_timeout() => (true, false),
            ErrorKind::Io | ErrorKind::Parse => (true, true),
            // The server became a replica, or the connection's user may not do this any more.
            ErrorKind::Server(ServerErrorKind::ReadOnly) | ErrorKind::AuthenticationFailed => (true, false),
            _ => (false, false),
        };
        Self { is_broken, may_resend }
    }
}

impl LastFailure {
    /// Why the last batch failed, if it did.
    pub(super) fn reason(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    /// Notes why a batch failed.
    pub(super) fn note(&self, error: &RedisError) {
        if lock(&self.0).replace(error.to_string()).is_none() {
            warn!(%error, "the shared store does not decide");
        }
    }

    /// Notes that a batch has not failed.
    pub(super) fn end(&self) {
        if lock(&self.0).take().is_some() {
            info!("the shared store decides again");
        }
    }
}

/// Awaits an answer for `timeout`.
pub(super) async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let timed_out = |_elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into());
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(timed_out)
}

/// The error of an answer that the script does not give.
pub(super) fn unexpected() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "the script's answer has an unexpected form"))
}
