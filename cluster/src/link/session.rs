//! Numbered, acknowledged delivery between two processes across any number of connections. Pure, without I/O.
//!
//! Each sent piece has a number and is retained until the peer acknowledges it. A new connection resumes after the last
//! number received over any earlier one, so each batch arrives once and in order. A session has a number of each side,
//! so each side tells from one hello whether the session begins, resumes or has ended.

use std::collections::VecDeque;

use tokio_util::bytes::{Bytes, BytesMut};

use crate::{
    link::{
        assembly::{Assembly, AssemblyBudget},
        frame::{LinkHello, PIECE_BYTES_MAX, Piece, RefusalReason},
    },
    member::MemberId,
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

/// The side of a connection that this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRole {
    Dialler,
    Acceptor,
}

/// What the hello of a peer means for its session and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloOutcome {
    /// The session begins, and the connection becomes the link.
    Begin,
    /// The session resumes, and the connection becomes the link.
    Resume,
    /// The connection is refused.
    Refused(RefusalReason),
    /// The remote session has ended, which a hello tells the peer.
    RemoteLost,
    /// The local session has ended; the next connection begins a new one.
    LocalLost,
    /// The hello violates the protocol, which ends the session.
    Invalid(SessionError),
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
#[derive(Debug)]
pub(super) struct Session {
    pub(super) bounds: SessionBounds,
    // Larger than those of the former sessions of this side.
    number: u64,
    // The number of the other side. Both sides have established the session once it is known.
    remote_number: Option<u64>,
    // The role in the connection that stays if both sides dial.
    preferred: LinkRole,
    // Invariant: `unacknowledged` holds the pieces numbered from `acknowledged + 1`, without gaps.
    unacknowledged: VecDeque<Piece>,
    unacknowledged_bytes: usize,
    acknowledged: u64,
    // The last piece sent over the active connection, and over any connection.
    sent: u64,
    sent_max: u64,
    received: u64,
    // Bytes received since the last acknowledgement was sent.
    unreported_bytes: usize,
    // The peer has refused the last connection because of a link that this side has lost.
    replaces_link: bool,
    partial_batch: BytesMut,
    // What `partial_batch` takes of the memory of all peers.
    assembly: Assembly,
}

impl Session {
    /// A session that only this side knows. Its incomplete batches share the memory of `budget` with those of others.
    pub(super) fn new(number: u64, preferred: LinkRole, budget: AssemblyBudget) -> Self {
        Self {
            bounds: SessionBounds::default(),
            number,
            remote_number: None,
            preferred,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            acknowledged: 0,
            sent: 0,
            sent_max: 0,
            received: 0,
            unreported_bytes: 0,
            replaces_link: false,
            partial_batch: BytesMut::new(),
            assembly: Assembly::new(budget),
        }
    }

    /// Whether both sides have given the session a number.
    pub(super) fn is_established(&self) -> bool {
        self.remote_number.is_some()
    }

    /// The hello to send: the state of the session beside what names the process.
    pub(super) fn hello(&self, member: MemberId, address: String) -> LinkHello {
        LinkHello {
            member,
            address,
            session: self.number,
            known_session: self.remote_number.unwrap_or(0),
            received: self.received,
            replaces_link: self.replaces_link,
        }
    }

    /// The peer has refused a connection because of a link, which the next connection replaces.
    pub(super) fn replace_link(&mut self) {
        self.replaces_link = true;
    }

    /// What a hello means that is received on a connection with this role, while there is the link with the `active`
    /// role, if any.
    pub(super) fn judge(&self, hello: &LinkHello, role: LinkRole, active: Option<LinkRole>) -> HelloOutcome {
        match self.remote_number {
            Some(remote) if hello.session < remote => return HelloOutcome::Refused(RefusalReason::Stale),
            Some(remote) if hello.session > remote => return HelloOutcome::LocalLost,
            Some(_) | None => {}
        }
        if hello.known_session != 0 && hello.known_session != self.number {
            return HelloOutcome::RemoteLost;
        }
        // A newer connection of the side that has dialled the link replaces it: that side has lost it.
        let replaces = |active| hello.replaces_link || role == active || role == self.preferred;
        if active.is_some_and(|active| !replaces(active)) {
            return HelloOutcome::Refused(RefusalReason::Linked);
        }
        if hello.received > self.sent_max {
            return HelloOutcome::Invalid(SessionError::Acknowledgement);
        }
        if self.is_established() { HelloOutcome::Resume } else { HelloOutcome::Begin }
    }

    /// Begins or resumes over the connection of this hello, as judged. Returns how many pieces are sent again.
    pub(super) fn connect(&mut self, hello: &LinkHello) -> u64 {
        self.remote_number = Some(hello.session);
        self.replaces_link = false;
        let acknowledged = self.acknowledge(hello.received);
        debug_assert_eq!(acknowledged, Ok(()), "the hello was judged");
        let resent = self.sent - self.acknowledged;
        self.sent = self.acknowledged;
        resent
    }

    /// The bytes that may be queued now; 0 while too many are unacknowledged.
    pub(super) fn capacity(&self) -> usize {
        self.bounds.unacknowledged.saturating_sub(self.unacknowledged_bytes)
    }

    /// Queues a batch of any size for sending, cut into pieces.
    pub(super) fn push(&mut self, mut batch: Bytes) {
        let mut number = self.acknowledged + self.unacknowledged.len() as u64;
        loop {
            let payload = batch.split_to(batch.len().min(self.bounds.piece));
            let has_more = !batch.is_empty();
            number += 1;
            self.unacknowledged_bytes += counted_bytes(&payload);
            self.unacknowledged.push_back(Piece { number, received: 0, has_more, payload });
            if !has_more {
                return;
            }
        }
    }

    /// The next piece for the active connection.
    pub(super) fn next_piece(&mut self) -> Option<Piece> {
        let index = usize::try_from(self.sent - self.acknowledged).ok()?;
        let piece = self.unacknowledged.get(index)?.clone();
        self.sent = piece.number;
        self.sent_max = self.sent_max.max(self.sent);
        Some(Piece { received: self.report_received(), ..piece })
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
            self.unacknowledged_bytes -= counted_bytes(&piece.payload);
            self.acknowledged += 1;
        }
        self.sent = self.sent.max(self.acknowledged);
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
        self.unreported_bytes += counted_bytes(&piece.payload);
        if !piece.has_more && self.partial_batch.is_empty() {
            return Ok(Some(piece.payload));
        }
        self.partial_batch.extend_from_slice(&piece.payload);
        if piece.has_more {
            return Ok(None);
        }
        self.assembly.end();
        Ok(Some(std::mem::take(&mut self.partial_batch).freeze()))
    }

    /// Frees the memory of an incomplete batch: the session has ended.
    pub(super) fn discard_partial_batch(&mut self) {
        self.assembly.end();
        self.partial_batch = BytesMut::new();
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

    /// The last acknowledged piece, if later ones are sent.
    pub(super) fn pending_acknowledgement(&self) -> Option<u64> {
        (self.acknowledged < self.sent).then_some(self.acknowledged)
    }
}

/// What a piece counts towards the unacknowledged bytes.
fn counted_bytes(payload: &Bytes) -> usize {
    payload.len().max(PIECE_BYTES_MIN)
}
