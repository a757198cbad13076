//! Membership: which members are reachable, silent, departed or dead, and when this replica may leave.

use std::time::Duration;

use crate::{
    cluster::{
        MemberId,
        message::{MemberRecord, MemberState, Message},
        node::{Action, Event, Node},
        placement::Placement,
    },
    time::Timestamp,
};

/// The most departed members that are remembered.
const DEPARTED_MAX: usize = 10_000;
/// The most dead members that a recovery query names.
const DEAD_REPORTED_MAX: usize = 100;
/// How long a member that departed by silence is dialled again.
const SILENT_REDIALLED: Duration = Duration::from_secs(24 * 60 * 60);

/// A member that has not departed.
#[derive(Clone, Debug)]
pub(super) struct PeerState {
    pub(super) record: MemberRecord,
    /// Whether there is a session with it.
    pub(super) connected: bool,
    /// Whether it has announced its slots under the same hash secret as this replica.
    pub(super) synced: bool,
    pub(super) heard_at: Timestamp,
    /// Consecutive checks without an answer in time.
    pub(super) consecutive_timeouts: u32,
    /// No checks are forwarded to the peer before this instant.
    pub(super) breaker_open_until: Timestamp,
}

impl PeerState {
    /// A member that was just discovered.
    fn new(record: MemberRecord, now: Timestamp) -> Self {
        Self {
            record,
            connected: false,
            synced: false,
            heard_at: now,
            consecutive_timeouts: 0,
            breaker_open_until: Timestamp::EPOCH,
        }
    }

    /// Whether the member takes slots while it is reachable.
    fn can_receive_slots(&self) -> bool {
        self.synced && self.record.state == MemberState::Serving
    }
}

/// A departed member.
#[derive(Clone, Debug)]
pub(super) struct Departed {
    pub(super) record: MemberRecord,
    pub(super) at: Timestamp,
    pub(super) how: Departure,
    dialled_at: Timestamp,
}

/// How a departure became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// The address refused a connection, or the member said goodbye. Its id never returns.
    Proven,
    /// The member was silent for too long.
    Silent,
}

impl Node {
    /// A session with `peer` has begun.
    pub(crate) fn connected(&mut self, peer: MemberId, address: &str, now: Timestamp) {
        if peer == self.local_id || self.is_dead(peer) {
            return;
        }
        if self.peers.get(&peer).is_some_and(|peer| peer.connected) {
            self.disconnected(peer, false, now);
        }
        self.departed.remove(&peer);
        let record = MemberRecord {
            id: peer,
            address: address.to_owned(),
            state: MemberState::Joining,
            rules: 0,
            changes: 0,
        };
        let known = self.peers.entry(peer).or_insert_with(|| PeerState::new(record, now));
        (known.connected, known.synced, known.heard_at) = (true, false, now);
        self.outbox.remove(&peer);
        self.send_hello(peer);
    }

    /// The session with `peer` has ended; `dead` says whether the process is proven to be dead.
    pub(crate) fn disconnected(&mut self, peer: MemberId, dead: bool, now: Timestamp) {
        let departure = if dead { Departure::Proven } else { Departure::Silent };
        self.mark_departed(peer, departure, now);
    }

