//! The calls of a connection that wait for something.

use std::{
    future::{Future, ready},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::stream::{FuturesUnordered, Stream as _, StreamExt as _};
use tokio::runtime::Handle;

use crate::server::connection::calls::replies::{Completed, log_error};

/// Maximum number of calls that are decided before their replies are written.
pub(in crate::server::connection) const CALLS_PER_POLL_MAX: usize = 128;

/// Calls of a connection that wait for something.
#[derive(Default)]
pub(in crate::server::connection) struct PendingCalls(
    FuturesUnordered<Pin<Box<dyn Future<Output = Completed> + Send>>>,
);

impl PendingCalls {
    pub(in crate::server::connection) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a call.
    // Not in another future, which would have twice the size. `inline(always)`: it is large to move.
    #[inline(always)]
    pub(super) fn push(&self, call: impl Future<Output = Completed> + Send + 'static) {
        self.0.push(Box::pin(call));
    }

    /// Polls pending calls that were woken. Returns whether any completed.
    pub(in crate::server::connection) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        for completed in 0..CALLS_PER_POLL_MAX {
            match Pin::new(&mut self.0).poll_next(cx) {
                Poll::Ready(Some(call)) => log_error(call),
                Poll::Ready(None) | Poll::Pending => return completed > 0,
            }
        }
        true
    }
}

/// A call that was forwarded is decided to its end, also if its connection closes: if it is refused, what it has charged
/// at other replicas is taken back. Calls that wait for their client end at once, because their streams have failed.
impl Drop for PendingCalls {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.0);
        // Without a runtime the process has stopped.
        if !calls.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(calls.for_each(|call| {
                log_error(call);
                ready(())
            }));
        }
    }
}
