//! Who may reset counters on the ports of callers. Guesses of the token are slowed down for all callers together.

use std::{sync::Arc, time::Duration};

use axum::http::HeaderMap;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::warn;

use crate::api::{error::AccessError, token::Token};

/// The time that a wrong token keeps its permit to be compared.
const PAUSE: Duration = Duration::from_secs(1);
/// The most tokens that are compared at a time, so the most guesses in a [`PAUSE`].
const COMPARED_MAX: usize = 16;
/// The most calls that wait for such a permit or for the end of their pause.
const WAITING_MAX: usize = 256;

/// The admin token on the ports of callers.
#[derive(Clone, Debug)]
pub(crate) struct ResetAccess {
    token: Arc<Token>,
    compared: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl ResetAccess {
    /// Access for calls that present `token`.
    pub(crate) fn new(token: Token) -> Self {
        Self {
            token: Arc::new(token),
            compared: Arc::new(Semaphore::new(COMPARED_MAX)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Whether `headers` show the token. Returns after [`PAUSE`] if they show a wrong one.
    pub(super) async fn check(&self, headers: Option<&HeaderMap>) -> Result<(), AccessError> {
        let checked = match headers.filter(|headers| Token::is_presented(headers)) {
            Some(headers) => self.compare(headers).await,
            // No guess: nothing to compare and no file to read.
            None => Err(AccessError::Refused),
        };
        checked.inspect_err(|error| warn!(%error, "refused a call of an operator"))
    }

    async fn compare(&self, headers: &HeaderMap) -> Result<(), AccessError> {
        // The right token does not wait behind guesses. A short one must: its guesses are to be few.
        if self.token.is_last_long(headers) && self.token.check(headers).await.is_ok() {
            return Ok(());
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| AccessError::Busy)?;
        let permit = timeout(PAUSE, self.compared.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(AccessError::Busy) };
        let checked = self.token.check(headers).await;
        if let Err(AccessError::Refused) = checked {
            // A task of its own, because a caller that cancels its call must not get another guess by that.
            let pause = tokio::spawn(async move {
                sleep(PAUSE).await;
                drop(permit);
            });
            // It neither panics nor is it cancelled before the process ends.
            let _ = pause.await;
        }
        checked
    }
}
