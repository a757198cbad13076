//! Closes connections whose client is gone.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use h2::{Ping, PingPong};
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

/// Sends keepalive pings. Completes when the client does not reply.
pub(super) struct KeepaliveTimer {
    keepalive: Keepalive,
    io_handle: IoHandle,
    // `None` only if `ping_pong` was already taken, which does not happen.
    pings: Option<PingPong>,
    next: Pin<Box<Sleep>>,
    is_ping_sent: bool,
}

impl KeepaliveTimer {
    pub(super) fn new(keepalive: Keepalive, io_handle: IoHandle, pings: Option<PingPong>) -> Self {
        Self { keepalive, io_handle, pings, next: Box::pin(sleep(keepalive.interval)), is_ping_sent: false }
    }

    fn send_ping(&mut self, cx: &mut Context<'_>) {
        if let Some(pings) = &mut self.pings {
            // The previous pong must be taken before the next ping. Connection errors are reported by the connection
            // itself.
            let _ = pings.poll_pong(cx);
            let _ = pings.send_ping(Ping::opaque());
        }
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
            this.is_ping_sent = is_silent;
            if is_silent {
                this.send_ping(cx);
            }
            this.next.as_mut().reset(Instant::now() + if is_silent { timeout } else { interval });
        }
    }
}
