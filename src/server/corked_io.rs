//! A socket wrapper that counts received bytes, bounds reads and delays small writes.
//!
//! While the socket accepts no more bytes, nothing is read from it either. So a client that does not read its replies
//! cannot make HTTP/2 queue more replies, or more frames that acknowledge resets and pings.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of the HTTP/2 client preface, in bytes.
pub(super) const PREFACE_BYTES: usize = 24;

/// Writes below this size are delayed while corked, in bytes.
const CORKED_BYTES_MAX: usize = 8 * 1024;

/// A handle that controls a [`CorkedIo`] and reads its state. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct IoHandle(Arc<IoState>);

#[derive(Debug, Default)]
struct IoState {
    // Counted up to the length of the preface only.
    bytes_received: AtomicUsize,
    has_received: AtomicBool,
    is_drained: AtomicBool,
    is_corked: AtomicBool,
    has_delayed_write: AtomicBool,
    // Bytes that may still be read; `usize::MAX` is no bound.
    read_budget: AtomicUsize,
    is_read_budget_spent: AtomicBool,
}

impl Default for IoHandle {
    fn default() -> Self {
        Self(Arc::new(IoState { read_budget: AtomicUsize::new(usize::MAX), ..IoState::default() }))
    }
}

impl IoHandle {
    /// Allows about `bytes` to be read until the next call. HTTP/2 reads as long as there is input, so without a bound
    /// one connection would block the others of its thread.
    pub(super) fn set_read_budget(&self, bytes: usize) {
        self.0.read_budget.store(bytes, Relaxed);
        self.0.is_read_budget_spent.store(false, Relaxed);
    }

    /// Whether the read budget stopped a read. In this case no waker is registered.
    pub(super) fn is_read_budget_spent(&self) -> bool {
        self.0.is_read_budget_spent.load(Relaxed)
    }

    /// Bytes received, counted up to the length of the preface only.
    pub(super) fn bytes_received(&self) -> usize {
        self.0.bytes_received.load(Relaxed)
    }

    /// Whether bytes were received since the last call of this function.
    pub(super) fn take_received(&self) -> bool {
        self.0.has_received.swap(false, Relaxed)
    }

    /// Delays small writes until [`IoHandle::uncork`], and does not read again once the socket was empty. Delayed reads
    /// and writes return `Pending` without registering a waker, so the task must uncork, and poll again if
    /// [`IoHandle::take_delayed_write`] says so.
    pub(super) fn cork(&self) {
        self.0.is_drained.store(false, Relaxed);
        self.0.is_corked.store(true, Relaxed);
    }

    /// Ends [`IoHandle::cork`].
    pub(super) fn uncork(&self) {
        self.0.is_corked.store(false, Relaxed);
    }

    /// Whether a write was delayed since the last call of this function.
    pub(super) fn take_delayed_write(&self) -> bool {
        let has_delayed = self.0.has_delayed_write.load(Relaxed);
        self.0.has_delayed_write.store(false, Relaxed);
        has_delayed
    }

    fn is_drained(&self) -> bool {
        self.0.is_corked.load(Relaxed) && self.0.is_drained.load(Relaxed)
    }

    fn delays_write(&self, bytes: usize) -> bool {
        let is_delayed = self.0.is_corked.load(Relaxed) && bytes < CORKED_BYTES_MAX;
        if is_delayed {
            self.0.has_delayed_write.store(true, Relaxed);
        }
        is_delayed
    }

    fn record_read(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.0.has_received.store(true, Relaxed);
        let read_budget = self.0.read_budget.load(Relaxed);
        if read_budget != usize::MAX {
            self.0.read_budget.store(read_budget.saturating_sub(bytes), Relaxed);
        }
        let before = self.bytes_received();
        if before < PREFACE_BYTES {
            self.0.bytes_received.store(before + bytes, Relaxed);
        }
    }
}

/// A socket controlled by an [`IoHandle`].
pub(super) struct CorkedIo<W> {
    io: W,
    io_handle: IoHandle,
    is_write_blocked: bool,
    // Waker of a read that was delayed because the socket accepts no more bytes.
    read_waker: Option<Waker>,
}

impl<W> CorkedIo<W> {
    pub(super) fn new(io: W, io_handle: IoHandle) -> Self {
        Self { io, io_handle, is_write_blocked: false, read_waker: None }
    }

