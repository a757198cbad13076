//! Discovery at seeds: resolves the names periodically and dials every address behind them.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    net::lookup_host,
    sync::oneshot,
    time::{sleep, timeout},
};
use tollgate_counter::{lock::lock, time::Stopwatch};
use tracing::{info, warn};

use crate::link::{
    addresses::{DialResult, SeedState},
    links::Links,
};

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

/// Searches at all seeds until it is dropped.
pub(super) async fn watch(links: Arc<Links>) {
    let since = Stopwatch::start();
    let all = Mutex::new(vec![SeedState::Searching; links.settings.seeds.len()]);
    let publish = |all: &[SeedState]| *lock(&links.seeds) = summary(all, since.elapsed());
    publish(&lock(&all));
    let seeds = links.settings.seeds.iter().enumerate();
    join_all(seeds.map(|(index, seed)| {
        let (links, all, publish) = (&links, &all, &publish);
        watch_one(links, seed, move |found| {
            let mut all = lock(all);
            all[index] = found;
            publish(&all);
        })
    }))
    .await;
    // Without seeds the loop above ends at once.
    std::future::pending().await
}

/// Searches at one seed, and passes the result of each try to `note`.
async fn watch_one(links: &Links, seed: &str, note: impl Fn(SeedState)) {
    let mut failing: Option<String> = None;
    loop {
        // A slow lookup is awaited, not dropped: the resolver's thread would go on, and another would start
        // concurrently.
        let mut lookup = pin!(lookup_host(seed));
        let resolved = match timeout(LOOKUP_TIMEOUT, lookup.as_mut()).await {
            Ok(resolved) => resolved,
            Err(_) => {
                note(SeedState::NotFound);
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
                note(dial(links, &addresses).await);
            }
            Err(error) => {
                let reason = error.to_string();
                if failing.as_ref() != Some(&reason) {
                    warn!(seed, %error, "cannot resolve the seed");
                    failing = Some(reason);
                }
                note(SeedState::NotFound);
            }
        }
        sleep(if links.local.peers() == 0 { ALONE_INTERVAL } else { LINKED_INTERVAL }).await;
    }
}

/// Dials all addresses concurrently.
async fn dial(links: &Links, addresses: &[SocketAddr]) -> SeedState {
    let dials = addresses.iter().map(async |address| {
        let (report, result) = oneshot::channel();
        links.dial_reporting(&address.to_string(), Some(report));
        match timeout(DIAL_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            // The address is being dialled for another reason and has not linked yet.
            Ok(Err(_)) | Err(_) => DialResult::Unreachable,
        }
    });
    let results = join_all(dials).await;
    let found = results.into_iter().map(|result| match result {
        DialResult::Linked(_) => SeedState::Found,
        DialResult::Slow => SeedState::Slow,
        DialResult::OwnAddress
        | DialResult::Refused
        | DialResult::OtherMember
        | DialResult::Unreachable
        | DialResult::Duplicate
        | DialResult::SessionEnded => SeedState::NotFound,
    });
    found.max().unwrap_or(SeedState::NotFound)
}

/// The state of the search at all seeds after this time.
fn summary(all: &[SeedState], elapsed: Duration) -> SeedState {
    match all.iter().copied().max().unwrap_or(SeedState::NotFound) {
        SeedState::Slow if elapsed < SLOW_MAX => SeedState::Searching,
        SeedState::Slow | SeedState::NotFound => SeedState::NotFound,
        SeedState::Searching => SeedState::Searching,
        SeedState::Found => SeedState::Found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_seed_delays_bootstrap_for_a_bounded_time() {
        use SeedState::{Found, NotFound, Searching, Slow};
        assert_eq!(summary(&[NotFound], Duration::ZERO), NotFound);
        assert_eq!(summary(&[NotFound, Searching], SLOW_MAX), Searching);
        assert_eq!(summary(&[NotFound, Slow], SLOW_MAX / 2), Searching);
        assert_eq!(summary(&[NotFound, Slow], SLOW_MAX), NotFound);
        assert_eq!(summary(&[Slow, Found], Duration::ZERO), Found);
    }
}
