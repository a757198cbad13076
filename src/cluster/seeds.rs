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
use tracing::{info, warn};

use crate::cluster::link::{DialResult, Shared};

/// Interval of the lookups while no other member is known, and afterwards.
const ALONE_INTERVAL: Duration = Duration::from_secs(1);
const LINKED_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a lookup in progress counts the name as unresolved for now.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a dial in progress counts the address as unreachable; the dial itself ends sooner.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
/// The most addresses that are dialled for one name.
const ADDRESSES_MAX: usize = 256;

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
    /// Addresses that refused connections.
    pub refused: usize,
    /// Addresses of this process.
    pub own: usize,
}

/// The result of the last try at one seed.
#[derive(Clone, Copy, Debug, Default)]
struct SeedResult {
    linked: usize,
    failures: SeedFailures,
}

/// Searches at all seeds until it is dropped.
pub(in crate::cluster) async fn watch(shared: Arc<Shared>) {
    let all = Mutex::new(vec![None; shared.seeds().len()]);
    publish(&shared, &all);
    let seeds = shared.seeds().iter().enumerate();
    join_all(seeds.map(|(index, seed)| watch_one(&shared, index, seed, &all))).await;
    // Without seeds the loop above ends at once.
    std::future::pending().await
}

async fn watch_one(shared: &Shared, index: usize, seed: &str, all: &Mutex<Vec<Option<SeedResult>>>) {
    let mut failing: Option<String> = None;
    let note = |found| {
        all.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(found);
        publish(shared, all);
    };
    loop {
        let unresolved =
            SeedResult { linked: 0, failures: SeedFailures { unresolved: 1, ..SeedFailures::default() } };
        // A slow lookup is awaited, not dropped: the resolver's thread would go on, and another would start beside it.
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
async fn dial(shared: &Shared, addresses: &[SocketAddr]) -> SeedResult {
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
            DialResult::Unreachable => found.failures.unreachable += 1,
        }
    }
    found
}

fn publish(shared: &Shared, all: &Mutex<Vec<Option<SeedResult>>>) {
    let state = summary(&all.lock().unwrap_or_else(PoisonError::into_inner));
    shared.set_seeds(state);
}

fn summary(all: &[Option<SeedResult>]) -> SeedState {
    if all.iter().flatten().any(|found| found.linked > 0) {
        return SeedState::Found;
    }
    let mut failures = SeedFailures::default();
    for found in all {
        let Some(found) = found else { return SeedState::Searching };
        failures.unresolved += found.failures.unresolved;
        failures.unreachable += found.failures.unreachable;
        failures.refused += found.failures.refused;
        failures.own += found.failures.own;
    }
    SeedState::NotFound(failures)
}
