//! The frames of `cluster/proto`, their conversions, and the handshake that begins a link.

use crate::MemberId;

pub(super) use crate::protocol::VERSION;
/// Generated.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/cluster.rs"));
}

pub(super) use proto::tollgate::cluster::v1::{
    Frame, Goodbye, Greeting, Heartbeat, Hello, Piece, Refusal,
    frame::Kind,
    links_client::LinksClient,
    links_server::{Links as LinksService, LinksServer},
    refusal::Reason,
};

/// The largest piece of a batch, so that acknowledgements and heartbeats can be written in between.
pub(super) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// The largest frame, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = PIECE_BYTES_MAX + 1024;

impl From<Kind> for Frame {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl Hello {
    /// The session numbers that it offers.
    pub(super) fn offer(&self) -> SessionOffer {
        SessionOffer { session: self.session, known: self.known_session }
    }

    /// The process that sent it.
    pub(super) fn member(&self) -> MemberId {
        MemberId::from_number(self.member)
    }
}

/// A frame that refuses a link.
pub(super) fn refusal(reason: Reason) -> Frame {
    Kind::Refusal(Refusal { reason: reason.into() }).into()
}

/// The numbers that the two sides gave their session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionIds {
    local: u64,
    remote: Option<u64>,
}

/// The session numbers in a hello of the remote side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionOffer {
    /// The number that the sender gave the session.
    pub(super) session: u64,
    /// The receiver's number as the sender knows it; 0 if it knows none.
    pub(super) known: u64,
}

/// How a remote offer relates to the local session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// The session begins.
    Begin,
    /// The session resumes.
    Resume,
    /// The local session is lost: the remote side has begun a new one.
    LocalLost,
    /// The remote session is lost, which the answer tells the remote side.
    RemoteLost,
    /// The offer is older than one already received.
    Outdated,
}

impl SessionIds {
    /// A session that only the local side knows. `local` is larger than any earlier number.
    pub(super) fn new(local: u64) -> Self {
        Self { local, remote: None }
    }

    /// The offer to send.
    pub(super) fn offer(self) -> SessionOffer {
        SessionOffer { session: self.local, known: self.remote.unwrap_or(0) }
    }

    /// Whether both sides have given the session a number.
    pub(super) fn is_established(self) -> bool {
        self.remote.is_some()
    }

    /// Resolves a remote offer, and stores the remote number if the session begins.
    pub(super) fn resolve(&mut self, offer: SessionOffer) -> Resolution {
        let knows_local = offer.known == 0 || offer.known == self.local;
        match self.remote {
            None if knows_local => {
                self.remote = Some(offer.session);
                Resolution::Begin
            }
            None => Resolution::RemoteLost,
            Some(remote) if remote == offer.session && knows_local => Resolution::Resume,
            Some(remote) if remote == offer.session => Resolution::RemoteLost,
            Some(remote) if offer.session < remote => Resolution::Outdated,
            Some(_) => Resolution::LocalLost,
        }
    }
}

/// Whether a new connection replaces the active one. `active` and `new` are the sides that dialled them. The
/// connection dialled by the `smaller` side stays; a newer one of the same side replaces the older one, which that
/// side has lost.
pub(super) fn supersedes(active: MemberId, new: MemberId, smaller: MemberId, replaces_link: bool) -> bool {
    replaces_link || new == active || new == smaller
}
