//! Membership: which members are reachable, silent, departed or dead, and the placement of slots that follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tollgate_counter::time::Timestamp;
use tollgate_store::Slot;

use crate::{
    member::{Departure, MemberId},
    message::{MemberRecord, MemberState, Message},
    node::output::{NodeAction, NodeOutput},
    placement::Placement,
    tuning::NodeSettings,
};

mod damping;
pub(crate) mod departures;
pub(crate) mod peer;

pub use departures::MemberDeparture;
pub(super) use peer::{PeerMember, PeerStatus, status};

use damping::Damping;
use departures::Departures;
use peer::status_interval;

/// The members that this replica knows, and its own record.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) local: MemberRecord,
    settings: NodeSettings,
    slots: usize,
    draining_since: Option<Timestamp>,
    peers: BTreeMap<MemberId, PeerMember>,
    pub(super) departures: Departures,
    /// The members of the last view in which a majority was reachable.
    healthy: BTreeSet<MemberId>,
    isolated: bool,
    pub(super) placement: Placement,
    status_at: Timestamp,
    /// Slots may have to move because of the members, since the last tick.
    pub(super) has_changed: bool,
    /// Whether a peer was silent at the last tick.
    has_silent: bool,
    damping: Damping,
}

impl Membership {
    /// The membership of a replica that joins and knows no other member.
    pub(super) fn new(local_id: MemberId, address: String, settings: NodeSettings, slots: usize) -> Self {
        Self {
            local: MemberRecord::joining(local_id, address),
            settings,
            slots,
            draining_since: None,
            peers: BTreeMap::new(),
            departures: Departures::default(),
            healthy: BTreeSet::new(),
            isolated: false,
            placement: Placement::default(),
            status_at: Timestamp::EPOCH,
            has_changed: true,
            has_silent: false,
            damping: Damping::default(),
        }
    }

    pub(super) fn local_id(&self) -> MemberId {
        self.local.id
    }

    /// Sets the state of this replica and announces it.
    pub(super) fn set_state(&mut self, state: MemberState, out: &mut NodeOutput) {
        self.local.state = state;
        self.announce(out);
    }

    /// Sets the hash of the active rules and announces it.
    pub(super) fn set_rules(&mut self, rules: u64, out: &mut NodeOutput) {
        if std::mem::replace(&mut self.local.rules, rules) != rules {
            self.announce(out);
        }
    }

    fn announce(&mut self, out: &mut NodeOutput) {
        self.local.changes += 1;
        out.broadcast(&Message::Member(self.local.clone()));
    }

    /// Begins to drain. False if this replica drains already.
    pub(super) fn drain(&mut self, now: Timestamp, out: &mut NodeOutput) -> bool {
        if self.draining_since.is_some() {
            return false;
        }
        self.draining_since = Some(now);
        // A replica that is still joining knows no owners, and stays in that state.
        if self.local.state == MemberState::Serving {
            self.set_state(MemberState::Draining, out);
        }
        self.update_placement(now);
        true
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining_since.is_some()
    }

    /// Whether this replica has been draining for so long that every member knows it.
    pub(super) fn has_drained_long(&self, now: Timestamp) -> bool {
        self.draining_since.is_some_and(|since| now.since(since) > self.settings.silence)
    }

    /// A session with `peer` has begun.
    pub(super) fn connect(&mut self, peer: MemberId, address: &str, now: Timestamp) {
        self.departures.forget(peer);
        let new = || PeerMember::new(MemberRecord::joining(peer, address.to_owned()), now);
        let known = self.peers.entry(peer).or_insert_with(new);
        *known = PeerMember { connected: true, ..PeerMember::new(known.record.clone(), now) };
    }

