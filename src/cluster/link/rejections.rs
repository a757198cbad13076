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
    pub(super) fn summary(&self) -> Option<String> {
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
        (!named.is_empty()).then(|| named.join(", "))
    }
}
