//! Failures of the store: what an error means for the parts of a batch and for the connection, and the last one.

use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tracing::{info, warn};

use crate::{remote::lock, shared_store::part::Unavailable};

/// Why a batch has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) unavailable: Unavailable,
    /// The connection is of no more use.
    pub(super) is_broken: bool,
    /// The connection broke, so the batch is sent once more over the next one. If the store had charged it, it is
    /// charged twice.
    pub(super) may_resend: bool,
}

/// Whether the last batch failed, and why.
#[derive(Debug, Default)]
pub(super) struct LastFailure {
    is_failing: AtomicBool,
    reason: Mutex<String>,
}

impl Failure {
    /// What an error means.
    pub(super) fn of(error: &RedisError) -> Self {
        let failure = |unavailable, is_broken, may_resend| Self { unavailable, is_broken, may_resend };
        if error.is_timeout() {
            return failure(Unavailable::Unreachable, true, false);
        }
        match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => failure(Unavailable::Unreachable, true, true),
            // The server became a replica, or the connection's user may not do this any more.
            ErrorKind::Server(ServerErrorKind::ReadOnly) | ErrorKind::AuthenticationFailed => {
                failure(Unavailable::Refused, true, false)
            }
            _ => failure(Unavailable::Refused, false, false),
        }
    }
}

impl LastFailure {
    /// Why the last batch failed, if it did.
    pub(super) fn reason(&self) -> Option<String> {
        self.is_failing.load(Relaxed).then(|| lock(&self.reason).clone())
    }

    /// Notes why a batch failed.
    pub(super) fn note(&self, error: &RedisError) {
        *lock(&self.reason) = error.to_string();
        if !self.is_failing.swap(true, Relaxed) {
            warn!(%error, "the shared store does not decide");
        }
    }

    /// Notes that a batch has not failed.
    pub(super) fn end(&self) {
        if self.is_failing.load(Relaxed) && self.is_failing.swap(false, Relaxed) {
            info!("the shared store decides again");
        }
    }
}

/// Awaits an answer for `timeout`.
pub(super) async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let answer = tokio::time::timeout(timeout, answer).await;
    answer.unwrap_or_else(|_elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into()))
}

/// The error of an answer that the script does not give.
pub(super) fn unexpected() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "the script's answer has an unexpected form"))
}
