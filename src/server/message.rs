//! Reads framed messages: a prefix with a flag and the length, then the message.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::RecvStream;
use hyper::body::Bytes;
use tokio::time::sleep;
use tollgate_wire::protobuf::FRAME_PREFIX_BYTES;
use tonic::Status;

use crate::server::{budgets::MESSAGE_BYTES_MAX, request_bytes::Share};

/// Time for the body of a request to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// The reason by which failed calls are counted.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge => "TOO_LARGE",
            Self::Truncated => "MALFORMED",
            Self::Missing | Self::Multiple => "NOT_ONE_MESSAGE",
            Self::Compressed => "COMPRESSED",
            Self::Timeout => "BODY_TIMEOUT",
            Self::OverBudget => "OVERLOADED",
            Self::Http2(_) => "CLOSED",
        }
    }

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

/// Reads `body` to its end and returns its single message with the prefix. `first` is the part that was already read.
pub(super) async fn read(
    body: &mut RecvStream,
    first: Option<Bytes>,
    share: &mut Share,
) -> Result<Bytes, MessageError> {
    // Grows with the bytes received, never by the announced length.
    let mut framed = Vec::new();
    let mut deadline = pin!(sleep(BODY_TIMEOUT));
    let mut part = first;
    loop {
        if let Some(part) = part {
            share.receive(part.len());
            framed.extend_from_slice(&part);
            match unframe(&framed) {
                // The rest may still arrive.
                Ok(_) | Err(MessageError::Truncated | MessageError::Missing) => {}
                Err(error) => return Err(error),
            }
        }
        let next = poll_fn(|cx| match poll_part(body, Some(share), cx) {
            Poll::Pending => deadline.as_mut().poll(cx).map(|()| Some(Err(MessageError::Timeout))),
            part @ Poll::Ready(_) => part,
        });
        part = next.await.transpose()?;
        if part.is_none() {
            return unframe(&framed).map(drop).map(|()| framed.into());
        }
    }
}

/// The next part of a body. `share` counts what was received of an incomplete message.
pub(super) fn poll_part(
    body: &mut RecvStream,
    share: Option<&mut Share>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, MessageError>>> {
    if let Some(share) = share {
        if share.poll_rejected(cx).is_ready() {
            return Poll::Ready(Some(Err(MessageError::OverBudget)));
        }
        if let Poll::Ready(window) = share.poll_window(cx) {
            // Fails only if the stream is closed.
            let _ = body.flow_control().release_capacity(window);
        }
    }
    body.poll_data(cx).map_err(MessageError::from)
}

/// The length of the first message with its prefix; `None` if it is not complete.
#[inline]
pub(super) fn first_message(framed: &[u8]) -> Result<Option<usize>, MessageError> {
    let length = message_length(framed)?;
    Ok(length.filter(|length| framed.len() >= *length))
}

/// The length of the first message with its prefix; `None` if its prefix is not complete.
#[inline]
fn message_length(framed: &[u8]) -> Result<Option<usize>, MessageError> {
    let Some([flag, length @ ..]) = framed.first_chunk::<FRAME_PREFIX_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLarge);
    }
    // The flag says whether the message is compressed.
    if *flag != 0 {
        return Err(MessageError::Compressed);
    }
    Ok(Some(FRAME_PREFIX_BYTES + length))
}

/// The bytes that the first message lacks, as far as they are known: those of its prefix first. 0: it is complete.
pub(super) fn missing_bytes(framed: &[u8]) -> Result<usize, MessageError> {
    let length = message_length(framed)?.unwrap_or(FRAME_PREFIX_BYTES);
    Ok(length.saturating_sub(framed.len()))
}

/// The message in a complete body.
#[inline]
pub(super) fn unframe(framed: &[u8]) -> Result<&[u8], MessageError> {
    match first_message(framed)? {
        None if framed.is_empty() => Err(MessageError::Missing),
        None => Err(MessageError::Truncated),
        Some(length) if length < framed.len() => Err(MessageError::Multiple),
        Some(_) => Ok(&framed[FRAME_PREFIX_BYTES..]),
    }
}
