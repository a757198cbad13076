//! Where others may be: names that are looked up again and again, and every address behind them dialled.

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

/// How often names are looked up while nobody has been linked, and afterwards.
const ALONE_INTERVAL: Duration = Duration::from_secs(1);
const LINKED_INTERVAL: Duration = Duration::from_secs(5);
/// How long a name may take before it counts as not found for now.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an address may take before it counts as unreachable; what dials it gives up sooner.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
/// The most addresses of one name.
const ADDRESSES_MAX: usize = 256;

/// How far the search for others is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedState {
    /// Some seed has not been result yet.
    Searching,
    /// All seeds have been result, and nobody else was linked at any of them when it was result last.
    NotFound(SeedFailures),
    /// Another process of the cluster has been linked at a seed.
    Found,
}

/// What was found at seeds instead of others: how many addresses, or names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeedFailures {
    /// Names that could not be resolved.
    pub unresolved: usize,
    /// Addresses that have not answered, or not as a member does; somebody may be there.
    pub unreachable: usize,
    /// Addresses where nobody is.
    pub refused: usize,
    /// Addresses that are this process.
    pub own: usize,
}

/// What was found at one seed when it was result last.
#[derive(Clone, Copy, Debug, Default)]
struct SeedResult {
    linked: usize,
    failures: SeedFailures,
}

/// Looks for others at all seeds, for as long as it is polled.
pub(in crate::cluster) async fn watch(shared: Arc<Shared>) {
    let all = Mutex::new(vec![None; shared.seeds().len()]);
    publish(&shared, &all);
    let seeds = shared.seeds().iter().enumerate();
    join_all(seeds.map(|(index, seed)| watch_one(&shared, index, seed, &all))).await;
    // Without seeds there is nothing to do.
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
        // It is not given up when it takes long: the system would go on, and a second one be begun beside it.
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
                    info!(seed, "the seed can be resolved again");
                }
                let mut addresses: Vec<_> = addresses.take(ADDRESSES_MAX).collect();
                addresses.sort_unstable();
                addresses.dedup();
                note(dial(shared, &addresses).await);
            }
            Err(error) => {
                let why = error.to_string();
                if failing.as_ref() != Some(&why) {
                    warn!(seed, %error, "the seed cannot be resolved");
                    failing = Some(why);
                }
                note(unresolved);
            }
        }
        sleep(if shared.is_alone() { ALONE_INTERVAL } else { LINKED_INTERVAL }).await;
    }
}

/// Dials every address, side by side.
async fn dial(shared: &Shared, addresses: &[SocketAddr]) -> SeedResult {
    let dials = addresses.iter().map(async |address| {
        let (report, result) = oneshot::channel();
        shared.dial(&address.to_string(), Some(report));
        match timeout(DIAL_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            // Somebody else dials it, and has not linked anybody yet.
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
