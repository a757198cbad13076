//! Which session a new connection is for, and which of two connections stays: pure, without IO.

use crate::cluster::MemberId;

/// The numbers that both sides gave their session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionIds {
    local: u64,
    remote: Option<u64>,
}

/// What the other side says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionOffer {
    /// The number it gave the session.
    pub(super) session: u64,
    /// The number it known from us; 0 is none.
    pub(super) known: u64,
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// The session begins.
    Begin,
    /// The session goes on.
    Resume,
    /// Ours is lost: the other side has begun anew.
    LocalLost,
    /// Theirs is lost, which they learn from our answer.
    RemoteLost,
    /// The other side said that before it said something newer.
    Outdated,
}

impl SessionIds {
    /// A session that only we know of. `local` is larger than any before it.
    pub(super) fn new(local: u64) -> Self {
        Self { local, remote: None }
    }

    /// What we say of it.
    pub(super) fn offer(self) -> SessionOffer {
        SessionOffer { session: self.local, known: self.remote.unwrap_or(0) }
    }

    /// Whether both sides have given it a number.
    pub(super) fn is_established(self) -> bool {
        self.remote.is_some()
    }

    /// Judges what the other side says, and notes its number where the session begins.
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

/// Whether a new connection takes the place of the active one. Both were dialled by one of the two sides; the
/// one by the `smaller` stays, and a newer one of the same side supersedes the older, which that side has lost.
pub(super) fn supersedes(active: MemberId, new: MemberId, smaller: MemberId, replaces_link: bool) -> bool {
    replaces_link || new == active || new == smaller
}
