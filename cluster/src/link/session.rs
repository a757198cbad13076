//! Numbered, acknowledged delivery between two processes across any number of connections. Pure, without I/O.
//!
//! Each sent piece has a number and is retained until the peer acknowledges it. A new connection resumes after the last
//! number received over any earlier one, so each batch arrives once and in order.

use std::{collections::VecDeque, sync::Arc};

use prost::bytes::{Bytes, BytesMut};

use crate::link::{
    assembly::{Assembly, AssemblyBudget},
    frame::{PIECE_BYTES_MAX, Piece},
};

/// The largest batch that is received, in bytes. A batch is larger than a piece only if it is one message with the data
/// of a slot. The 4,096 slots share `store.memory_limit`, so no slot comes near this.
const BATCH_BYTES_MAX: usize = 768 * 1024 * 1024;
/// No batch is taken while this many bytes are unacknowledged.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The least that a piece counts, so that the number of pieces is bounded too.
const PIECE_BYTES_MIN: usize = 64;
/// An acknowledgement is due once this fraction (1/8) of the unacknowledged maximum has been received.
const ACKNOWLEDGE_PART: usize = 8;

/// Maxima in bytes; tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionBounds {
    pub(super) piece: usize,
    pub(super) unacknowledged: usize,
    pub(super) batch: usize,
}

impl Default for SessionBounds {
    fn default() -> Self {
        Self { piece: PIECE_BYTES_MAX, unacknowledged: UNACKNOWLEDGED_BYTES_MAX, batch: BATCH_BYTES_MAX }
    }
}

/// A violation of the protocol by the peer, which ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SessionError {
    /// The peer acknowledges a piece that was not sent.
    #[error("the peer acknowledged a piece that was not sent")]
    Acknowledgement,
    /// A piece is missing.
    #[error("a piece is missing")]
    Gap,
    /// A batch exceeds the maximum size.
    #[error("a batch exceeds the maximum size")]
    TooLarge,
}

/// One side of a session.
#[derive(Debug, Default)]
pub(super) struct Session {
    bounds: SessionBounds,
    // Invariant: `unacknowledged` holds the pieces numbered from `acknowledged + 1`, without gaps.
    unacknowledged: VecDeque<UnacknowledgedPiece>,
    unacknowledged_bytes: usize,
    acknowledged: u64,
    // The last piece sent over the active connection, and over any connection.
    sent: u64,
    sent_max: u64,
    received: u64,
    // Bytes received since the last acknowledgement was sent.
    unreported_bytes: usize,
    partial_batch: BytesMut,
    // What `partial_batch` takes of the memory of all peers.
    assembly: Assembly,
}

#[derive(Debug)]
struct UnacknowledgedPiece {
    has_more: bool,
    payload: Bytes,
}

impl UnacknowledgedPiece {
    fn bytes(&self) -> usize {
        self.payload.len().max(PIECE_BYTES_MIN)
    }
}

impl Session {
    /// A session whose incomplete batches share this memory with those of other sessions.
    pub(super) fn new(budget: Arc<AssemblyBudget>) -> Self {
        Self { assembly: Assembly::new(budget), ..Self::default() }
    }

    /// A session with other maxima.
    #[cfg(test)]
    pub(super) fn with_bounds(bounds: SessionBounds, budget: Arc<AssemblyBudget>) -> Self {
        Self { bounds, ..Self::new(budget) }
    }

    /// The bytes that may be queued now; 0 while too many are unacknowledged.
    pub(super) fn capacity(&self) -> usize {
        self.bounds.unacknowledged.saturating_sub(self.unacknowledged_bytes)
    }

    /// Queues a batch of any size for sending, cut into pieces.
    pub(super) fn push(&mut self, mut batch: Bytes) {
        loop {
            let payload = batch.split_to(batch.len().min(self.bounds.piece));
            let piece = UnacknowledgedPiece { has_more: !batch.is_empty(), payload };
            let has_more = piece.has_more;
            self.unacknowledged_bytes += piece.bytes();
            self.unacknowledged.push_back(piece);
            if !has_more {
                return;
            }
        }
    }

