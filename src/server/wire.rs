//! A wire that tells whether anything has come over it, and waits with what goes out until it is worth a write.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes an HTTP/2 client sends before anything else.
pub(super) const PREFACE_BYTES: usize = 24;

/// The most bytes that are held back.
const HELD_MAX: usize = 8 * 1024;

/// What is known of a wire, and how it is to be used. Cloning gives another handle of the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    // Only the first few are counted.
    bytes: AtomicUsize,
    was_heard: AtomicBool,
    is_empty: AtomicBool,
    is_holding: AtomicBool,
}

impl Line {
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
}

impl<W> Watched<W> {
    pub(super) fn new(wire: W, line: Line) -> Self {
        Self { wire, line }
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Watched<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_empty() {
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
        Pin::new(&mut this.wire).poll_write(cx, buf)
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
        Pin::new(&mut this.wire).poll_write_vectored(cx, bufs)
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
