//! A socket that remembers the first bytes of a connection, so that HTTP/2 can be dropped and begun again.
//!
//! The h2 crate takes 28 KiB of buffers for a connection. Before the first call, all that it knows is in the few bytes
//! that the client has sent. So a connection without a call drops HTTP/2 and keeps these bytes. When more arrive, HTTP/2
//! begins again and reads all of them; what it writes again is compared with what was sent, and is not sent again.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::corked_io::{CorkedIo, PREFACE_BYTES};

/// Maximum number of bytes that are remembered in each direction: the preface, SETTINGS, their acknowledgement and a few
/// more frames.
const REMEMBERED_BYTES_MAX: usize = 256;
/// A PING frame without its flags and payload.
const PING: [u8; 9] = [0, 0, 8, 6, 0, 0, 0, 0, 0];
const PING_FLAGS: usize = 4;
const PING_ACK: u8 = 1;
/// The payload of pings that are sent without HTTP/2.
const PING_PAYLOAD: [u8; 8] = *b"tollgate";

/// A socket of HTTP/2. The socket goes back to its [`Opening`] when HTTP/2 is dropped.
pub(super) struct ReplayIo<W> {
    // `None` only while it is dropped.
    io: Option<CorkedIo<W>>,
    // `None` once the bytes are no longer remembered.
    opening: Option<Opening<W>>,
}

/// The bytes of a connection before its first call, and its socket while there is no HTTP/2. Clones share the state.
pub(super) struct Opening<W>(Arc<Mutex<Exchange<W>>>);

struct Exchange<W> {
    received: Vec<u8>,
    sent: Vec<u8>,
    // What HTTP/2 has read and written of both since it began.
    read: usize,
    written: usize,
    is_flushed: bool,
    is_pong_expected: bool,
    socket: Option<CorkedIo<W>>,
}

/// What a silent client does.
pub(super) enum Arrival {
    /// It has sent bytes for HTTP/2.
    Bytes,
    /// It has closed the connection.
    Closed,
}

impl<W> Clone for Opening<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W> Opening<W> {
    /// The opening of a connection that has not exchanged bytes yet, and its socket for HTTP/2.
    pub(super) fn new(socket: CorkedIo<W>) -> (Self, ReplayIo<W>) {
        let opening = Self(Arc::new(Mutex::new(Exchange {
            received: Vec::new(),
            sent: Vec::new(),
            read: 0,
            written: 0,
            is_flushed: false,
            is_pong_expected: false,
            socket: None,
        })));
        (opening.clone(), ReplayIo { io: Some(socket), opening: Some(opening) })
    }

    /// The socket for HTTP/2, which reads the bytes so far again. `None` if HTTP/2 has it.
    pub(super) fn replay(&self) -> Option<ReplayIo<W>> {
        let mut exchange = self.exchange();
        (exchange.read, exchange.written) = (0, 0);
        let io = Some(exchange.socket.take()?);
        drop(exchange);
        Some(ReplayIo { io, opening: Some(self.clone()) })
    }

    /// Whether HTTP/2 can be dropped: it has read and written all bytes, and would write the same again.
    pub(super) fn is_at_rest(&self) -> bool {
        let exchange = self.exchange();
        exchange.is_flushed
            && exchange.read == exchange.received.len()
            && exchange.written == exchange.sent.len()
            && is_without_streams(&exchange.received)
    }