    /// The next piece for the active connection.
    pub(super) fn next_piece(&mut self) -> Option<NextPiece> {
        let index = usize::try_from(self.sent - self.acknowledged).ok()?;
        let next = self.unacknowledged.get(index)?;
        self.sent += 1;
        let is_resent = self.sent <= self.sent_max;
        self.sent_max = self.sent_max.max(self.sent);
        self.unreported_bytes = 0;
        let number = self.sent;
        let received = self.received;
        let piece = Piece { number, received, has_more: next.has_more, payload: next.payload.clone() };
        Some(NextPiece { piece, is_resent })
    }

    /// Drops the pieces up to `number`, which the peer has received.
    pub(super) fn acknowledge(&mut self, number: u64) -> Result<(), SessionError> {
        if number > self.sent_max {
            return Err(SessionError::Acknowledgement);
        }
        while self.acknowledged < number {
            let Some(piece) = self.unacknowledged.pop_front() else {
                return Err(SessionError::Acknowledgement);
            };
            self.unacknowledged_bytes -= piece.bytes();
            self.acknowledged += 1;
        }
        self.sent = self.sent.max(self.acknowledged);
        Ok(())
    }

    /// Starts another connection, whose peer has received the pieces up to `number`.
    pub(super) fn resume(&mut self, number: u64) -> Result<(), SessionError> {
        self.acknowledge(number)?;
        self.sent = self.acknowledged;
        Ok(())
    }

    /// Whether the piece can be received now. Takes its bytes of the memory for incomplete batches, if it needs any.
    pub(super) fn take_room(&mut self, piece: &Piece) -> bool {
        let is_kept = piece.has_more && piece.number == self.received + 1;
        !is_kept || self.assembly.take(self.partial_batch.len() + piece.payload.len())
    }

    /// Handles a received piece, for which there is room; returns the batch that it completes.
    pub(super) fn receive(&mut self, piece: Piece) -> Result<Option<Bytes>, SessionError> {
        self.acknowledge(piece.received)?;
        if piece.number <= self.received {
            return Ok(None);
        }
        if piece.number != self.received + 1 {
            return Err(SessionError::Gap);
        }
        if self.partial_batch.len() + piece.payload.len() > self.bounds.batch {
            return Err(SessionError::TooLarge);
        }
        self.received = piece.number;
        self.unreported_bytes += piece.payload.len().max(PIECE_BYTES_MIN);
        if piece.has_more {
            self.partial_batch.extend_from_slice(&piece.payload);
            return Ok(None);
        }
        if self.partial_batch.is_empty() {
            return Ok(Some(piece.payload));
        }
        self.partial_batch.extend_from_slice(&piece.payload);
        self.assembly.end();
        Ok(Some(std::mem::take(&mut self.partial_batch).freeze()))
    }

    /// Frees the memory of an incomplete batch: the session has ended.
    pub(super) fn discard_partial_batch(&mut self) {
        self.assembly.end();
        self.partial_batch = BytesMut::new();
    }

    /// The number of the last received piece.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The number of the last received piece, which the caller sends now as an acknowledgement.
    pub(super) fn report_received(&mut self) -> u64 {
        self.unreported_bytes = 0;
        self.received
    }

    /// Whether an acknowledgement is due without waiting for a piece that carries it.
    pub(super) fn must_acknowledge(&self) -> bool {
        self.unreported_bytes >= self.bounds.unacknowledged / ACKNOWLEDGE_PART
    }

    /// The number of the last piece that the peer acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether a sent piece is unacknowledged.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.acknowledged < self.sent
    }
}

/// A piece to be written.
#[derive(Debug)]
pub(super) struct NextPiece {
    pub(super) piece: Piece,
    /// The piece was sent over an earlier connection already.
    pub(super) is_resent: bool,
}