    /// Records the result of a write and wakes a delayed read.
    fn record_write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_write_blocked = written.is_pending();
        if !self.is_write_blocked
            && let Some(read_waker) = self.read_waker.take()
        {
            read_waker.wake();
        }
        written
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for CorkedIo<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.io_handle.is_drained() {
            return Poll::Pending;
        }
        if this.is_write_blocked {
            this.read_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if this.io_handle.0.read_budget.load(Relaxed) == 0 {
            this.io_handle.0.is_read_budget_spent.store(true, Relaxed);
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        this.io_handle.0.is_drained.store(read.is_pending(), Relaxed);
        this.io_handle.record_read(buf.filled().len() - before);
        read
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for CorkedIo<W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.io_handle.delays_write(buf.len()) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.record_write(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.io_handle.delays_write(bufs.iter().map(|buf| buf.len()).sum()) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn try_read(io: &mut CorkedIo<tokio::io::DuplexStream>, byte: &mut [u8]) -> Poll<io::Result<()>> {
        Pin::new(io).poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(byte))
    }

    #[tokio::test]
    async fn corked_io_delays_small_writes_only() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let io_handle = IoHandle::default();
        let mut io = CorkedIo::new(ours, io_handle.clone());
        io_handle.cork();
        let mut write = |bytes: usize| {
            let io = Pin::new(&mut io);
            io.poll_write(&mut Context::from_waker(std::task::Waker::noop()), &vec![7; bytes])
        };
        assert!(write(CORKED_BYTES_MAX - 1).is_pending() && io_handle.take_delayed_write());
        assert!(matches!(write(CORKED_BYTES_MAX), Poll::Ready(Ok(CORKED_BYTES_MAX))));
        assert!(!io_handle.take_delayed_write());
        io_handle.uncork();
        assert!(matches!(write(1), Poll::Ready(Ok(1))));
        let mut got = vec![0; CORKED_BYTES_MAX + 1];
        theirs.read_exact(&mut got).await.unwrap();
    }

    #[tokio::test]
    async fn read_budget_bounds_reads() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let io_handle = IoHandle::default();
        let mut io = CorkedIo::new(ours, io_handle.clone());
        theirs.write_all(b"abc").await.unwrap();
        let mut byte = [0];
        io_handle.set_read_budget(1);
        assert!(try_read(&mut io, &mut byte).is_ready() && !io_handle.is_read_budget_spent());
        assert!(try_read(&mut io, &mut byte).is_pending() && io_handle.is_read_budget_spent());
        io_handle.set_read_budget(1);
        assert!(try_read(&mut io, &mut byte).is_ready() && byte == *b"b");
    }

    #[tokio::test]
    async fn blocked_socket_is_not_read_until_write_succeeds() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut io = CorkedIo::new(ours, IoHandle::default());
        theirs.write_all(b"x").await.unwrap();
        io.write_all(&[7; 8]).await.unwrap();
        let noop = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut io).poll_write(noop, &[7]).is_pending());
        let mut byte = [0];
        let mut read = try_read(&mut io, &mut byte);
        assert!(read.is_pending(), "the socket accepts no more bytes");
        theirs.read_exact(&mut [0; 8]).await.unwrap();
        io.write_all(&[7]).await.unwrap();
        read = try_read(&mut io, &mut byte);
        assert!(read.is_ready() && byte == *b"x");
    }

    #[tokio::test]
    async fn corked_io_does_not_read_again_after_empty_read() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let io_handle = IoHandle::default();
        let mut io = CorkedIo::new(ours, io_handle.clone());
        let mut space = [0; 64];
        let mut read = async |io: &mut CorkedIo<_>| {
            let mut buf = ReadBuf::new(&mut space);
            poll_fn(|cx| Poll::Ready(Pin::new(&mut *io).poll_read(cx, &mut buf).is_ready())).await
        };
        io_handle.cork();
        assert!(!read(&mut io).await);
        theirs.write_all(b"x").await.unwrap();
        assert!(!read(&mut io).await);
        io_handle.uncork();
        assert!(read(&mut io).await);
        assert_eq!(
            (io_handle.bytes_received(), io_handle.take_received(), io_handle.take_received()),
            (1, true, false)
        );
    }
}
