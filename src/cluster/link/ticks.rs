//! When the liveness of links is checked: by the same ticks for many links, so that one wake-up serves them.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::MemberId;

/// The interval of the checks of a link with few peers, and with many. A link that wrote nothing between two of them
/// writes a heartbeat, so an idle link writes one every second tick. A peer counts as silent after a second, so one
/// heartbeat may be late by 600 ms.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_millis(200);
/// With more peers than these the interval grows with their number.
const PEERS_OF_INTERVAL_MIN: u32 = 16;
/// The links are divided into so many groups with the same ticks, so that no group takes the thread for long.
const GROUPS: u32 = 4;

/// The ticks of all links.
pub(super) struct Ticks {
    started: Instant,
}

/// The next tick of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextTick {
    pub(super) at: Instant,
    /// The time between two ticks.
    pub(super) interval: Duration,
}

impl Ticks {
    pub(super) fn starting_now() -> Self {
        Self { started: Instant::now() }
    }

    /// The next tick of the link of `peer` while there are so many peers.
    pub(super) fn next(&self, peer: MemberId, peers: usize) -> NextTick {
        next_tick(self.started, Instant::now(), peer, peers)
    }
}

/// The time between two ticks of a link while there are so many peers.
pub(in crate::cluster) fn interval(peers: usize) -> Duration {
    let peers = u32::try_from(peers).unwrap_or(u32::MAX);
    let interval = INTERVAL_MIN.saturating_mul(peers) / PEERS_OF_INTERVAL_MIN;
    interval.clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// The first tick of the group of `peer` that is at least half an interval after `now`.
fn next_tick(started: Instant, now: Instant, peer: MemberId, peers: usize) -> NextTick {
    let interval = interval(peers);
    let group = (peer.number() % u64::from(GROUPS)) as u32;
    let offset = interval / GROUPS * group;
    let earliest = (now - started + interval / 2).as_nanos();
    let passed = earliest.saturating_sub(offset.as_nanos()).div_ceil(interval.as_nanos());
    let passed = u32::try_from(passed).unwrap_or(u32::MAX);
    NextTick { at: started + offset + interval.saturating_mul(passed), interval }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_a_group_coincide_and_are_an_interval_apart() {
        let started = Instant::now();
        for (peers, interval) in [(1, 100), (16, 100), (24, 150), (200, 200)] {
            let interval = Duration::from_millis(interval);
            for peer in 0..GROUPS.into() {
                let next = |now, peer| next_tick(started, now, MemberId::from_number(peer), peers);
                let first = next(started + Duration::from_millis(12_345), peer);
                assert_eq!(first.interval, interval);
                assert_eq!(next(first.at - interval / 2, peer + u64::from(GROUPS)), first);
                assert_eq!(next(first.at, peer).at, first.at + interval);
                let late = first.at + interval * 10 + Duration::from_millis(1);
                assert_eq!(next(late, peer).at, first.at + interval * 11);
            }
        }
    }
}
