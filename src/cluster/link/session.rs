//! What two processes have sent each other, across any number of connections: pure, without IO.
//!
//! What is sent is numbered and kept until the other side says that it has come. A new connection goes on after
//! the last number that came over any before it, so each batch arrives once, in order.

use std::collections::VecDeque;

use prost::bytes::{Bytes, BytesMut};

/// The most bytes of a batch that go in one piece, so that acknowledgements and heartbeats find gaps.
pub(super) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// The largest batch, in bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// While this many bytes have not been acknowledged, nothing more is taken.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What a small piece counts as, so that the number of pieces is bounded too.
const PIECE_BYTES_MIN: usize = 64;
/// By which part of what may be kept as much may come before it is acknowledged without waiting for an occasion.
const OWED_PART: usize = 8;

/// How much is taken; tests take less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) piece: usize,
    pub(super) kept: usize,
    pub(super) batch: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { piece: PIECE_BYTES_MAX, kept: KEPT_BYTES_MAX, batch: BATCH_BYTES_MAX }
    }
}

/// A batch, or a part of one, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) number: u64,
    pub(super) received: u64,
    pub(super) goes_on: bool,
    pub(super) payload: Bytes,
}

/// Why a session cannot go on: the other side says what it cannot know, or sends what nobody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// It has received what was never sent.
    #[error("it acknowledges what was not sent")]
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
    // Invariant: `kept` holds the pieces numbered from `acknowledged + 1`, without gaps.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    acknowledged: u64,
    // The last piece handed to the present connection, and to any.
    handed: u64,
    sent: u64,
    received: u64,
    // What has come since the other side was last told.
    owed_bytes: usize,
    joining: BytesMut,
}

#[derive(Debug)]
struct Kept {
    goes_on: bool,
    payload: Bytes,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.payload.len().max(PIECE_BYTES_MIN)
    }
}

impl Session {
    /// One that takes so much.
    #[cfg(test)]
    pub(super) fn within(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// How many bytes may be taken now; 0 while too much is on its way.
    pub(super) fn room(&self) -> usize {
        self.bounds.kept.saturating_sub(self.kept_bytes)
    }

    /// Takes a batch to be sent, cut into pieces.
    pub(super) fn push(&mut self, mut batch: Bytes) -> Result<(), Broken> {
        if self.bounds.batch < batch.len() {
            return Err(Broken::TooLarge);
        }
        loop {
            let payload = batch.split_to(batch.len().min(self.bounds.piece));
            let kept = Kept { goes_on: !batch.is_empty(), payload };
            let goes_on = kept.goes_on;
            self.kept_bytes += kept.bytes();
            self.kept.push_back(kept);
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// The next piece for the present connection, and whether it went over another before.
    pub(super) fn hand(&mut self) -> Option<Handed> {
        let index = usize::try_from(self.handed - self.acknowledged).ok()?;
        let kept = self.kept.get(index)?;
        self.handed += 1;
        let again = self.handed <= self.sent;
        self.sent = self.sent.max(self.handed);
        self.owed_bytes = 0;
        let (number, received) = (self.handed, self.received);
        let piece = Piece { number, received, goes_on: kept.goes_on, payload: kept.payload.clone() };
        Some(Handed { piece, again })
    }

    /// Notes that the other side has everything up to `number`.
    pub(super) fn acknowledge(&mut self, number: u64) -> Result<(), Broken> {
        if self.sent < number {
            return Err(Broken::Acknowledgement);
        }
        while self.acknowledged < number {
            let Some(kept) = self.kept.pop_front() else { return Err(Broken::Acknowledgement) };
            self.kept_bytes -= kept.bytes();
            self.acknowledged += 1;
        }
        self.handed = self.handed.max(self.acknowledged);
        Ok(())
    }

    /// Begins another connection, whose other side has everything up to `number`.
    pub(super) fn resume(&mut self, number: u64) -> Result<(), Broken> {
        self.acknowledge(number)?;
        self.handed = self.acknowledged;
        Ok(())
    }

    /// Takes a piece that has come; a batch where that makes one whole.
    pub(super) fn receive(&mut self, piece: Piece) -> Result<Option<Bytes>, Broken> {
        self.acknowledge(piece.received)?;
        if piece.number <= self.received {
            return Ok(None);
        }
        if piece.number != self.received + 1 {
            return Err(Broken::Gap);
        }
        if self.bounds.batch < self.joining.len() + piece.payload.len() {
            return Err(Broken::TooLarge);
        }
        self.received = piece.number;
        self.owed_bytes += piece.payload.len().max(PIECE_BYTES_MIN);
        if piece.goes_on {
            self.joining.extend_from_slice(&piece.payload);
            return Ok(None);
        }
        if self.joining.is_empty() {
            return Ok(Some(piece.payload));
        }
        self.joining.extend_from_slice(&piece.payload);
        Ok(Some(self.joining.split().freeze()))
    }

    /// The number of the last piece that has come.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The same, to be told now.
    pub(super) fn tell_received(&mut self) -> u64 {
        self.owed_bytes = 0;
        self.received
    }

    /// Whether so much has come that the other side should be told without waiting for an occasion.
    pub(super) fn owes(&self) -> bool {
        self.bounds.kept / OWED_PART <= self.owed_bytes
    }

    /// The number of the last piece that the other side has.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether something is on its way that the other side has not acknowledged.
    pub(super) fn awaits(&self) -> bool {
        self.acknowledged < self.handed
    }
}

/// A piece to be written.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) piece: Piece,
    /// It has been written to an earlier connection.
    pub(super) again: bool,
}
