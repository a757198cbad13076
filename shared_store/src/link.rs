//! Keeps one connection to the store: opens it, replaces it when it breaks, and tells callers at once if it cannot.

use std::{sync::Arc, time::Duration};

use redis::RedisResult;
use tokio::sync::{Notify, watch};
use tollgate_counter::resilience::Backoff;
use tracing::{info, warn};

use crate::{
    connection::StoreConnection, failure::within, passwords::Passwords, settings::SharedStoreSettings,
};

/// The delays between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// One connection and its state.
#[derive(Clone)]
pub(super) struct Link {
    state: watch::Sender<LinkState>,
    broken: Arc<Notify>,
}

/// The state of a link.
#[derive(Clone)]
enum LinkState {
    /// The connection is being opened; callers may wait for it.
    Opening,
    /// The connection, and its number.
    Open(StoreConnection, u64),
    /// The last attempt to connect failed; callers do not wait.
    Closed(Arc<str>),
}

impl Link {
    pub(super) fn new() -> Self {
        Self { state: watch::Sender::new(LinkState::Opening), broken: Arc::default() }
    }

    /// The connection, after at most `wait` if it is being opened.
    pub(super) async fn connection(&self, wait: Duration) -> Option<(StoreConnection, u64)> {
        let mut state = self.state.subscribe();
        let settled = async {
            let settled = state.wait_for(|state| !matches!(state, LinkState::Opening)).await;
            match settled.as_deref() {
                Ok(LinkState::Open(connection, number)) => Some((connection.clone(), *number)),
                Ok(LinkState::Opening | LinkState::Closed(_)) | Err(_) => None,
            }
        };
        tokio::time::timeout(wait, settled).await.ok().flatten()
    }

    /// Whether the last attempt to connect failed.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), LinkState::Closed(_))
    }

    /// Why there is no connection; `None` if there is one.
    pub(super) fn problem(&self) -> Option<Arc<str>> {
        match &*self.state.borrow() {
            LinkState::Open(..) => None,
            LinkState::Opening => Some("connecting".into()),
            LinkState::Closed(reason) => Some(reason.clone()),
        }
    }

    /// Reports that the connection with this number is of no more use.
    pub(super) fn report_broken(&self, number: u64) {
        let replaced = self.state.send_if_modified(|state| match state {
            LinkState::Open(_, open) if *open == number => {
                *state = LinkState::Opening;
                true
            }
            LinkState::Open(..) | LinkState::Opening | LinkState::Closed(_) => false,
        });
        if replaced {
            self.broken.notify_one();
        }
    }

    /// Keeps the link open. `greet` tries a new connection before others use it.
    pub(super) async fn run<G, F>(
        self,
        settings: &SharedStoreSettings,
        mut passwords: watch::Receiver<Passwords>,
        greet: G,
    ) where
        G: Fn(StoreConnection) -> F,
        F: Future<Output = RedisResult<()>>,
    {
        let mut backoff = BACKOFF;
        let mut number = 0;
        loop {
            let login = passwords.borrow_and_update().clone();
            let opened = async {
                let connection = StoreConnection::open(settings, &login).await?;
                greet(connection.clone()).await?;
                Ok(connection)
            };
            // Opening takes several round trips.
            match within(settings.timeout * 4, opened).await {
                Ok(connection) => {
                    number += 1;
                    backoff.reset();
                    let before = self.state.send_replace(LinkState::Open(connection, number));
                    if matches!(before, LinkState::Closed(_)) {
                        info!("connected to the shared store");
                    }
                    tokio::select! {
                        () = self.broken.notified() => {}
                        changed = passwords.changed() => {
                            if changed.is_err() {
                                self.broken.notified().await;
                            }
                        }
                    }
                }
                Err(error) => {
                    self.close(&error.to_string());
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next_delay(rand::random())) => {}
                        Ok(()) = passwords.changed() => {}
                    }
                }
            }
        }
    }

    /// Keeps the connection that works if new passwords do not.
    fn close(&self, reason: &str) {
        self.state.send_if_modified(|state| match state {
            LinkState::Open(..) => {
                warn!(
                    reason,
                    "cannot connect to the shared store with the new password; kept the old connection"
                );
                false
            }
            LinkState::Closed(known) if **known == *reason => false,
            LinkState::Opening | LinkState::Closed(_) => {
                warn!(reason, "cannot connect to the shared store");
                *state = LinkState::Closed(reason.into());
                true
            }
        });
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link(..)")
    }
}
