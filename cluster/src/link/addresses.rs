//! What is known about addresses, and the results of dialling them.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use tollgate_counter::time::Stopwatch;

use crate::{
    link::{peer::Peer, stats::LinkFailure},
    member::MemberId,
};

/// The most addresses that are dialled at a time.
pub(super) const DIALS_MAX: usize = 1024;
/// Time for which this process's own address is not dialled. Bounded, since a name may resolve to many processes.
const OWN_ADDRESS_TTL: Duration = Duration::from_secs(60);
/// Lifetime of a rejection. Seeds are dialled more often; an address that is no longer dialled expires.
const REJECTION_TTL: Duration = Duration::from_secs(30);
/// The most addresses in a summary of rejections.
const NAMED_MAX: usize = 3;

/// The result of dialling an address. Of several addresses of one name, the largest result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DialResult {
    /// Connections are refused: no process listens there.
    Refused,
    /// A process answers that is not the expected one.
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
    /// The process of the cluster with this id answers. It has an active link, or had one over this connection.
    Linked(MemberId),
}

impl DialResult {
    /// Whether further addresses of the name are not tried.
    pub(super) fn is_answer(self) -> bool {
        self > Self::Slow
    }
}

/// The state of the search for other members. Of several addresses or seeds, the largest state counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeedState {
    /// All seeds were tried, and the last try at each found no other member.
    NotFound,
    /// A process accepted the connection, and did not complete the handshake in time. For a bounded time the search at all
    /// seeds goes on instead.
    Slow,
    /// Some seed has not been tried yet, or a slow process may still answer.
    Searching,
    /// A process of the cluster that is not this one was found at a seed.
    Found,
}

/// Processes at dialled addresses that rejected a link or were rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strangers {
    /// The addresses of the strangers, with the reasons.
    pub named: String,
    /// Whether a stranger speaks another version of the protocol.
    pub has_other_version: bool,
    /// Whether a stranger has the address of a peer whose link broke.
    pub has_former_peer: bool,
}

#[derive(Debug)]
struct LinkRejection {
    reason: LinkFailure,
    is_former_peer: bool,
    since: Stopwatch,
}

/// The addresses that are dialled or known.
#[derive(Default)]
pub(super) struct Addresses {
    /// The addresses that are dialled now, at most [`DIALS_MAX`].
    pub(super) dialling: HashSet<String>,
    own: HashMap<String, Stopwatch>,
    // Peers behind an address that is not the one they advertise.
    members: HashMap<String, MemberId>,
    // The last rejection of a link by either side.
    rejections: HashMap<SocketAddr, LinkRejection>,
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

    /// Records that a link to this address was rejected, which is that of a peer or of a process that is not known.
    pub(super) fn note_rejection(&mut self, address: SocketAddr, reason: LinkFailure, peer: Option<&Peer>) {
        let addresses = &mut self.rejections;
        addresses.retain(|_, rejection| rejection.since.elapsed() < REJECTION_TTL);
        // A peer that is forgotten is dialled as a seed.
        let was_peer = addresses.get(&address).is_some_and(|rejection| rejection.is_former_peer);
        if addresses.len() < DIALS_MAX || addresses.contains_key(&address) {
            let is_former_peer = was_peer || peer.is_some();
            addresses.insert(address, LinkRejection { reason, is_former_peer, since: Stopwatch::start() });
        }
    }

    /// Removes the rejection of an address that has a member or refuses connections. (Silence proves neither.)
    pub(super) fn clear_rejection(&mut self, address: SocketAddr) {
        self.rejections.remove(&address);
    }

    /// The addresses that reject links with their reasons; `None` if there are none.
    pub(super) fn strangers(&self) -> Option<Strangers> {
        let recent =
            self.rejections.iter().filter(|(_, rejection)| rejection.since.elapsed() < REJECTION_TTL);
        let mut recent: Vec<_> = recent.collect();
        recent.sort_unstable_by_key(|(address, _)| **address);
        let named = recent.iter().take(NAMED_MAX);
        let mut named: Vec<_> =
            named.map(|(address, rejection)| format!("{address} ({})", rejection.reason.name())).collect();
        if recent.len() > NAMED_MAX {
            named.push(format!("and {} more", recent.len() - NAMED_MAX));
        }
        let has_other_version = recent.iter().any(|(_, rejection)| rejection.reason == LinkFailure::Version);
        let has_former_peer = recent.iter().any(|(_, rejection)| rejection.is_former_peer);
        let named = named.join(", ");
        (!named.is_empty()).then_some(Strangers { named, has_other_version, has_former_peer })
    }
}
