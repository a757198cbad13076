//! When links write heartbeats and their liveness is checked: at the same ticks for many links, so that one wake-up
//! serves them. Replicas with the same time tick together, so that one wake-up also serves what arrives.

use std::time::Duration;

use tollgate_counter::time::Timestamp;

use crate::member::MemberId;

/// The interval of the ticks of a link with few peers, and with many. A link writes a heartbeat at each of them. A peer
/// counts as silent after a second, so one heartbeat may be late by 500 ms.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_millis(500);
/// With more peers than these the interval grows with their number.
const PEERS_OF_INTERVAL_MIN: u32 = 16;
/// The links are divided into groups, one for each of these in an interval, so that no group takes the thread for long.
const GROUP_INTERVAL: Duration = Duration::from_millis(100);

/// The time between two ticks of a link while there are so many peers.
pub(crate) fn interval(peers: usize) -> Duration {
    let peers = u32::try_from(peers).unwrap_or(u32::MAX);
    let interval = INTERVAL_MIN.saturating_mul(peers) / PEERS_OF_INTERVAL_MIN;
    GROUP_INTERVAL * groups(interval.clamp(INTERVAL_MIN, INTERVAL_MAX))
}

fn groups(interval: Duration) -> u32 {
    (interval.as_millis() / GROUP_INTERVAL.as_millis()) as u32
}

/// The time until the first tick of the group of a link that is at least half an interval after `now`. Both sides have the same group.
pub(super) fn next_tick(now: Timestamp, local: MemberId, peer: MemberId, peers: usize) -> Duration {
    let interval = interval(peers);
    let both = local.number().wrapping_add(peer.number());
    let group = (both % u64::from(groups(interval))) as u32;
    now.before(GROUP_INTERVAL * group).until_tick(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_a_group_coincide_and_are_an_interval_apart() {
        let now = Timestamp::from_nanos(1_700_000_012_345_678_900);
        let local = MemberId::from_number(7);
        for (peers, interval) in [(1, 200), (16, 200), (24, 300), (200, 500)] {
            let interval = Duration::from_millis(interval);
            for number in 0..4 {
                let next = |now, number| next_tick(now, local, MemberId::from_number(number), peers);
                let first = next(now, number);
                assert_eq!(super::interval(peers), interval);
                assert!(interval / 2 <= first && first < interval * 3 / 2);
                let at = now.after(first);
                assert_eq!(at.as_nanos() % 100_000_000, 0);
                assert_eq!(next(at.before(interval / 2), number + 30), interval / 2);
                assert_eq!(next(at, number), interval);
                let late = at.after(interval * 10 + Duration::from_millis(1));
                assert_eq!(late.after(next(late, number)), at.after(interval * 11));
                let other_side = next_tick(now, MemberId::from_number(number), local, peers);
                assert_eq!(other_side, first);
            }
        }
    }
}
