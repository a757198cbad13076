//! Discovery at seeds: resolves the names periodically and dials every address behind them.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    net::lookup_host,
    sync::oneshot,
    time::{sleep, timeout},
};
use tollgate_counter::time::Stopwatch;
use tracing::{info, warn};

use crate::link::{DialResult, HubState};

/// Interval of the lookups while no other member is known, and afterwards.
const ALONE_INTERVAL: Duration = Duration::from_secs(1);
const LINKED_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a lookup in progress counts the name as unresolved for now.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a dial in progress counts the address as unreachable; the dial itself ends sooner.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for which a process that does not complete its handshake may be a busy member.
const SLOW_MAX: Duration = Duration::from_secs(10);
/// The most addresses that are dialled for one name.
const ADDRESSES_MAX: usize = 256;

/// The result of the last try at one seed.
#[derive(Clone, Copy, Debug, Default)]
struct SeedResult {
    linked: usize,
    failures: SeedFailures,
}

/// The search at all seeds.
struct SeedSearch {
    since: Stopwatch,
    all: Mutex<Vec<Option<SeedResult>>>,
}

impl SeedSearch {
    fn publish(&self, shared: &HubState) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        shared.set_seeds(summary(&all, self.since.elapsed()));
    }
}

/// Searches at all seeds until it is dropped.
pub(super) async fn watch(shared: Arc<HubState>) {
    let search = SeedSearch { since: Stopwatch::start(), all: Mutex::new(vec![None; shared.seeds().len()]) };
    search.publish(&shared);
    let seeds = shared.seeds().iter().enumerate();
    join_all(seeds.map(|(index, seed)| watch_one(&shared, index, seed, &search))).await;
    // Without seeds the loop above ends at once.
    std::future::pending().await
}

async fn watch_one(shared: &HubState, index: usize, seed: &str, search: &SeedSearch) {
    let mut failing: Option<String> = None;
    let note = |found| {
        search.all.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(found);
        search.publish(shared);
    };
    loop {
        let unresolved =
            SeedResult { linked: 0, failures: SeedFailures { unresolved: 1, ..SeedFailures::default() } };
        // A slow lookup is awaited, not dropped: the resolver's thread would go on, and another would start
        // concurrently.
        let mut lookup = pin!(lookup_host(seed));
        let resolved = match timeout(LOOKUP_TIMEOUT, lookup.as_mut()).await {
            Ok(resolved) => resolved,
            Err(_) => {
                note(unresolved);
                lookup.await
            }
        };
        match resolved {
            Ok(addresses) => {
                if failing.take().is_some() {
                    info!(seed, "seed resolved again");
                }
                let mut addresses: Vec<_> = addresses.take(ADDRESSES_MAX).collect();
                addresses.sort_unstable();
                addresses.dedup();
                note(dial(shared, &addresses).await);
            }
            Err(error) => {
                let reason = error.to_string();
                if failing.as_ref() != Some(&reason) {
                    warn!(seed, %error, "cannot resolve the seed");
                    failing = Some(reason);
                }
                note(unresolved);
            }
        }
        sleep(if shared.is_alone() { ALONE_INTERVAL } else { LINKED_INTERVAL }).await;
    }
}

/// Dials all addresses concurrently.
async fn dial(shared: &HubState, addresses: &[SocketAddr]) -> SeedResult {
    let dials = addresses.iter().map(async |address| {
        let (report, result) = oneshot::channel();
        shared.dial(&address.to_string(), Some(report));
        match timeout(DIAL_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            // The address is being dialled for another reason and has not linked yet.
            Ok(Err(_)) | Err(_) => DialResult::Unreachable,
        }
    });
    let mut found = SeedResult::default();
    for result in join_all(dials).await {
        match result {
            DialResult::Linked => found.linked += 1,
            DialResult::OwnAddress => found.failures.own += 1,
            DialResult::Refused => found.failures.refused += 1,
            DialResult::Slow => found.failures.slow += 1,
            DialResult::Unreachable => found.failures.unreachable += 1,
        }
    }
    found
}

/// The state of the search after this time.
fn summary(all: &[Option<SeedResult>], elapsed: Duration) -> SeedState {
    if all.iter().flatten().any(|found| found.linked > 0) {
        return SeedState::Found;
    }
    let mut failures = SeedFailures::default();
    for found in all {
        let Some(found) = found else { return SeedState::Searching };
        failures.unresolved += found.failures.unresolved;
        failures.unreachable += found.failures.unreachable;
        failures.slow += found.failures.slow;
        failures.refused += found.failures.refused;
        failures.own += found.failures.own;
    }
    if failures.slow > 0 && elapsed < SLOW_MAX { SeedState::Searching } else { SeedState::NotFound(failures) }
}

/// The state of the search for other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedState {
    /// Some seed has not been tried yet.
    Searching,
    /// All seeds were tried, and the last try at each found no other member.
    NotFound(SeedFailures),
    /// Another process of the cluster was found at a seed.
    Found,
}

/// What the seeds yielded instead of members, as numbers of addresses or names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeedFailures {
    /// Names that could not be resolved.
    pub unresolved: usize,
    /// Addresses that did not answer, or not as a member; a process may be there.
    pub unreachable: usize,
    /// Addresses at which a process accepted the connection, and did not complete the handshake in time.
    pub slow: usize,
    /// Addresses that refused connections.
    pub refused: usize,
    /// Addresses of this process.
    pub own: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_seed_delays_bootstrap_for_a_bounded_time() {
        let own = SeedResult { linked: 0, failures: SeedFailures { own: 1, ..SeedFailures::default() } };
        let slow = SeedResult { linked: 0, failures: SeedFailures { slow: 1, ..SeedFailures::default() } };
        let linked = SeedResult { linked: 1, ..own };
        let state = |all: &[SeedResult], elapsed| {
            summary(&all.iter().copied().map(Some).collect::<Vec<_>>(), elapsed)
        };
        let both = SeedFailures { own: 1, slow: 1, ..SeedFailures::default() };
        assert_eq!(state(&[own], Duration::ZERO), SeedState::NotFound(own.failures));
        assert_eq!(state(&[own, slow], SLOW_MAX / 2), SeedState::Searching);
        assert_eq!(state(&[own, slow], SLOW_MAX), SeedState::NotFound(both));
        assert_eq!(state(&[slow, linked], Duration::ZERO), SeedState::Found);
    }
}
