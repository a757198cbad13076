//! A wire that tells whether anything has come over it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes an HTTP/2 client sends before anything else.
pub(super) const PREFACE_BYTES: usize = 24;

/// How many bytes have come over a connection; only the first few are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicUsize>);

impl Begun {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// A wire that tells whether anything has come over it.
pub(super) struct Watched<W> {
    wire: W,
    begun: Begun,
}

impl<W> Watched<W> {
    pub(super) fn new(wire: W, begun: Begun) -> Self {
        Self { wire, begun }
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Watched<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.wire).poll_read(cx, buf);
        let bytes = this.begun.bytes();
        if bytes < PREFACE_BYTES {
            this.begun.0.store(bytes + buf.filled().len() - before, Relaxed);
        }
        read
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Watched<W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().wire).poll_write(cx, buf)
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
        Pin::new(&mut self.get_mut().wire).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}
