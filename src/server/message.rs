//! Reads the single message of a unary call.

use std::{
    cmp::Ordering,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use h2::RecvStream;
use hyper::body::Bytes;
use prost::bytes::BytesMut;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::server::{
    MESSAGE_BYTES_MAX,
    body::release_window,
    request_bytes::{ConnectionBytes, Share},
};

/// Time for the body of a request to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the gRPC message prefix: a flag and the message length.
const PREFIX_BYTES: usize = 5;

/// Why a body has no valid message.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("the request is larger than {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the request ends before the end of its message")]
    Truncated,
    #[error("the method takes one message, but the request has none")]
    Missing,
    #[error("the method takes one message, but the request has more")]
    Multiple,
    #[error("the message is compressed, but the call has no grpc-encoding")]
    Compressed,
    #[error("timeout: the request did not arrive within {BODY_TIMEOUT:?}")]
    Timeout,
    #[error("too many bytes of incomplete requests")]
    OverBudget,
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl MessageError {
    /// The status of the call; `None` if the stream is already closed.
    pub(super) fn status(&self) -> Option<Status> {
        let message = self.to_string();
        match self {
            Self::TooLarge | Self::OverBudget => Some(Status::resource_exhausted(message)),
            Self::Truncated => Some(Status::invalid_argument(message)),
            Self::Missing | Self::Multiple => Some(Status::unimplemented(message)),
            Self::Compressed => Some(Status::internal(message)),
            Self::Timeout => Some(Status::deadline_exceeded(message)),
            Self::Http2(_) => None,
        }
    }
}

/// A partially received message.
struct MessageReader<'a> {
    body: &'a mut RecvStream,
    share: &'a mut Share,
    // Prefix and message. Grows with the bytes received, never by the announced length.
    framed: Vec<u8>,
}

/// Reads `body` to its end and returns its single message with the prefix. `first` is the part that was already read.
pub(super) async fn read(
    body: &mut RecvStream,
    first: Option<Bytes>,
    share: &mut Share,
) -> Result<Bytes, MessageError> {
    let mut reader = MessageReader { body, share, framed: Vec::new() };
    if let Some(chunk) = first {
        reader.add(&chunk)?;
    }
    let mut deadline = pin!(sleep(BODY_TIMEOUT));
    poll_fn(|cx| reader.poll(deadline.as_mut(), cx)).await?;
    Ok(reader.framed.into())
}

impl MessageReader<'_> {
    fn poll(&mut self, deadline: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<Result<(), MessageError>> {
        loop {
            if self.share.poll_rejected(cx).is_ready() {
                return Poll::Ready(Err(MessageError::OverBudget));
            }
            if let Poll::Ready(window) = self.share.poll_window(cx) {
                // Fails only if the stream is closed.
                let _ = self.body.flow_control().release_capacity(window);
            }
            match self.body.poll_data(cx) {
                Poll::Ready(Some(chunk)) => self.add(&chunk?)?,
                Poll::Ready(None) => return Poll::Ready(self.end()),
                Poll::Pending => return deadline.poll(cx).map(|()| Err(MessageError::Timeout)),
            }
        }
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), MessageError> {
        self.share.receive(chunk.len());
        self.framed.extend_from_slice(chunk);
        match unframe(&self.framed) {
            // The rest may still arrive.
            Ok(_) | Err(MessageError::Truncated | MessageError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn end(&self) -> Result<(), MessageError> {
        unframe(&self.framed).map(drop)
    }
}

/// The messages of a streaming call.
pub(super) struct MessageQueue {
    body: RecvStream,
    bytes: ConnectionBytes,
    // What was received and not taken. Grows with the bytes received, never by the announced length.
    framed: BytesMut,
    // The accounting of a message that is not complete.
    share: Option<Share>,
}

impl MessageQueue {
    /// The messages in `body`. Those that are not complete count in `bytes`.
    pub(super) fn new(body: RecvStream, bytes: ConnectionBytes) -> Self {
        Self { body, bytes, framed: BytesMut::new(), share: None }
    }

    /// The next message; `None` at the end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, MessageError>>> {
        loop {
            if let Some(message) = self.take().transpose() {
                return Poll::Ready(Some(message));
            }
            if let Some(share) = &mut self.share {
                if share.poll_rejected(cx).is_ready() {
                    return Poll::Ready(Some(Err(MessageError::OverBudget)));
                }
                if let Poll::Ready(window) = share.poll_window(cx) {
                    // Fails only if the stream is closed.
                    let _ = self.body.flow_control().release_capacity(window);
                }
            }
            match ready!(self.body.poll_data(cx)) {
                Some(chunk) => self.receive(&chunk?),
                None if self.framed.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(MessageError::Truncated))),
            }
        }
    }

    /// Takes a complete message.
    fn take(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some((prefix, _)) = self.framed.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let length = message_length(prefix)?;
        require_uncompressed(prefix[0])?;
        if self.framed.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.share = None;
        let mut message = self.framed.split_to(PREFIX_BYTES + length).freeze();
        Ok(Some(message.split_off(PREFIX_BYTES)))
    }

    fn receive(&mut self, chunk: &Bytes) {
        self.framed.extend_from_slice(chunk);
        let is_whole = |framed: &[u8]| {
            let prefix = framed.first_chunk::<PREFIX_BYTES>();
            prefix.is_some_and(|prefix| {
                message_length(prefix).is_ok_and(|length| framed.len() >= PREFIX_BYTES + length)
            })
        };
        match &mut self.share {
            Some(share) => share.receive(chunk.len()),
            None if is_whole(&self.framed) => release_window(&mut self.body, chunk),
            None => self.share.insert(self.bytes.share(0)).receive(chunk.len()),
        }
    }
}

/// The length of a message by its prefix.
#[inline]
fn message_length([_, length @ ..]: &[u8; PREFIX_BYTES]) -> Result<usize, MessageError> {
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX { Err(MessageError::TooLarge) } else { Ok(length) }
}

/// The flag before the length of a message says whether it is compressed.
#[inline]
fn require_uncompressed(flag: u8) -> Result<(), MessageError> {
    if flag == 0 { Ok(()) } else { Err(MessageError::Compressed) }
}

/// The message in a complete body.
#[inline]
pub(super) fn unframe(framed: &[u8]) -> Result<&[u8], MessageError> {
    let Some((prefix, message)) = framed.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(if framed.is_empty() { MessageError::Missing } else { MessageError::Truncated });
    };
    match message_length(prefix)?.cmp(&message.len()) {
        Ordering::Less => Err(MessageError::Multiple),
        Ordering::Greater => Err(MessageError::Truncated),
        Ordering::Equal => require_uncompressed(prefix[0]).map(|()| message),
    }
}
