//! Reads the messages of a streaming call.

use std::task::{Context, Poll, ready};

use h2::RecvStream;
use hyper::body::Bytes;
use prost::bytes::BytesMut;

use crate::server::{
    body::release_window,
    message::{MessageError, PREFIX_BYTES, first_message, poll_part},
    request_bytes::{ConnectionBytes, Share},
};

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
            match ready!(poll_part(&mut self.body, self.share.as_mut(), cx)) {
                Some(chunk) => self.receive(&chunk?),
                None if self.framed.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(MessageError::Truncated))),
            }
        }
    }

    /// Takes a complete message.
    fn take(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some(length) = first_message(&self.framed)? else { return Ok(None) };
        if let Some(share) = self.share.take() {
            // Fails only if the stream is closed.
            let _ = self.body.flow_control().release_capacity(share.end());
        }
        let mut message = self.framed.split_to(length).freeze();
        Ok(Some(message.split_off(PREFIX_BYTES)))
    }

    fn receive(&mut self, chunk: &Bytes) {
        self.framed.extend_from_slice(chunk);
        match &mut self.share {
            Some(share) => share.receive(chunk.len()),
            None if matches!(first_message(&self.framed), Ok(Some(_))) => {
                release_window(&mut self.body, chunk)
            }
            None => self.share.insert(self.bytes.share(0)).receive(chunk.len()),
        }
    }
}
