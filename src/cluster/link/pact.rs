//! Which session a new connection is for, and which of two connections stays: pure, without IO.

use crate::cluster::MemberId;

/// The numbers that both sides gave their session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pact {
    mine: u64,
    theirs: Option<u64>,
}

/// What the other side says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The number it gave the session.
    pub(super) session: u64,
    /// The number it knows from us; 0 is none.
    pub(super) knows: u64,
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// The session begins.
    Begins,
    /// The session goes on.
    GoesOn,
    /// Ours is lost: the other side has begun anew.
    WeAreBehind,
    /// Theirs is lost, which they learn from our answer.
    TheyAreBehind,
    /// The other side said that before it said something newer.
    Stale,
}

impl Pact {
    /// A session that only we know of. `mine` is larger than any before it.
    pub(super) fn new(mine: u64) -> Self {
        Self { mine, theirs: None }
    }

    /// What we say of it.
    pub(super) fn claim(self) -> Claim {
        Claim { session: self.mine, knows: self.theirs.unwrap_or(0) }
    }

    /// Whether both sides have given it a number.
    pub(super) fn has_begun(self) -> bool {
        self.theirs.is_some()
    }

    /// Judges what the other side says, and notes its number where the session begins.
    pub(super) fn meet(&mut self, claim: Claim) -> Meeting {
        let knows_us = claim.knows == 0 || claim.knows == self.mine;
        match self.theirs {
            None if knows_us => {
                self.theirs = Some(claim.session);
                Meeting::Begins
            }
            None => Meeting::TheyAreBehind,
            Some(theirs) if theirs == claim.session && knows_us => Meeting::GoesOn,
            Some(theirs) if theirs == claim.session => Meeting::TheyAreBehind,
            Some(theirs) if claim.session < theirs => Meeting::Stale,
            Some(_) => Meeting::WeAreBehind,
        }
    }
}

/// Whether a new connection takes the place of the present one. Both were dialled by one of the two sides; the
/// one by the `smaller` stays, and a newer one of the same side replaces the older, which that side has lost.
pub(super) fn replaces(present: MemberId, new: MemberId, smaller: MemberId, insists: bool) -> bool {
    insists || new == present || new == smaller
}
