//! What two processes have sent_max each other, across any number of connections: pure, without IO.
//!
//! What is sent_max is numbered and unacknowledged until the other side says that it has come. A new connection goes on after
//! the last number that came over any before it, so each batch arrives once, in order.

use std::collections::VecDeque;

use prost::bytes::{Bytes, BytesMut};

/// The most bytes of a batch that go in one piece, so that acknowledgements and heartbeats find gaps.
pub(super) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// The largest batch, in bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// While this many bytes have not been acknowledged, nothing more is taken.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What a small piece counters as, so that the number of pieces is bounded too.
const PIECE_BYTES_MIN: usize = 64;
/// By which part of what may be unacknowledged as much may come before it is acknowledged without waiting for an occasion.
const ACKNOWLEDGE_PART: usize = 8;

/// How much is taken; tests take less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) piece: usize,
    pub(super) unacknowledged: usize,
    pub(super) batch: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { piece: PIECE_BYTES_MAX, unacknowledged: UNACKNOWLEDGED_BYTES_MAX, batch: BATCH_BYTES_MAX }
    }
}

/// A batch, or a part of one, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) number: u64,
    pub(super) received: u64,
    pub(super) has_more: bool,
    pub(super) payload: Bytes,
}

/// Why a session cannot go on: the other side says what it cannot know, or sends what nobody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SessionError {
    /// It has received what was never sent_max.
    #[error("it acknowledges what was not sent_max")]
    Acknowledgement,
    /// A piece is missing.
    #[error("a piece is missing")]
    Gap,
    /// A batch is too large.
    #[error("a batch is too large")]
    TooLarge,
}

/// One side of a session.
#[derive(Debug, Default)]
pub(super) struct Session {
    bounds: Bounds,
    // Invariant: `unacknowledged` holds the pieces numbered from `acknowledged + 1`, without gaps.
    unacknowledged: VecDeque<UnacknowledgedPiece>,
    unacknowledged_bytes: usize,
    acknowledged: u64,
    // The last piece sent to the present connection, and to any.
    sent: u64,
    sent_max: u64,
    received: u64,
    // What has come since the other side was last told.
    unreported_bytes: usize,
    partial_batch: BytesMut,
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
    /// One that takes so much.
    #[cfg(test)]
    pub(super) fn with_bounds(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// How many bytes may be taken now; 0 while too much is on its way.
    pub(super) fn capacity(&self) -> usize {
        self.bounds.unacknowledged.saturating_sub(self.unacknowledged_bytes)
    }

    /// Takes a batch to be sent_max, cut into pieces.
    pub(super) fn push(&mut self, mut batch: Bytes) -> Result<(), SessionError> {
        if self.bounds.batch < batch.len() {
            return Err(SessionError::TooLarge);
        }
        loop {
            let payload = batch.split_to(batch.len().min(self.bounds.piece));
            let unacknowledged = UnacknowledgedPiece { has_more: !batch.is_empty(), payload };
            let has_more = unacknowledged.has_more;
            self.unacknowledged_bytes += unacknowledged.bytes();
            self.unacknowledged.push_back(unacknowledged);
            if !has_more {
                return Ok(());
            }
        }
    }

    /// The next piece for the present connection, and whether it went over another before.
    pub(super) fn next_piece(&mut self) -> Option<NextPiece> {
        let index = usize::try_from(self.sent - self.acknowledged).ok()?;
        let unacknowledged = self.unacknowledged.get(index)?;
        self.sent += 1;
        let is_resent = self.sent <= self.sent_max;
        self.sent_max = self.sent_max.max(self.sent);
        self.unreported_bytes = 0;
        let (number, received) = (self.sent, self.received);
        let piece = Piece {
            number,
            received,
            has_more: unacknowledged.has_more,
            payload: unacknowledged.payload.clone(),
        };
        Some(NextPiece { piece, is_resent })
    }

    /// Notes that the other side has everything up to `number`.
    pub(super) fn acknowledge(&mut self, number: u64) -> Result<(), SessionError> {
        if self.sent_max < number {
            return Err(SessionError::Acknowledgement);
        }
        while self.acknowledged < number {
            let Some(unacknowledged) = self.unacknowledged.pop_front() else {
                return Err(SessionError::Acknowledgement);
            };
            self.unacknowledged_bytes -= unacknowledged.bytes();
            self.acknowledged += 1;
        }
        self.sent = self.sent.max(self.acknowledged);
        Ok(())
    }

    /// Begins another connection, whose other side has everything up to `number`.
    pub(super) fn resume(&mut self, number: u64) -> Result<(), SessionError> {
        self.acknowledge(number)?;
        self.sent = self.acknowledged;
        Ok(())
    }

    /// Takes a piece that has come; a batch where that makes one whole.
    pub(super) fn receive(&mut self, piece: Piece) -> Result<Option<Bytes>, SessionError> {
        self.acknowledge(piece.received)?;
        if piece.number <= self.received {
            return Ok(None);
        }
        if piece.number != self.received + 1 {
            return Err(SessionError::Gap);
        }
        if self.bounds.batch < self.partial_batch.len() + piece.payload.len() {
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
        Ok(Some(self.partial_batch.split().freeze()))
    }

    /// The number of the last piece that has come.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The same, to be told now.
    pub(super) fn report_received(&mut self) -> u64 {
        self.unreported_bytes = 0;
        self.received
    }

    /// Whether so much has come that the other side should be told without waiting for an occasion.
    pub(super) fn must_acknowledge(&self) -> bool {
        self.bounds.unacknowledged / ACKNOWLEDGE_PART <= self.unreported_bytes
    }

    /// The number of the last piece that the other side has.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether something is on its way that the other side has not acknowledged.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.acknowledged < self.sent
    }
}

/// A piece to be written.
#[derive(Debug)]
pub(super) struct NextPiece {
    pub(super) piece: Piece,
    /// It has been written to an earlier connection.
    pub(super) is_resent: bool,
}
