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
    addresses::{DialResult, SeedFailures, SeedState},
    hub::Hub,
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
pub(super) async fn watch(hub: Arc<Hub>) {
    let since = Stopwatch::start();
    let all = Mutex::new(vec![SeedState::Searching; hub.settings.seeds.len()]);
    let publish = |all: &[SeedState]| *lock(&hub.seeds) = summary(all, since.elapsed());
    publish(&lock(&all));
    let seeds = hub.settings.seeds.iter().enumerate();
    join_all(seeds.map(|(index, seed)| {
        let (hub, all, publish) = (&hub, &all, &publish);
        watch_one(hub, seed, move |found| {
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
async fn watch_one(hub: &Hub, seed: &str, note: impl Fn(SeedState)) {
    let mut failing: Option<String> = None;
    let unresolved = SeedState::NotFound(SeedFailures { unresolved: 1, ..SeedFailures::default() });
    loop {
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
                note(dial(hub, &addresses).await);
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
        sleep(if hub.local.peers() == 0 { ALONE_INTERVAL } else { LINKED_INTERVAL }).await;
    }
}

/// Dials all addresses concurrently.
async fn dial(hub: &Hub, addresses: &[SocketAddr]) -> SeedState {
    let dials = addresses.iter().map(async |address| {
        let (report, result) = oneshot::channel();
        hub.dial(&address.to_string(), Some(report));
        match timeout(DIAL_TIMEOUT, result).await {
            Ok(Ok(result)) => result,
            // The address is being dialled for another reason and has not linked yet.
            Ok(Err(_)) | Err(_) => DialResult::Unreachable,
        }
    });
    let results = join_all(dials).await;
    if results.iter().any(|result| matches!(result, DialResult::Linked(_))) {
        return SeedState::Found;
    }
    let mut failures = SeedFailures::default();
    for result in results {
        match result {
            DialResult::OwnAddress => failures.own += 1,
            DialResult::Refused => failures.refused += 1,
            DialResult::Slow => failures.slow += 1,
            DialResult::OtherMember
            | DialResult::Unreachable
            | DialResult::Duplicate
            | DialResult::SessionEnded
            | DialResult::Linked(_) => failures.unreachable += 1,
        }
    }
    SeedState::NotFound(failures)
}

/// The state of the search at all seeds after this time.
fn summary(all: &[SeedState], elapsed: Duration) -> SeedState {
    if all.contains(&SeedState::Found) {
        return SeedState::Found;
    }
    let mut failures = SeedFailures::default();
    for state in all {
        let SeedState::NotFound(found) = state else { return SeedState::Searching };
        failures.unresolved += found.unresolved;
        failures.unreachable += found.unreachable;
        failures.slow += found.slow;
        failures.refused += found.refused;
        failures.own += found.own;
    }
    if failures.slow > 0 && elapsed < SLOW_MAX { SeedState::Searching } else { SeedState::NotFound(failures) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_seed_delays_bootstrap_for_a_bounded_time() {
        let both = SeedFailures { own: 1, slow: 1, ..SeedFailures::default() };
        let [own, slow] =
            [SeedFailures { slow: 0, ..both }, SeedFailures { own: 0, ..both }].map(SeedState::NotFound);
        assert_eq!(summary(&[own], Duration::ZERO), own);
        assert_eq!(summary(&[own, SeedState::Searching], SLOW_MAX), SeedState::Searching);
        assert_eq!(summary(&[own, slow], SLOW_MAX / 2), SeedState::Searching);
        assert_eq!(summary(&[own, slow], SLOW_MAX), SeedState::NotFound(both));
        assert_eq!(summary(&[slow, SeedState::Found], Duration::ZERO), SeedState::Found);
    }
}
