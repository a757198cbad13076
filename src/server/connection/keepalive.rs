//! Closes connections whose client is gone.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use crate::server::corked_io::IoHandle;

/// Keepalive settings.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Keepalive {
    /// Time without received bytes before a ping is sent; up to twice as long in practice.
    pub(in crate::server) interval: Duration,
    /// Time to wait for the ping reply before the connection is closed.
    pub(in crate::server) timeout: Duration,
}

/// Says when a keepalive ping is due. Completes when the client does not reply.
pub(super) struct KeepaliveTimer {
    keepalive: Keepalive,
    io_handle: IoHandle,
    next: Pin<Box<Sleep>>,
    is_ping_sent: bool,
    is_ping_due: bool,
}

impl KeepaliveTimer {
    pub(super) fn new(keepalive: Keepalive, io_handle: IoHandle) -> Self {
        let next = Box::pin(sleep(keepalive.interval));
        Self { keepalive, io_handle, next, is_ping_sent: false, is_ping_due: false }
    }

    /// Whether a ping became due since the last call of this function.
    pub(super) fn take_ping_due(&mut self) -> bool {
        std::mem::take(&mut self.is_ping_due)
    }
}

/// Completes when the client has not replied to a ping in time.
impl Future for KeepaliveTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Keepalive { interval, timeout } = this.keepalive;
        loop {
            ready!(this.next.as_mut().poll(cx));
            let is_silent = !this.io_handle.take_received();
            if is_silent && this.is_ping_sent {
                return Poll::Ready(());
            }
            (this.is_ping_sent, this.is_ping_due) = (is_silent, is_silent);
            this.next.as_mut().reset(Instant::now() + if is_silent { timeout } else { interval });
        }
    }
}