    /// Whether the bytes are more than are worth remembering.
    pub(super) fn is_too_long(&self) -> bool {
        let exchange = self.exchange();
        exchange.received.len().max(exchange.sent.len()) > REMEMBERED_BYTES_MAX
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection has given the bytes up.
    fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Opening<W> {
    /// Waits for bytes while there is no HTTP/2, and remembers them. The reply to a ping is not among them.
    pub(super) fn poll_arrival(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arrival>> {
        let mut exchange = self.exchange();
        let Exchange { received, socket: Some(socket), is_pong_expected, .. } = &mut *exchange else {
            return Poll::Pending;
        };
        let mut bytes = [0; REMEMBERED_BYTES_MAX];
        loop {
            let mut buf = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut buf))?;
            let read = buf.filled();
            if read.is_empty() {
                return Poll::Ready(Ok(Arrival::Closed));
            }
            let pong = ping_frame(PING_ACK);
            let rest = read.strip_prefix(&pong).filter(|_| *is_pong_expected);
            *is_pong_expected &= rest.is_none();
            received.extend_from_slice(rest.unwrap_or(read));
            if rest.is_none_or(|rest| !rest.is_empty()) {
                return Poll::Ready(Ok(Arrival::Bytes));
            }
        }
    }

    /// Sends a ping while there is no HTTP/2. Returns `false` if the socket does not accept it.
    pub(super) fn ping(&self, cx: &mut Context<'_>) -> bool {
        let mut exchange = self.exchange();
        let Exchange { socket: Some(socket), is_pong_expected, .. } = &mut *exchange else { return false };
        *is_pong_expected = true;
        let ping = ping_frame(0);
        let written = Pin::new(&mut *socket).poll_write(cx, &ping);
        let is_sent = matches!(written, Poll::Ready(Ok(written)) if written == ping.len());
        is_sent && matches!(Pin::new(socket).poll_flush(cx), Poll::Ready(Ok(())))
    }
}

/// Whether bytes are a preface and whole frames of the connection. Frames of streams may be answered in another order
/// when they are read together.
fn is_without_streams(received: &[u8]) -> bool {
    let Some(mut frames) = received.get(PREFACE_BYTES..) else { return false };
    while let [a, b, c, _kind, _flags, 0, 0, 0, 0, rest @ ..] = frames {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(rest) = rest.get(length..) else { return false };
        frames = rest;
    }
    frames.is_empty()
}

fn ping_frame(flags: u8) -> [u8; PING.len() + PING_PAYLOAD.len()] {
    let mut frame = [0; PING.len() + PING_PAYLOAD.len()];
    let (head, payload) = frame.split_at_mut(PING.len());
    head.copy_from_slice(&PING);
    head[PING_FLAGS] = flags;
    payload.copy_from_slice(&PING_PAYLOAD);
    frame
}

impl<W> ReplayIo<W> {
    /// The socket, and the bytes so far if they are still remembered.
    fn parts(self: Pin<&mut Self>) -> io::Result<(Pin<&mut CorkedIo<W>>, Option<MutexGuard<'_, Exchange<W>>>)>
    where
        W: Unpin,
    {
        let Self { io, opening } = self.get_mut();
        if opening.as_ref().is_some_and(Opening::is_over) {
            *opening = None;
        }
        let io = io.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((Pin::new(io), opening.as_ref().map(Opening::exchange)))
    }
}

impl<W> Drop for ReplayIo<W> {
    fn drop(&mut self) {
        if let Some(opening) = &self.opening {
            opening.exchange().socket = self.io.take();
        }
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for ReplayIo<W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (io, exchange) = self.parts()?;
        let Some(mut exchange) = exchange else { return io.poll_read(cx, buf) };
        let Exchange { received, read, .. } = &mut *exchange;
        if *read == received.len() {
            let before = buf.filled().len();
            ready!(io.poll_read(cx, buf))?;
            received.extend_from_slice(&buf.filled()[before..]);
            *read = received.len();
        } else {
            let again = &received[*read..];
            let again = &again[..again.len().min(buf.remaining())];
            buf.put_slice(again);
            *read += again.len();
        }
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ReplayIo<W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let (io, exchange) = self.parts()?;
        let Some(mut exchange) = exchange else { return io.poll_write(cx, buf) };
        let Exchange { sent, written, is_flushed, .. } = &mut *exchange;
        if *written == sent.len() {
            *is_flushed = false;
            let accepted = ready!(io.poll_write(cx, buf))?;
            sent.extend_from_slice(&buf[..accepted]);
            *written = sent.len();
            return Poll::Ready(Ok(accepted));
        }
        let again = sent[*written..].iter().zip(buf).take_while(|(sent, again)| sent == again).count();
        if again == 0 && !buf.is_empty() {
            return Poll::Ready(Err(io::Error::other("HTTP/2 began in another way than before")));
        }
        *written += again;
        Poll::Ready(Ok(again))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (io, exchange) = self.parts()?;
        let flushed = io.poll_flush(cx);
        if let Some(mut exchange) = exchange {
            exchange.is_flushed = matches!(flushed, Poll::Ready(Ok(())));
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.parts()?.0.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (io, exchange) = self.as_mut().parts()?;
        if exchange.is_none() {
            return io.poll_write_vectored(cx, bufs);
        }
        drop(exchange);
        let first = bufs.iter().find(|buf| !buf.is_empty());
        self.poll_write(cx, first.map_or(&[], |buf| &**buf))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::server::corked_io::IoHandle;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// A client and an opening in which `SETTINGS` were exchanged after a preface.
    async fn exchanged() -> (DuplexStream, Opening<DuplexStream>) {
        let (ours, mut theirs) = duplex(1 << 16);
        let (opening, mut io) = Opening::new(CorkedIo::new(ours, IoHandle::default()));
        assert!(!opening.is_at_rest());
        theirs.write_all(&[b'P'; PREFACE_BYTES]).await.unwrap();
        theirs.write_all(&SETTINGS).await.unwrap();
        io.read_exact(&mut [0; PREFACE_BYTES + SETTINGS.len()]).await.unwrap();
        io.write_all(&SETTINGS).await.unwrap();
        assert!(!opening.is_at_rest(), "not flushed");
        io.flush().await.unwrap();
        assert!(opening.is_at_rest());
        theirs.read_exact(&mut [0; SETTINGS.len()]).await.unwrap();
        (theirs, opening)
    }

    fn poll_arrival(opening: &Opening<DuplexStream>) -> Poll<io::Result<Arrival>> {
        opening.poll_arrival(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn replay_reads_all_bytes_again_and_sends_none_again() {
        let (mut theirs, opening) = exchanged().await;
        assert!(poll_arrival(&opening).is_pending());
        theirs.write_all(b"more").await.unwrap();
        assert!(matches!(poll_arrival(&opening), Poll::Ready(Ok(Arrival::Bytes))));
        let mut io = opening.replay().unwrap();
        assert!(opening.replay().is_none(), "HTTP/2 has the socket");
        let mut read = [0; PREFACE_BYTES + SETTINGS.len() + 4];
        io.read_exact(&mut read).await.unwrap();
        assert!(read.starts_with(&[b'P'; PREFACE_BYTES]) && read.ends_with(b"more"));
        io.write_all(&SETTINGS).await.unwrap();
        io.write_all(b"answer").await.unwrap();
        let mut answer = [0; 6];
        theirs.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        drop(theirs);
        assert!(matches!(io.read(&mut [0]).await, Ok(0)));
    }

    #[tokio::test]
    async fn replay_that_writes_other_bytes_fails() {
        let (_theirs, opening) = exchanged().await;
        let mut io = opening.replay().unwrap();
        assert!(io.write_all(b"other").await.is_err());
    }

    #[tokio::test]
    async fn reply_to_ping_is_not_an_arrival() {
        let (mut theirs, opening) = exchanged().await;
        assert!(opening.ping(&mut Context::from_waker(Waker::noop())));
        let mut ping = ping_frame(PING_ACK);
        theirs.read_exact(&mut ping).await.unwrap();
        assert_eq!(ping, ping_frame(0));
        theirs.write_all(&ping_frame(PING_ACK)).await.unwrap();
        assert!(poll_arrival(&opening).is_pending());
        theirs.write_all(&ping_frame(PING_ACK)).await.unwrap();
        assert!(matches!(poll_arrival(&opening), Poll::Ready(Ok(Arrival::Bytes))), "a reply without a ping");
        drop(theirs);
        assert!(matches!(poll_arrival(&opening), Poll::Ready(Ok(Arrival::Closed))));
    }

    #[tokio::test]
    async fn opening_with_frames_of_streams_or_parts_of_frames_is_not_at_rest() {
        let of_stream = [0, 0, 0, 1, 0, 0, 0, 0, 1];
        for (more, is_at_rest) in [(&SETTINGS[..], true), (&SETTINGS[..5], false), (&of_stream, false)] {
            let (mut theirs, opening) = exchanged().await;
            let mut io = opening.replay().unwrap();
            theirs.write_all(more).await.unwrap();
            io.read_exact(&mut vec![0; PREFACE_BYTES + SETTINGS.len() + more.len()]).await.unwrap();
            io.write_all(&SETTINGS).await.unwrap();
            io.flush().await.unwrap();
            assert_eq!(opening.is_at_rest(), is_at_rest, "{more:?}");
        }
    }

    #[tokio::test]
    async fn bytes_are_forgotten_once_the_opening_is_dropped() {
        let (mut theirs, opening) = exchanged().await;
        let mut io = opening.replay().unwrap();
        io.read_exact(&mut [0; PREFACE_BYTES + SETTINGS.len()]).await.unwrap();
        io.write_all(&SETTINGS).await.unwrap();
        theirs.write_all(&[7; REMEMBERED_BYTES_MAX]).await.unwrap();
        io.read_exact(&mut [0; REMEMBERED_BYTES_MAX]).await.unwrap();
        assert!(opening.is_too_long());
        drop(opening);
        io.write_all(b"answer").await.unwrap();
        assert!(io.opening.is_none());
    }
}
