//! The frames of `proto/tollgate/cluster/v1/link.proto` and their conversions.

use crate::{MemberId, link::handshake::SessionOffer};

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
