//! Reads the messages of a streaming call.

use std::{
    mem,
    task::{Context, Poll, ready},
};

use h2::RecvStream;
use hyper::body::{Buf as _, Bytes};
use tollgate_wire::protobuf::FRAME_PREFIX_BYTES;

use crate::server::{
    message::{MessageError, first_message, missing_bytes, poll_part},
    request_bytes::{ConnectionBytes, Share, WaitingCallBytes},
};

/// The messages of a streaming call. Between two messages it keeps no buffer.
pub(super) struct MessageQueue {
    body: RecvStream,
    bytes: ConnectionBytes,
    // The part of a frame that was received and not taken.
    received: Bytes,
    // A message that is not complete.
    partial: Option<PartialMessage>,
}

/// A message of which more is to come.
struct PartialMessage {
    // Grows with the bytes received, never by the announced length. Alone in its memory, so that nothing else keeps it.
    framed: Vec<u8>,
    share: Share,
}

/// A complete message.
pub(super) struct CompleteMessage {
    pub(super) bytes: Bytes,
    /// The memory of a message that came in several frames, counted until this is dropped. A message in one frame shares
    /// the memory of what was read with it.
    pub(super) held: Option<WaitingCallBytes>,
}

impl CompleteMessage {
    /// Counts the bytes in `counted` until this is dropped, because a request of this size waits. Frees the message.
    pub(super) fn into_held(self, counted: &ConnectionBytes) -> WaitingCallBytes {
        let Self { bytes, held } = self;
        held.unwrap_or_else(|| counted.hold(bytes.len()))
    }
}

impl MessageQueue {
    /// The messages in `body`. Those that are not complete count in `bytes`.
    pub(super) fn new(body: RecvStream, bytes: ConnectionBytes) -> Self {
        Self { body, bytes, received: Bytes::new(), partial: None }
    }

    /// The next message; `None` at the end.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<CompleteMessage, MessageError>>> {
        loop {
            if let Some(message) = self.take().transpose() {
                return Poll::Ready(Some(message));
            }
            let share = self.partial.as_mut().map(|partial| &mut partial.share);
            match ready!(poll_part(&mut self.body, share, cx)) {
                Some(chunk) => self.received = chunk?,
                None if self.partial.is_none() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(MessageError::Truncated))),
            }
        }
    }

    /// Takes a complete message. If there is none, everything that was received is in `partial`.
    fn take(&mut self) -> Result<Option<CompleteMessage>, MessageError> {
        let Some(mut partial) = self.partial.take() else { return self.take_received() };
        while !self.received.is_empty() {
            let missing = missing_bytes(&partial.framed)?.min(self.received.len());
            partial.framed.extend_from_slice(&self.received[..missing]);
            partial.share.receive(missing);
            self.advance(missing);
            if missing_bytes(&partial.framed)? == 0 {
                let PartialMessage { framed, share } = partial;
                let (withheld, held) = share.complete();
                self.release_window(withheld);
                let bytes = Bytes::from(framed).split_off(FRAME_PREFIX_BYTES);
                return Ok(Some(CompleteMessage { bytes, held: Some(held) }));
            }
        }
        self.partial = Some(partial);
        Ok(None)
    }

    /// Takes a message that is complete in what was received. Otherwise a partial one begins.
    fn take_received(&mut self) -> Result<Option<CompleteMessage>, MessageError> {
        if self.received.is_empty() {
            return Ok(None);
        }
        if let Some(length) = first_message(&self.received)? {
            let bytes = self.received.slice(FRAME_PREFIX_BYTES..length);
            self.advance(length);
            self.release_window(length);
            return Ok(Some(CompleteMessage { bytes, held: None }));
        }
        let received = mem::take(&mut self.received);
        let mut share = self.bytes.share(0);
        share.receive(received.len());
        self.partial = Some(PartialMessage { framed: received.to_vec(), share });
        Ok(None)
    }

    fn advance(&mut self, bytes: usize) {
        self.received.advance(bytes);
        if self.received.is_empty() {
            // An empty rest keeps the memory of its frame.
            self.received = Bytes::new();
        }
    }

    fn release_window(&mut self, bytes: usize) {
        // Fails only if the stream is closed.
        let _ = self.body.flow_control().release_capacity(bytes);
    }
}
