//! What is known about addresses, and the results of dialling them.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tollgate_counter::time::Stopwatch;

use crate::MemberId;

/// The most addresses that are dialled at a time.
pub(super) const DIALS_MAX: usize = 1024;
/// Time for which this process's own address is not dialled. Bounded, since a name may resolve to many processes.
const OWN_ADDRESS_TTL: Duration = Duration::from_secs(60);

/// The result of dialling an address. Of several addresses of one name, the largest result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DialResult {
    /// Connections are refused: no process listens there.
    Refused,
    /// Another process than the expected one answers.
    OtherMember,
    /// No proof that a process listens there or that none does.
    Unreachable,
    /// A process listens there, and its handshake has not ended in time.
    Slow,
    /// The address is that of this process.
    OwnAddress,
    /// The peer has refused the connection because it has a link.
    Duplicate,
    /// The session had ended; a new one can begin at once.
    SessionEnded,
    /// This process of the cluster answers. It has an active link, or had one over this connection.
    Linked(MemberId),
}

impl DialResult {
    /// Whether further addresses of the name are not tried.
    pub(super) fn is_answer(self) -> bool {
        self > Self::Slow
    }
}

/// The addresses that are dialled or known.
#[derive(Default)]
pub(super) struct Addresses {
    dialling: HashSet<String>,
    own: HashMap<String, Stopwatch>,
    // Peers behind an address that is not the one they advertise.
    members: HashMap<String, MemberId>,
}

impl Addresses {
    /// Whether the address belongs to this process.
    pub(super) fn is_own(&self, address: &str) -> bool {
        self.own.get(address).is_some_and(|since| since.elapsed() < OWN_ADDRESS_TTL)
    }

    /// The member that answers at the address.
    pub(super) fn member(&self, address: &str) -> Option<MemberId> {
        self.members.get(address).copied()
    }

    /// Whether as many addresses are dialled as may be.
    pub(super) fn is_full(&self) -> bool {
        self.dialling.len() >= DIALS_MAX
    }

    /// Records that the address is dialled. False if it is dialled already.
    pub(super) fn begin_dial(&mut self, address: &str) -> bool {
        self.dialling.insert(address.to_owned())
    }

    /// Records that the address is no longer dialled.
    pub(super) fn end_dial(&mut self, address: &str) {
        self.dialling.remove(address);
    }

    /// Records that the address belongs to this process.
    pub(super) fn note_own(&mut self, address: &str) {
        self.own.retain(|_, since| since.elapsed() < OWN_ADDRESS_TTL);
        self.own.insert(address.to_owned(), Stopwatch::start());
    }

    /// Records that `member` answers at the address, and forgets members that are not `known`.
    pub(super) fn note_member(&mut self, address: &str, member: MemberId, known: impl Fn(MemberId) -> bool) {
        self.members.retain(|_, member| known(*member));
        // More entries than dials are useless: a missing entry costs one needless dial.
        if self.members.len() < DIALS_MAX {
            self.members.insert(address.to_owned(), member);
        }
    }
}
