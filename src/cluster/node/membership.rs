//! Membership: which members are reachable, silent, departed or dead, and the placement of slots that follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tollgate_limiter::{store::Slot, time::Timestamp};

use crate::cluster::{
    MemberId,
    message::{MemberRecord, MemberState, Message},
    node::{
        output::{Action, Event, Output},
        settings::NodeSettings,
    },
    placement::Placement,
};

/// The most departed members that are remembered.
const DEPARTED_MAX: usize = 10_000;
/// The most dead members that a new session is told of.
const DEAD_REPORTED_MAX: usize = 100;
/// How long a member that departed by silence is dialled again.
const SILENT_REDIALLED: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a member says its version and its time, with so many peers; with more of them less often.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
const STATUS_PEERS: usize = 16;
/// The maximum length of the version of another member, in characters.
const PROGRAM_MAX: usize = 64;
/// How long departed members are still listed.
const DEPARTED_SHOWN: Duration = Duration::from_secs(60);

/// The members that this replica knows, and its own record.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) local: MemberRecord,
    settings: NodeSettings,
    slots: usize,
    draining_since: Option<Timestamp>,
    peers: BTreeMap<MemberId, Peer>,
    departed: BTreeMap<MemberId, Departed>,
    /// The members of the last view in which a majority was reachable.
    healthy: BTreeSet<MemberId>,
    isolated: bool,
    pub(super) placement: Placement,
    status_at: Timestamp,
    /// Slots may have to move because of the members.
    has_changed: bool,
    /// Whether a peer was silent at the last tick.
    has_silent: bool,
}

/// A member that has not departed.
#[derive(Clone, Debug)]
struct Peer {
    record: MemberRecord,
    /// Whether there is a session with it.
    connected: bool,
    /// Whether its hello has arrived in this session. Before that, its state is unknown.
    greeted: bool,
    /// Whether it has announced its slots under the same hash secret as this replica.
    synced: bool,
    heard_at: Timestamp,
    /// What it last said for operators; `None` from a build that does not say it.
    status: Option<PeerStatus>,
}

/// What operators compare between members.
#[derive(Clone, Debug)]
pub(super) struct PeerStatus {
    /// The version of its program.
    pub(super) program: String,
    /// How far its clock is ahead of that of this replica, without the time that the message took; negative if it is behind.
    pub(super) ahead_millis: i64,
}

impl Peer {
    /// A member that was just discovered.
    fn new(record: MemberRecord, now: Timestamp) -> Self {
        Self { record, connected: false, greeted: false, synced: false, heard_at: now, status: None }
    }

    /// Whether the member takes slots while it is reachable.
    fn can_receive_slots(&self) -> bool {
        self.synced && self.record.state == MemberState::Serving
    }
}

/// A departed member.
#[derive(Clone, Debug)]
struct Departed {
    record: MemberRecord,
    at: Timestamp,
    heard_at: Timestamp,
    departure: Departure,
    dialled_at: Timestamp,
}

/// How a departure became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// The address refused a connection, or the member announced its leaving. Its id never returns.
    Proven,
    /// The member was silent for too long.
    Silent,
}

/// The peers that a joining replica reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReachedPeers {
    None,
    /// No peer is known to serve. If all members start together, the one with the smallest id bootstraps the cluster.
    Joining {
        is_smallest: bool,
    },
    /// A peer serves.
    Serving {
        all_synced: bool,
    },
}

/// What this replica says about itself for operators, at `wall` by its clock of counters.
pub(super) fn status(wall: Timestamp) -> Message {
    Message::Status { program: env!("CARGO_PKG_VERSION").to_owned(), clock: wall }
}

impl Membership {
    /// This replica, which joins and knows no other member.
    pub(super) fn new(local_id: MemberId, address: String, settings: NodeSettings, slots: usize) -> Self {
        Self {
            local: joining_record(local_id, address),
            settings,
            slots,
            draining_since: None,
            peers: BTreeMap::new(),
            departed: BTreeMap::new(),
            healthy: BTreeSet::new(),
            isolated: false,
            placement: Placement::default(),
            status_at: Timestamp::EPOCH,
            has_changed: true,
            has_silent: false,
        }
    }

    pub(super) fn local_id(&self) -> MemberId {
        self.local.id
    }

    /// Sets the state of this replica and announces it.
    pub(super) fn set_state(&mut self, state: MemberState, out: &mut Output) {
        self.local.state = state;
        self.announce(out);
    }

    /// Sets the hash of the active rules and announces it.
    pub(super) fn set_rules(&mut self, rules: u64, out: &mut Output) {
        if self.local.rules != rules {
            self.local.rules = rules;
            self.announce(out);
        }
    }

