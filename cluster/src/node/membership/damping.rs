//! A bound on how often silence alone changes the placement. On a busy machine members are silent by turns, and each
//! change of the placement costs time and moves backups and slots, which makes more of them silent.
//!
//! Joins, leaves and departures change the placement at once, so a dead member is replaced as soon as without the bound.

use std::time::Duration;

use tollgate_counter::time::Timestamp;

use crate::node::membership::peer::PeerMember;

/// The pause after the first change by silence. It doubles with each further change.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause. After twice this time without a change, the next pause is the shortest again.
const PAUSE_MAX: Duration = Duration::from_secs(16);

/// When silence may change the placement again.
#[derive(Debug, Default)]
pub(super) struct Damping {
    paused_until: Timestamp,
    pause: Duration,
    is_held_back: bool,
    held_back: u64,
}

impl Damping {
    /// Leaves the members out that are silent, and takes the others in, unless silence has changed that lately.
    pub(super) fn leave_out<'p>(
        &mut self,
        peers: impl Iterator<Item = &'p mut PeerMember>,
        silence: Duration,
        now: Timestamp,
    ) {
        let is_silent = |peer: &PeerMember| now.since(peer.heard_at) > silence;
        let changed: Vec<&mut PeerMember> =
            peers.filter(|peer| peer.is_left_out != is_silent(peer)).collect();
        // The placement does not have the others in any case.
        if !changed.iter().any(|peer| peer.can_receive_slots()) {
            self.is_held_back = false;
        } else if now < self.paused_until {
            self.held_back += u64::from(!self.is_held_back);
            self.is_held_back = true;
            return;
        } else {
            let is_quiet = now.since(self.paused_until) > 2 * PAUSE_MAX;
            self.pause = if is_quiet { PAUSE_MIN } else { (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX) };
            (self.paused_until, self.is_held_back) = (now.after(self.pause), false);
        }
        changed.into_iter().for_each(|peer| peer.is_left_out = !peer.is_left_out);
    }

    /// How many changes were held back since the last call.
    pub(super) fn take_held_back(&mut self) -> u64 {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        member::MemberId,
        message::{MemberRecord, MemberState},
    };

    const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000);
    const SILENCE: Duration = Duration::from_secs(1);

    fn peers(number: u64) -> Vec<PeerMember> {
        let record = |id| MemberRecord {
            state: MemberState::Serving,
            ..MemberRecord::joining(MemberId::from_number(id), String::new())
        };
        (1..=number).map(|id| PeerMember { synced: true, ..PeerMember::new(record(id), START) }).collect()
    }

    #[test]
    fn first_silence_is_left_out_at_once_and_taken_in_again() {
        let mut damping = Damping::default();
        let mut peers = peers(3);
        let now = START.after(Duration::from_millis(1_001));
        peers[1].heard_at = now;
        damping.leave_out(peers.iter_mut(), SILENCE, now);
        assert_eq!(peers.iter().map(|peer| peer.is_left_out).collect::<Vec<_>>(), [true, false, true]);
        let heard = now.after(Duration::from_secs(3));
        peers.iter_mut().for_each(|peer| peer.heard_at = heard);
        damping.leave_out(peers.iter_mut(), SILENCE, heard);
        assert!(peers.iter().all(|peer| !peer.is_left_out));
        assert_eq!(damping.take_held_back(), 0);
    }

    #[test]
    fn members_silent_by_turns_change_the_placement_seldom() {
        let mut damping = Damping::default();
        let mut peers = peers(70);
        let mut changes = 0;
        let mut left_out = Vec::new();
        for step in 0..60_000_u64 {
            let now = START.after(Duration::from_millis(10 * step));
            // Each is silent for a second of each four, at another time.
            for (number, peer) in peers.iter_mut().enumerate() {
                if !(10 * step + 57 * number as u64).is_multiple_of(4_000) {
                    let since = (10 * step + 57 * number as u64) % 4_000;
                    peer.heard_at = if since < 2_000 { now } else { peer.heard_at };
                }
            }
            damping.leave_out(peers.iter_mut(), SILENCE, now);
            let now_left_out: Vec<bool> = peers.iter().map(|peer| peer.is_left_out).collect();
            changes += u32::from(now_left_out != left_out);
            left_out = now_left_out;
        }
        assert!((600 / 16..600 / 16 + 10).contains(&changes), "{changes} changes in ten minutes");
        assert!(damping.take_held_back() > 0);
    }
}
