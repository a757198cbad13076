//! A wire that tells whether anything has come over it, and waits with what goes out until it is worth a write.
//!
//! While the socket takes no more bytes nothing is read from it either: a client that does not read its replies cannot
//! make HTTP/2 collect more of them, or of the frames that answer resets and pings.

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

/// How many bytes an HTTP/2 client sends before anything else.
pub(super) const PREFACE_BYTES: usize = 24;

/// The most bytes that are held back.
const HELD_MAX: usize = 8 * 1024;

/// What is known of a wire, and how it is to be used. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub(super) struct Line(Arc<Known>);

#[derive(Debug)]
struct Known {
    // Only the first few are counted.
    bytes: AtomicUsize,
    was_heard: AtomicBool,
    is_empty: AtomicBool,
    is_holding: AtomicBool,
    // What may still be read in this turn; without turns there is no bound.
    unread: AtomicUsize,
    has_stopped: AtomicBool,
}

impl Default for Line {
    fn default() -> Self {
        Self(Arc::new(Known {
            bytes: AtomicUsize::new(0),
            was_heard: AtomicBool::new(false),
            is_empty: AtomicBool::new(false),
            is_holding: AtomicBool::new(false),
            unread: AtomicUsize::new(usize::MAX),
            has_stopped: AtomicBool::new(false),
        }))
    }
}

impl Line {
    /// Begins a turn of a task, in which about `bytes` are read at most. HTTP/2 reads as long as there is something, so
    /// without a bound one connection would keep its thread from the others.
    pub(super) fn begin_turn(&self, bytes: usize) {
        self.0.unread.store(bytes, Relaxed);
        self.0.has_stopped.store(false, Relaxed);
    }

    /// Whether reading was stopped at the bound of the turn. No waker is registered then.
    pub(super) fn has_stopped(&self) -> bool {
        self.0.has_stopped.load(Relaxed)
    }

    /// How many bytes have come; only the first few are counted.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// Whether anything has come since this was last asked.
    pub(super) fn was_heard(&self) -> bool {
        self.0.was_heard.swap(false, Relaxed)
    }

    /// Until [`Line::let_go`], which has to be in the same turn of a task: holds back what is written, as long as it is
    /// little, and does not look again once there was nothing to read. Whoever has something to write is to try again
    /// then: nobody is woken.
    pub(super) fn hold(&self) {
        self.0.is_empty.store(false, Relaxed);
        self.0.is_holding.store(true, Relaxed);
    }

    /// Holds nothing back any more, and reads again.
    pub(super) fn let_go(&self) {
        self.0.is_holding.store(false, Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.0.is_holding.load(Relaxed) && self.0.is_empty.load(Relaxed)
    }

    fn holds_back(&self, bytes: usize) -> bool {
        self.0.is_holding.load(Relaxed) && bytes < HELD_MAX
    }

    fn note(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.0.was_heard.store(true, Relaxed);
        let unread = self.0.unread.load(Relaxed);
        if unread != usize::MAX {
            self.0.unread.store(unread.saturating_sub(bytes), Relaxed);
        }
        let before = self.bytes();
        if before < PREFACE_BYTES {
            self.0.bytes.store(before + bytes, Relaxed);
        }
    }
}

/// A wire that does as its [`Line`] says.
pub(super) struct Watched<W> {
    wire: W,
    line: Line,
    is_blocked: bool,
    // Of a read that was not tried because the socket took no more bytes.
    reader: Option<Waker>,
}

impl<W> Watched<W> {
    pub(super) fn new(wire: W, line: Line) -> Self {
        Self { wire, line, is_blocked: false, reader: None }
    }

    /// Notes what has become of a write.
    fn written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_blocked = written.is_pending();
        if !self.is_blocked
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        written
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Watched<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_empty() {
            return Poll::Pending;
        }
        if this.is_blocked {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if this.line.0.unread.load(Relaxed) == 0 {
            this.line.0.has_stopped.store(true, Relaxed);
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.wire).poll_read(cx, buf);
        this.line.0.is_empty.store(read.is_pending(), Relaxed);
        this.line.note(buf.filled().len() - before);
        read
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Watched<W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.line.holds_back(buf.len()) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.wire).poll_write(cx, buf);
        this.written(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.line.holds_back(bufs.iter().map(|buf| buf.len()).sum()) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.wire).poll_write_vectored(cx, bufs);
        this.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn try_read(wire: &mut Watched<tokio::io::DuplexStream>, byte: &mut [u8]) -> Poll<io::Result<()>> {
        Pin::new(wire).poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(byte))
    }

    #[tokio::test]
    async fn little_is_held_back_until_it_is_let_go_and_much_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let line = Line::default();
        let mut wire = Watched::new(ours, line.clone());
        line.hold();
        let mut write = |bytes: usize| {
            let wire = Pin::new(&mut wire);
            wire.poll_write(&mut Context::from_waker(std::task::Waker::noop()), &vec![7; bytes])
        };
        assert!(write(HELD_MAX - 1).is_pending());
        assert!(matches!(write(HELD_MAX), Poll::Ready(Ok(HELD_MAX))));
        line.let_go();
        assert!(matches!(write(1), Poll::Ready(Ok(1))));
        let mut got = vec![0; HELD_MAX + 1];
        theirs.read_exact(&mut got).await.unwrap();
    }

    #[tokio::test]
    async fn turn_reads_no_more_than_its_bound() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let line = Line::default();
        let mut wire = Watched::new(ours, line.clone());
        theirs.write_all(b"abc").await.unwrap();
        let mut byte = [0];
        line.begin_turn(1);
        assert!(try_read(&mut wire, &mut byte).is_ready() && !line.has_stopped());
        assert!(try_read(&mut wire, &mut byte).is_pending() && line.has_stopped());
        line.begin_turn(1);
        assert!(try_read(&mut wire, &mut byte).is_ready() && byte == *b"b");
    }

    #[tokio::test]
    async fn blocked_socket_is_not_read_until_it_is_written() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut wire = Watched::new(ours, Line::default());
        theirs.write_all(b"x").await.unwrap();
        wire.write_all(&[7; 8]).await.unwrap();
        let noop = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut wire).poll_write(noop, &[7]).is_pending());
        let mut byte = [0];
        let mut read = try_read(&mut wire, &mut byte);
        assert!(read.is_pending(), "the socket takes no more bytes");
        theirs.read_exact(&mut [0; 8]).await.unwrap();
        wire.write_all(&[7]).await.unwrap();
        read = try_read(&mut wire, &mut byte);
        assert!(read.is_ready() && byte == *b"x");
    }

    #[tokio::test]
    async fn an_empty_wire_is_looked_at_once_until_it_is_let_go() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let line = Line::default();
        let mut wire = Watched::new(ours, line.clone());
        let mut space = [0; 64];
        let mut read = async |wire: &mut Watched<_>| {
            let mut buf = ReadBuf::new(&mut space);
            poll_fn(|cx| Poll::Ready(Pin::new(&mut *wire).poll_read(cx, &mut buf).is_ready())).await
        };
        line.hold();
        assert!(!read(&mut wire).await);
        theirs.write_all(b"x").await.unwrap();
        assert!(!read(&mut wire).await);
        line.let_go();
        assert!(read(&mut wire).await);
        assert_eq!((line.bytes(), line.was_heard(), line.was_heard()), (1, true, false));
    }
}