    /// `peer` has sent a sign of life.
    pub(crate) fn heard(&mut self, peer: MemberId, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.heard_at = peer.heard_at.max(now);
        }
    }

    /// All seeds were tried. `no_seed_answered` says whether only this process answered.
    pub(crate) fn seeds_tried(&mut self, no_seed_answered: bool) {
        self.no_seed_answered = no_seed_answered;
    }

    /// An operator declares a member dead. Returns whether the member was known.
    pub(crate) fn declare_dead(&mut self, member: MemberId, now: Timestamp) -> bool {
        let known = self.peers.contains_key(&member) || self.departed.contains_key(&member);
        if known {
            self.departed.remove(&member);
            self.mark_departed(member, Departure::Proven, now);
        }
        known
    }

    /// Sets the hash of the active rules.
    pub(crate) fn rules_changed(&mut self, rules: u64) {
        if self.record.rules != rules {
            self.record.rules = rules;
            self.announce_record();
        }
    }

    /// Begins to hand off every slot.
    pub(crate) fn drain(&mut self, now: Timestamp) {
        if self.draining_since.is_none() {
            self.draining_since = Some(now);
            // A replica that is still joining knows no owners, and stays in that state.
            if self.record.state == MemberState::Serving {
                self.record.state = MemberState::Draining;
                self.announce_record();
            }
            self.return_grants(now);
            self.update_placement(now);
        }
    }

    /// Whether `member` has departed, or was never known here.
    pub(super) fn is_departed(&self, member: MemberId) -> bool {
        member != self.local_id && !self.peers.contains_key(&member)
    }

    pub(super) fn is_dead(&self, member: MemberId) -> bool {
        self.departed.get(&member).is_some_and(|departed| departed.how == Departure::Proven)
    }

    /// The members most recently proven dead.
    pub(super) fn dead_members(&self) -> Vec<MemberId> {
        // Only the most recent ones matter to a recovery.
        let dead = self
            .departed
            .iter()
            .filter(|(_, departed)| departed.how == Departure::Proven)
            .map(|(id, departed)| (departed.at, *id));
        let mut dead: Vec<_> = dead.collect();
        dead.sort_unstable();
        dead.into_iter().rev().take(DEAD_REPORTED_MAX).map(|(_, id)| id).collect()
    }

    /// Whether there is a session with `peer` and the peer is not silent.
    pub(super) fn is_reachable(&self, peer: MemberId, now: Timestamp) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.connected && self.is_alive(peer, now))
    }

    pub(super) fn is_alive(&self, peer: &PeerState, now: Timestamp) -> bool {
        now.since(peer.heard_at) <= self.settings.silence
    }

    pub(super) fn update_record(&mut self, record: MemberRecord, now: Timestamp) {
        let id = record.id;
        if id == self.local_id || self.departed.contains_key(&id) {
            return;
        }
        match self.peers.get_mut(&id) {
            Some(peer) => {
                if peer.record.changes < record.changes {
                    peer.record = record;
                    self.update_placement(now);
                }
            }
            None => {
                self.actions.push(Action::Dial(record.address.clone()));
                self.peers.insert(id, PeerState::new(record, now));
            }
        }
    }

    /// Whether `peer` has announced its slots under our hash secret. What it says about slots before that belongs to
    /// another cluster.
    pub(super) fn is_synced(&self, peer: MemberId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.synced)
    }

    pub(super) fn announce_record(&mut self) {
        self.record.changes += 1;
        let record = self.record.clone();
        self.broadcast(&Message::Member(record));
    }

    /// Computes the placement from the members that are reachable and serve. A silent member can neither receive a slot
    /// nor keep a backup.
    pub(super) fn update_placement(&mut self, now: Timestamp) {
        let mut members: Vec<MemberId> = self
            .peers
            .values()
            .filter(|peer| peer.can_receive_slots() && self.is_alive(peer, now))
            .map(|peer| peer.record.id)
            .collect();
        members.extend((self.record.state == MemberState::Serving).then_some(self.local_id));
        members.sort_unstable();
        if members != self.placement.members() {
            self.placement = Placement::of(members, self.slots.len());
            self.slots_dirty = true;
        }
    }

    /// Detects silence, departures and isolation.
    pub(super) fn check_peers(&mut self, now: Timestamp) {
        let forget_after = self.settings.forget_after;
        let too_silent = |peer: &&PeerState| now.since(peer.heard_at) > forget_after;
        let silent: Vec<MemberId> =
            self.peers.values().filter(too_silent).map(|peer| peer.record.id).collect();
        for peer in silent {
            self.mark_departed(peer, Departure::Silent, now);
        }
        self.redial_silent(now);
        self.update_isolation(now);
        self.update_placement(now);
    }

    /// A member that departed by silence may return at the same address.
    fn redial_silent(&mut self, now: Timestamp) {
        let every = self.settings.forget_after / 6;
        for departed in self.departed.values_mut() {
            if departed.how == Departure::Silent
                && now.since(departed.dialled_at) >= every
                && now.since(departed.at) < SILENT_REDIALLED
            {
                departed.dialled_at = now;
                self.actions.push(Action::Dial(departed.record.address.clone()));
            }
        }
    }

    /// A replica that reaches no more than half of its last healthy view does not trust its counters. Of two equal
    /// halves, the one with the smallest member id continues.
    fn update_isolation(&mut self, now: Timestamp) {
        if self.record.state != MemberState::Joining {
            self.healthy.insert(self.local_id);
        }
        let is_counted = |peer: &&PeerState| {
            peer.synced && peer.record.state != MemberState::Joining && self.is_alive(peer, now)
        };
        let heard: Vec<MemberId> =
            self.peers.values().filter(is_counted).map(|peer| peer.record.id).collect();
        let is_present = |id: &&MemberId| **id == self.local_id || heard.contains(id);
        let present = self.healthy.iter().filter(is_present).count();
        let first = self.healthy.first().is_none_or(|first| is_present(&first));
        let all = self.healthy.len();
        let isolated = 2 * present < all || (2 * present == all && !first);
        if !isolated {
            self.healthy.extend(heard);
            // Departed members leave the view while a majority of it is reachable.
            let departed = &self.departed;
            self.healthy.retain(|id| !departed.contains_key(id));
        }
        if self.isolated != isolated {
            self.isolated = isolated;
            self.memory.set_suspended(isolated);
            let event = if isolated { Event::Isolated } else { Event::IsolationEnded };
            self.actions.push(Action::Report(event));
            self.stats.isolations += u64::from(isolated);
        }
    }

    /// Treats `member` as departed.
    pub(super) fn mark_departed(&mut self, member: MemberId, departure: Departure, now: Timestamp) {
        if member == self.local_id || self.is_dead(member) {
            return;
        }
        let record = match self.peers.remove(&member) {
            Some(peer) => peer.record,
            None if departure == Departure::Silent => return,
            None => MemberRecord {
                id: member,
                address: String::new(),
                state: MemberState::Joining,
                rules: 0,
                changes: 0,
            },
        };
        self.outbox.remove(&member);
        self.departed.insert(member, Departed { record, at: now, how: departure, dialled_at: now });
        if self.departed.len() > DEPARTED_MAX {
            let oldest = self.departed.iter().min_by_key(|(_, departed)| departed.at).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.departed.remove(&oldest));
        }
        if departure == Departure::Proven {
            self.healthy.remove(&member);
        }
        self.slots_dirty = true;
        self.actions.push(Action::Disconnect(member));
        self.stats.members_lost += 1;
        self.recover_hand_offs_to(member, now);
        self.stop_waiting_for(member, now);
        self.owner_departed(member, now);
        self.borrower_departed(member, departure, now);
        self.reroute_forwards(member, now);
        self.update_placement(now);
    }

    /// Leaves once every slot is handed off and no other member needs the copies here.
    pub(super) fn leave_when_done(&mut self, now: Timestamp) {
        if self.is_drained(now) {
            self.actions.push(Action::Leave);
        }
    }

    /// Whether every slot is handed off, no other member needs the copies here and no peer waits for a reply.
    pub(crate) fn is_drained(&self, now: Timestamp) -> bool {
        let Some(since) = self.draining_since else { return false };
        let has_receivers = self.peers.values().any(PeerState::can_receive_slots);
        let is_last_copy = |slot| {
            let state = self.slot(slot);
            let has_live_owner = state
                .owner
                .is_some_and(|owner| !self.is_departed(owner.member) && owner.member != self.local_id);
            state.copy.is_some() && !has_live_owner
        };
        let owns_slots = self.all_slots().any(|slot| self.slot(slot).ownership.is_some());
        let busy = self.forwarding.has_peer_checks() || !self.hand_offs.is_empty();
        let needed = has_receivers && (owns_slots || self.all_slots().any(is_last_copy));
        !busy && !needed && now.since(since) > self.settings.silence
    }
}