    fn announce(&mut self, out: &mut Output) {
        self.local.changes += 1;
        out.broadcast(&Message::Member(self.local.clone()));
    }

    /// Begins to drain. False if this replica drains already.
    pub(super) fn drain(&mut self, now: Timestamp, out: &mut Output) -> bool {
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
        self.departed.remove(&peer);
        let record = || joining_record(peer, address.to_owned());
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(record(), now));
        *known = Peer { connected: true, ..Peer::new(known.record.clone(), now) };
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
            let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let ahead_millis = millis(clock.since(wall)) - millis(wall.since(clock));
            peer.status =
                Some(PeerStatus { program: program.chars().take(PROGRAM_MAX).collect(), ahead_millis });
        }
    }

    /// Applies what is said about a member. A new one is dialled.
    pub(super) fn update_record(&mut self, record: MemberRecord, now: Timestamp, out: &mut Output) {
        let id = record.id;
        if id == self.local.id || self.departed.contains_key(&id) {
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
                out.actions.push(Action::Dial(record.address.clone()));
                self.peers.insert(id, Peer::new(record, now));
            }
        }
    }

    /// Treats `member` as departed. False if that changes nothing.
    pub(super) fn depart(
        &mut self,
        member: MemberId,
        departure: Departure,
        now: Timestamp,
        out: &mut Output,
    ) -> bool {
        if member == self.local.id || self.is_dead(member) {
            return false;
        }
        let peer = self.peers.remove(&member);
        let heard_at = peer.as_ref().map_or(now, |peer| peer.heard_at);
        let peer = peer.map(|peer| peer.record);
        let is_peer = peer.is_some();
        out.stats.members_lost += u64::from(is_peer);
        let known = peer.or_else(|| self.departed.get(&member).map(|departed| departed.record.clone()));
        match departure {
            Departure::Silent if !is_peer => return false,
            // A member that is cut off from it cannot find out by itself.
            Departure::Proven if known.is_some() => out.broadcast(&Message::Dead { members: vec![member] }),
            Departure::Silent | Departure::Proven => {}
        }
        // Another replica may report the death of a member that was never known here.
        let record = known.unwrap_or_else(|| joining_record(member, String::new()));
        self.departed.insert(member, Departed { record, at: now, heard_at, departure, dialled_at: now });
        if self.departed.len() > DEPARTED_MAX {
            let oldest = self.departed.iter().min_by_key(|(_, departed)| departed.at).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.departed.remove(&oldest));
        }
        if departure == Departure::Proven {
            self.healthy.remove(&member);
        }
        self.has_changed = true;
        out.disconnect(member);
        out.actions.push(Action::Disconnect(member));
        true
    }

    /// Whether `member` is or was another member.
    pub(super) fn was_known(&self, member: MemberId) -> bool {
        self.is_known(member) || self.departed.contains_key(&member)
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

    pub(super) fn is_dead(&self, member: MemberId) -> bool {
        self.departed.get(&member).is_some_and(|departed| departed.departure == Departure::Proven)
    }

    pub(super) fn has_departed_members(&self) -> bool {
        !self.departed.is_empty()
    }

    /// The members most recently proven dead.
    pub(super) fn dead_members(&self) -> Vec<MemberId> {
        // A peer may know earlier ones. If it does not, it declares them dead as soon as it dials them.
        let dead = self
            .departed
            .iter()
            .filter(|(_, departed)| departed.departure == Departure::Proven)
            .map(|(id, departed)| (departed.at, *id));
        let mut dead: Vec<_> = dead.collect();
        dead.sort_unstable();
        dead.into_iter().rev().take(DEAD_REPORTED_MAX).map(|(_, id)| id).collect()
    }

    /// Whether there is a session with `peer` and the peer is not silent.
    pub(super) fn is_reachable(&self, peer: MemberId, now: Timestamp) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.connected && self.is_alive(peer, now))
    }

    fn is_alive(&self, peer: &Peer, now: Timestamp) -> bool {
        now.since(peer.heard_at) <= self.settings.silence
    }

    /// Whether `peer` has announced its slots under our hash secret. What it says about slots before that belongs to
    /// another cluster.
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
        self.peers.values().any(Peer::can_receive_slots)
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

    /// The peers that are reached while this replica joins.
    pub(super) fn reached_peers(&self, now: Timestamp) -> ReachedPeers {
        let heard: Vec<&Peer> = self.peers.values().filter(|peer| self.is_alive(peer, now)).collect();
        let serves = |peer: &&Peer| peer.synced && peer.record.state != MemberState::Joining;
        if heard.is_empty() {
            ReachedPeers::None
        } else if heard.iter().any(serves) {
            ReachedPeers::Serving { all_synced: heard.iter().all(|peer| peer.synced) }
        } else {
            let is_smallest = heard.iter().all(|peer| peer.greeted && self.local.id < peer.record.id);
            ReachedPeers::Joining { is_smallest }
        }
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

    /// Whether slots may have to move because the members have changed since the last call.
    pub(super) fn take_has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Computes the placement from the members that are reachable and serve. A silent member can neither receive a slot
    /// nor keep a backup.
    pub(super) fn update_placement(&mut self, now: Timestamp) {
        let receives = |peer: &Peer| peer.can_receive_slots() && self.is_alive(peer, now);
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
        let too_silent = |peer: &&Peer| now.since(peer.heard_at) > self.settings.tuning.forget_after;
        self.peers.values().filter(too_silent).map(|peer| peer.record.id).collect()
    }

    /// Detects silence and isolation.
    pub(super) fn tick(&mut self, now: Timestamp, wall: Timestamp, out: &mut Output) {
        let status_interval = STATUS_INTERVAL * (self.peers.len() / STATUS_PEERS).max(1) as u32;
        if now.since(self.status_at) >= status_interval {
            self.status_at = now;
            out.broadcast(&status(wall));
        }
        self.redial_silent(now, out);
        self.update_isolation(now, out);
        self.update_placement(now);
        self.has_silent = self.peers.values().any(|peer| !self.is_alive(peer, now));
    }

    /// Whether this replica joins, leaves or is isolated, a peer is silent, or slots may have to move.
    pub(super) fn needs_ticks(&self) -> bool {
        let is_serving = self.local.state == MemberState::Serving && !self.is_draining();
        !is_serving || self.isolated || self.has_silent || self.has_changed
    }

    /// When the next peer is silent if it sends nothing until then.
    pub(super) fn silence_due(&self, now: Timestamp) -> Option<Timestamp> {
        let alive = self.peers.values().filter(|peer| self.is_alive(peer, now));
        let heard_at = alive.map(|peer| peer.heard_at).min()?;
        Some(heard_at.after(self.settings.silence).after(Duration::from_nanos(1)))
    }

    /// A member that departed by silence may return at the same address.
    fn redial_silent(&mut self, now: Timestamp, out: &mut Output) {
        let every = self.settings.tuning.forget_after / 6;
        for departed in self.departed.values_mut() {
            if departed.departure == Departure::Silent
                && now.since(departed.dialled_at) >= every
                && now.since(departed.at) < SILENT_REDIALLED
            {
                departed.dialled_at = now;
                out.actions.push(Action::Dial(departed.record.address.clone()));
            }
        }
    }

    /// A replica that reaches no more than half of its last healthy view does not trust its counters. Of two equal
    /// halves, the one with the smallest member id continues.
    pub(super) fn update_isolation(&mut self, now: Timestamp, out: &mut Output) {
        if self.local.state != MemberState::Joining {
            self.healthy.insert(self.local.id);
        }
        let is_counted = |peer: &Peer| {
            peer.synced && peer.record.state != MemberState::Joining && self.is_alive(peer, now)
        };
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
            // Departed members leave the view while a majority of it is reachable. A member that was heard until it ended
            // the session does not hear this replica and may be one of another majority, so it leaves later.
            let (departed, forget_after) = (&self.departed, self.settings.tuning.forget_after);
            let is_silent = |departed: &Departed| now.since(departed.heard_at) >= forget_after;
            self.healthy.retain(|id| !departed.get(id).is_some_and(is_silent));
        }
        if self.isolated != isolated {
            self.isolated = isolated;
            self.has_changed = true;
            let event = if isolated { Event::Isolated } else { Event::IsolationEnded };
            out.actions.push(Action::Report(event));
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

    /// The members that were known and departed recently, and how long ago.
    pub(super) fn recently_departed(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&MemberRecord, Duration)> {
        let departed = self.departed.values().map(move |departed| (&departed.record, now.since(departed.at)));
        departed.filter(|(record, since)| !record.address.is_empty() && *since < DEPARTED_SHOWN)
    }

    /// Peers whose rules differ from those of this replica.
    pub(super) fn with_other_rules(&self) -> usize {
        let records = self.peers.values().map(|peer| &peer.record);
        let others = records.filter(|record| record.state != MemberState::Joining);
        others.filter(|record| record.rules != self.local.rules).count()
    }
}

fn joining_record(id: MemberId, address: String) -> MemberRecord {
    MemberRecord { id, address, state: MemberState::Joining, rules: 0, changes: 0 }
}
