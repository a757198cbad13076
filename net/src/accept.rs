//! Accepts connections, for the listeners of the service and for links between replicas.

use std::{io, time::Duration};

use tokio::time::sleep;
use tracing::{debug, warn};

/// Pause after an accept error, for example while the process has too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts the connections of one listener. Consecutive errors are logged once.
#[derive(Debug)]
pub struct Acceptor {
    listener: &'static str,
    is_failing: bool,
}

impl Acceptor {
    /// An acceptor for the listener of this name.
    pub const fn new(listener: &'static str) -> Self {
        Self { listener, is_failing: false }
    }

    /// The next connection from `accept`. Calls `on_error` after each error of the listener. Cancel safe if `accept` is.
    pub async fn next<T, F>(&mut self, accept: impl Fn() -> F, on_error: impl Fn()) -> T
    where
        F: Future<Output = io::Result<T>>,
    {
        let listener = self.listener;
        loop {
            match accept().await {
                Ok(connection) => {
                    self.is_failing = false;
                    return connection;
                }
                Err(error) if is_connection_error(&error) => {
                    debug!(listener, %error, "connection closed before it was accepted")
                }
                Err(error) => {
                    on_error();
                    if !self.is_failing {
                        warn!(listener, %error, "cannot accept connections");
                    }
                    self.is_failing = true;
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn accept_errors_are_counted_and_aborted_connections_are_not() {
        let results = RefCell::new(vec![
            Ok(7),
            Err(io::ErrorKind::ConnectionAborted.into()),
            Err(io::Error::other("too many open files")),
        ]);
        let errors = Cell::new(0);
        let accept = || std::future::ready(results.borrow_mut().pop().unwrap());
        let mut acceptor = Acceptor::new("test");
        assert_eq!(acceptor.next(accept, || errors.set(errors.get() + 1)).await, 7);
        assert_eq!(errors.get(), 1);
    }
}
