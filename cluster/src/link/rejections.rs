//! Dialled addresses whose link one of the two sides rejected.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tollgate_counter::time::Stopwatch;

use crate::link::{peer::Peer, stats::LinkFailure};

/// Lifetime of a rejection. Seeds are dialled more often; an address that is no longer dialled expires.
const REJECTION_TTL: Duration = Duration::from_secs(30);
/// The most addresses that are retained.
const ADDRESSES_MAX: usize = 1024;
/// The most addresses in a summary.
const NAMED_MAX: usize = 3;

/// Processes at dialled addresses that rejected a link or were rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strangers {
    /// The addresses of the strangers, with the reasons.
    pub named: String,
    /// Whether one of them speaks another version of the protocol.
    pub has_other_version: bool,
    /// Whether one of them has the address of a peer whose link broke.
    pub has_former_peer: bool,
}

#[derive(Debug)]
struct LinkRejection {
    reason: LinkFailure,
    is_former_peer: bool,
    since: Stopwatch,
}

/// The last rejection of each address.
#[derive(Debug, Default)]
pub(super) struct Rejections(Mutex<HashMap<SocketAddr, LinkRejection>>);

impl Rejections {
    /// Records that a link to this address was rejected, which is that of a peer or of a process that is not known.
    pub(super) fn note(&self, address: SocketAddr, reason: LinkFailure, peer: Option<&Peer>) {
        let mut addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.retain(|_, rejection| rejection.since.elapsed() < REJECTION_TTL);
        // A peer that is forgotten is dialled as a seed.
        let was_peer = addresses.get(&address).is_some_and(|rejection| rejection.is_former_peer);
        if addresses.len() < ADDRESSES_MAX || addresses.contains_key(&address) {
            let is_former_peer = was_peer || peer.is_some();
            addresses.insert(address, LinkRejection { reason, is_former_peer, since: Stopwatch::start() });
        }
    }

    /// Removes the rejection of an address that has a member or refuses connections. (Silence proves neither.)
    pub(super) fn clear(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    /// The addresses that reject links with their reasons; `None` if there are none.
    pub(super) fn strangers(&self) -> Option<Strangers> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = addresses.iter().filter(|(_, rejection)| rejection.since.elapsed() < REJECTION_TTL);
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