    /// `peer` has sent a sign of life.
    pub(super) fn heard(&mut self, peer: MemberId, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.heard_at = peer.heard_at.max(now);
        }
    }

    /// `peer` has said its version and its time.
    pub(super) fn set_status(&mut self, peer: MemberId, program: &str, clock: Timestamp, wall: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.status = Some(PeerStatus::new(program, clock, wall));
        }
    }

    /// Applies what is said about a member. A new one is dialled.
    pub(super) fn update_record(&mut self, record: MemberRecord, now: Timestamp, out: &mut NodeOutput) {
        let id = record.id;
        if id == self.local.id || self.departures.contains(id) {
            return;
        }
        match self.peers.get_mut(&id) {
            Some(peer) if peer.record.changes < record.changes => {
                peer.record = record;
                self.update_placement(now);
            }
            Some(_) => {}
            None => {
                out.actions.push(NodeAction::Dial(record.address.clone()));
                self.peers.insert(id, PeerMember::new(record, now));
            }
        }
    }

    /// Treats `member` as departed. False if that changes nothing.
    pub(super) fn depart(
        &mut self,
        member: MemberId,
        departure: Departure,
        now: Timestamp,
        out: &mut NodeOutput,
    ) -> bool {
        if member == self.local.id || self.departures.is_dead(member) {
            return false;
        }
        let peer = self.peers.remove(&member).map(|peer| (peer.record, peer.heard_at));
        out.stats.members_lost += u64::from(peer.is_some());
        if peer.is_none() && departure == Departure::Forgotten {
            return false;
        }
        let was_known = self.departures.add(member, peer, departure, now);
        // A member that is cut off from it cannot find out by itself.
        if was_known && departure == Departure::Dead {
            out.broadcast(&Message::Dead { members: vec![member] });
        }
        if departure == Departure::Dead {
            self.healthy.remove(&member);
        }
        self.has_changed = true;
        out.disconnect(member);
        out.actions.push(NodeAction::Disconnect(member));
        true
    }

    /// Whether `member` is or was another member.
    pub(super) fn was_known(&self, member: MemberId) -> bool {
        self.is_known(member) || self.departures.contains(member)
    }

    /// Whether `member` is another member that has not departed.
    pub(super) fn is_known(&self, member: MemberId) -> bool {
        self.peers.contains_key(&member)
    }

    pub(super) fn is_connected(&self, member: MemberId) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.connected)
    }

    /// Whether `member` has departed, or was never known here.
    pub(super) fn is_departed(&self, member: MemberId) -> bool {
        member != self.local.id && !self.is_known(member)
    }

    /// Whether there is a session with `peer` and the peer is not silent.
    pub(super) fn is_reachable(&self, peer: MemberId, now: Timestamp) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.connected && self.is_alive(peer, now))
    }

    fn is_alive(&self, peer: &PeerMember, now: Timestamp) -> bool {
        now.since(peer.heard_at) <= self.settings.silence
    }

    /// Whether `peer` has announced its slots under our hash secret. Before, it speaks of another cluster's slots.
    pub(super) fn is_synced(&self, peer: MemberId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.synced)
    }

    /// The hello of `peer` has arrived, and was for the same cluster or not.
    pub(super) fn set_synced(&mut self, peer: MemberId, synced: bool) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            (peer.greeted, peer.synced) = (true, synced);
        }
    }

    /// Forgets which peers use our hash secret. Peers that also adopt the secret send another hello.
    pub(super) fn reset_synced(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.synced = false);
    }

    pub(super) fn has_synced_peers(&self) -> bool {
        self.peers.values().any(|peer| peer.synced)
    }

    /// Whether a member takes slots.
    pub(super) fn has_receivers(&self) -> bool {
        self.peers.values().any(PeerMember::can_receive_slots)
    }

    /// The records that other members have announced.
    pub(super) fn announced_records(&self) -> Vec<MemberRecord> {
        let records = self.peers.values().map(|peer| &peer.record);
        records.filter(|record| record.changes > 0).cloned().collect()
    }

    /// Whether no other member is known, not even a silent one.
    pub(super) fn is_last(&self) -> bool {
        self.peers.is_empty()
    }

    /// The peers that are not silent.
    pub(super) fn alive(&self, now: Timestamp) -> impl Iterator<Item = &PeerMember> {
        self.peers.values().filter(move |peer| self.is_alive(peer, now))
    }

    /// The member that keeps backups of a slot that is owned here, if it is reachable.
    pub(super) fn backup_owner(&self, slot: Slot, now: Timestamp) -> Option<MemberId> {
        self.placement.backup_owner(slot, self.local.id).filter(|owner| self.is_reachable(*owner, now))
    }

    /// Whether this replica may recover slots: it serves and is not isolated.
    pub(super) fn may_claim(&self) -> bool {
        self.local.state == MemberState::Serving && !self.isolated
    }

    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub(super) fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// The number of members in the last healthy view.
    pub(super) fn healthy(&self) -> u32 {
        u32::try_from(self.healthy.len()).unwrap_or(u32::MAX)
    }

    /// Computes the placement from the members that serve and are not left out. A silent member can neither receive a
    /// slot nor keep a backup.
    pub(super) fn update_placement(&mut self, now: Timestamp) {
        self.damping.leave_out(self.peers.values_mut(), self.settings.silence, now);
        let receives = |peer: &PeerMember| peer.can_receive_slots() && !peer.is_left_out;
        let receivers = self.peers.iter().filter(|(_, peer)| receives(peer)).map(|(id, _)| *id);
        let local = (self.local.state == MemberState::Serving).then_some(self.local.id);
        let mut members: Vec<MemberId> = receivers.chain(local).collect();
        members.sort_unstable();
        if members != self.placement.members() {
            self.placement = self.placement.changed_to(members, self.slots);
            self.has_changed = true;
        }
    }

    /// The members that have been silent for so long that they count as departed.
    pub(super) fn too_silent(&self, now: Timestamp) -> Vec<MemberId> {
        let too_silent = |peer: &&PeerMember| now.since(peer.heard_at) > self.settings.tuning.forget_after;
        self.peers.values().filter(too_silent).map(|peer| peer.record.id).collect()
    }

    /// Detects silence and isolation.
    pub(super) fn tick(&mut self, now: Timestamp, wall: Timestamp, out: &mut NodeOutput) {
        if now.since(self.status_at) >= status_interval(self.peers.len()) {
            self.status_at = now;
            out.broadcast(&status(wall));
        }
        let redialled = self.departures.addresses_to_redial(self.settings.tuning.forget_after / 6, now);
        out.actions.extend(redialled.map(|address| NodeAction::Dial(address.to_owned())));
        self.update_isolation(now, out);
        self.update_placement(now);
        out.stats.silences_held_back += self.damping.take_held_back();
        self.has_silent = self.peers.values().any(|peer| !self.is_alive(peer, now));
    }

    /// Whether this replica joins, leaves or is isolated, a peer is silent, or slots may have to move.
    pub(super) fn needs_ticks(&self) -> bool {
        let serves = self.local.state == MemberState::Serving && !self.is_draining();
        !serves || self.isolated || self.has_silent || self.has_changed
    }

    /// When the next peer is silent if it sends nothing until then.
    pub(super) fn silence_due(&self, now: Timestamp) -> Option<Timestamp> {
        let heard_at = self.alive(now).map(|peer| peer.heard_at).min()?;
        Some(heard_at.after(self.settings.silence).after(Duration::from_nanos(1)))
    }

    /// A replica that reaches no more than half of its last healthy view does not trust its counters. Of two equal
    /// halves, the one with the smallest member id continues.
    pub(super) fn update_isolation(&mut self, now: Timestamp, out: &mut NodeOutput) {
        if self.local.state != MemberState::Joining {
            self.healthy.insert(self.local.id);
        }
        let is_counted = |peer: &PeerMember| peer.has_joined() && self.is_alive(peer, now);
        let is_present =
            |id: &&MemberId| **id == self.local.id || self.peers.get(*id).is_some_and(is_counted);
        let present = self.healthy.iter().filter(is_present).count();
        let first = self.healthy.first().is_none_or(|first| is_present(&first));
        let all = self.healthy.len();
        let isolated = 2 * present < all || (2 * present == all && !first);
        if !isolated {
            let heard = self.peers.iter().filter(|(_, peer)| is_counted(peer)).map(|(id, _)| *id);
            let new: Vec<MemberId> = heard.filter(|id| !self.healthy.contains(id)).collect();
            self.healthy.extend(new);
            // Departed members leave the view while a majority of it is reachable. A member that was heard until it
            // ended the session does not hear this replica and may be one of another majority, so it leaves later.
            let departures = &self.departures;
            let forget_after = self.settings.tuning.forget_after;
            self.healthy
                .retain(|id| departures.silence(*id, now).is_none_or(|silence| silence < forget_after));
        }
        if self.isolated != isolated {
            self.isolated = isolated;
            self.has_changed = true;
            out.actions.push(NodeAction::LogIsolation { is_isolated: isolated });
            out.stats.isolations += u64::from(isolated);
        }
    }

    /// The peers, and how long they have been silent.
    pub(super) fn peers(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&MemberRecord, Duration, Option<&PeerStatus>)> {
        self.peers.values().map(move |peer| (&peer.record, now.since(peer.heard_at), peer.status.as_ref()))
    }

    /// Peers whose rules differ from those of this replica.
    pub(super) fn with_other_rules(&self) -> usize {
        let others = self.peers.values().filter(|peer| peer.record.state != MemberState::Joining);
        others.filter(|peer| peer.record.rules != self.local.rules).count()
    }
}
