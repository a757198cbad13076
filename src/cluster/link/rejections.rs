//! Dialled addresses whose link one of the two sides rejected.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tollgate_limiter::time::Stopwatch;

use crate::cluster::link::stats::LinkFailure;

/// Lifetime of a rejection. Seeds are dialled more often; an address that is no longer dialled expires.
const REJECTION_TTL: Duration = Duration::from_secs(30);
/// The most addresses that are kept.
const ADDRESSES_MAX: usize = 1024;
/// The most addresses in a summary.
const NAMED_MAX: usize = 3;

/// Processes at dialled addresses that rejected a link or were rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strangers {
    /// Their addresses with the reasons.
    pub named: String,
    /// Whether one of them speaks another version of the protocol.
    pub has_other_version: bool,
}

/// The last rejection of each address.
#[derive(Debug, Default)]
pub(super) struct Rejections(Mutex<HashMap<SocketAddr, (LinkFailure, Stopwatch)>>);

impl Rejections {
    /// Records that a link to this address was rejected.
    pub(super) fn note(&self, address: SocketAddr, reason: LinkFailure) {
        let mut addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.retain(|_, (_, since)| since.elapsed() < REJECTION_TTL);
        if addresses.len() < ADDRESSES_MAX || addresses.contains_key(&address) {
            addresses.insert(address, (reason, Stopwatch::start()));
        }
    }

    /// Removes the rejection of an address that has a member or refuses connections. (Silence proves neither.)
    pub(super) fn clear(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    /// The addresses that reject links with their reasons; `None` if there are none.
    pub(super) fn strangers(&self) -> Option<Strangers> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = addresses.iter().filter(|(_, (_, since))| since.elapsed() < REJECTION_TTL);
        let mut recent: Vec<_> = recent.map(|(address, (reason, _))| (*address, *reason)).collect();
        recent.sort_unstable_by_key(|(address, _)| *address);
        let named = recent.iter().take(NAMED_MAX);
        let mut named: Vec<_> =
            named.map(|(address, reason)| format!("{address} ({})", reason.name())).collect();
        if recent.len() > NAMED_MAX {
            named.push(format!("and {} more", recent.len() - NAMED_MAX));
        }
        let has_other_version = recent.iter().any(|(_, reason)| *reason == LinkFailure::Version);
        (!named.is_empty()).then(|| Strangers { named: named.join(", "), has_other_version })
    }
}
