//! What is read from a server, bounded by what was requested: the parser of the client keeps a reply in memory whatever
//! its length.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate_remote::lock;

/// What a line of a reply costs in addition to its bytes: about the memory of the value that it may be.
const LINE_COST: usize = 64;

/// A stream that fails as soon as more is read than the budget allows.
pub(super) struct BoundedStream<S> {
    pub(super) stream: S,
    pub(super) budget: Arc<ReadBudget>,
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.budget.spend(&buf.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What may still be read.
#[derive(Debug)]
pub(super) struct ReadBudget {
    /// What may be read while no command waits for its reply.
    unasked: usize,
    state: Mutex<ReadBudgetState>,
}

#[derive(Debug)]
struct ReadBudgetState {
    left: usize,
    /// The commands that wait for their replies.
    waiting: usize,
}

/// A command that waits for its reply.
pub(super) struct Expected<'b>(&'b ReadBudget);

impl ReadBudget {
    pub(super) fn new(unasked: usize) -> Self {
        Self { unasked, state: Mutex::new(ReadBudgetState { left: unasked, waiting: 0 }) }
    }

    /// Allows a reply.
    pub(super) fn expect(&self, bytes: usize) -> Expected<'_> {
        let mut state = lock(&self.state);
        state.left = state.left.saturating_add(bytes);
        state.waiting += 1;
        Expected(self)
    }

    /// Allows as much as at first.
    pub(super) fn renew(&self) {
        lock(&self.state).left = self.unasked;
    }

    /// Spends what was read. An error if it is more than is left.
    fn spend(&self, read: &[u8]) -> io::Result<()> {
        let lines = read.iter().filter(|byte| **byte == b'\n').count();
        let mut state = lock(&self.state);
        match state.left.checked_sub(read.len() + lines * LINE_COST) {
            Some(left) => {
                state.left = left;
                Ok(())
            }
            None => {
                state.left = 0;
                // The client replaces an aborted connection, and fails the commands that wait.
                Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the server sent more than was asked for",
                ))
            }
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.waiting -= 1;
        if state.waiting == 0 {
            state.left = self.0.unasked;
        }
    }
}
