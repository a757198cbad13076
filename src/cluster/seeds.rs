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

use crate::cluster::link::{Shared, Tried};

/// How often names are looked up while nobody has been met, and afterwards.
const ALONE_EVERY: Duration = Duration::from_secs(1);
const LINKED_EVERY: Duration = Duration::from_secs(5);
/// How long a name may take before it counts as not found for now.
const LOOKUP_WITHIN: Duration = Duration::from_secs(2);
/// How long an address may take before it counts as silent; what dials it gives up sooner.
const DIALLED_WITHIN: Duration = Duration::from_secs(6);
/// The most addresses of one name.
const ADDRESSES_MAX: usize = 256;

/// How far the search for others is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedState {
    /// Some seed has not been tried yet.
    Trying,
    /// All seeds have been tried, and nobody else was met at any of them when it was tried last.
    InVain(Vain),
    /// Another process of the cluster has been met at a seed.
    Met,
}

/// What was found at seeds instead of others: how many addresses, or names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vain {
    /// Names that could not be resolved.
    pub unresolved: usize,
    /// Addresses that have not answered, or not as a member does; somebody may be there.
    pub silent: usize,
    /// Addresses where nobody is.
    pub refused: usize,
    /// Addresses that are this process.
    pub ourselves: usize,
}

/// What was found at one seed when it was tried last.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    met: usize,
    vain: Vain,
}

/// Looks for others at all seeds, for as long as it is polled.
pub(in crate::cluster) async fn follow(shared: Arc<Shared>) {
    let all = Mutex::new(vec![None; shared.seeds().len()]);
    publish(&shared, &all);
    let seeds = shared.seeds().iter().enumerate();
    join_all(seeds.map(|(index, seed)| follow_one(&shared, index, seed, &all))).await;
    // Without seeds there is nothing to do.
    std::future::pending().await
}

async fn follow_one(shared: &Shared, index: usize, seed: &str, all: &Mutex<Vec<Option<Found>>>) {
    let mut failing: Option<String> = None;
    let note = |found| {
        all.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(found);
        publish(shared, all);
    };
    loop {
        let unresolved = Found { met: 0, vain: Vain { unresolved: 1, ..Vain::default() } };
        // It is not given up when it takes long: the system would go on, and a second one be begun beside it.
        let mut lookup = pin!(lookup_host(seed));
        let resolved = match timeout(LOOKUP_WITHIN, lookup.as_mut()).await {
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
        sleep(if shared.is_alone() { ALONE_EVERY } else { LINKED_EVERY }).await;
    }
}

/// Dials every address, side by side.
async fn dial(shared: &Shared, addresses: &[SocketAddr]) -> Found {
    let dialled = addresses.iter().map(async |address| {
        let (report, tried) = oneshot::channel();
        shared.dial(&address.to_string(), Some(report));
        match timeout(DIALLED_WITHIN, tried).await {
            Ok(Ok(tried)) => tried,
            // Somebody else dials it, and has not met anybody yet.
            Ok(Err(_)) | Err(_) => Tried::Silent,
        }
    });
    let mut found = Found::default();
    for tried in join_all(dialled).await {
        match tried {
            Tried::Met => found.met += 1,
            Tried::Ourselves => found.vain.ourselves += 1,
            Tried::Refused => found.vain.refused += 1,
            Tried::Silent => found.vain.silent += 1,
        }
    }
    found
}

fn publish(shared: &Shared, all: &Mutex<Vec<Option<Found>>>) {
    let state = summary(&all.lock().unwrap_or_else(PoisonError::into_inner));
    shared.set_seeds(state);
}

fn summary(all: &[Option<Found>]) -> SeedState {
    if all.iter().flatten().any(|found| 0 < found.met) {
        return SeedState::Met;
    }
    let mut vain = Vain::default();
    for found in all {
        let Some(found) = found else { return SeedState::Trying };
        vain.unresolved += found.vain.unresolved;
        vain.silent += found.vain.silent;
        vain.refused += found.vain.refused;
        vain.ourselves += found.vain.ourselves;
    }
    SeedState::InVain(vain)
}
