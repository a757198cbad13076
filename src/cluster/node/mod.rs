//! The state machine of one replica in the cluster. It performs no I/O.
//!
//! Inputs are messages, connected and disconnected peers, checks and ticks, each with the current time. Outputs are
//! messages and actions; the counters in memory change as a side effect. Replicas need no agreed view of the members:
//! each replica hands off the slots that the placement assigns to another member, and recovers slots without an owner
//! that the placement assigns to it. Different views only delay a move.
//!
//! Invariants: a slot has at most one owner, and only the owner announces its ownership. A slot that is owned here is
//! also held by the memory. A slot that was handed off is kept here until the receiver acknowledges it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    cluster::{
        MemberId,
        message::{
            HandOffId, HashSecret, MemberRecord, MemberState, Message, Origin, Owner, SlotCopy, Version,
        },
        placement::Placement,
    },
    descriptor::Secret,
    store::{Lead, Memory, Slot, SlotData},
    time::Timestamp,
};

mod backup;
mod forwarding;
mod hand_off;
mod joining;
mod lease_borrower;
mod lease_owner;
mod local_share;
mod membership;
mod recovery;
mod stats;
mod view;

pub use forwarding::ForwardPolicy;
pub(crate) use forwarding::{DecidedBy, Outcome, Ticket};
pub(crate) use stats::Stats;
pub use stats::{MemberView, View};

use forwarding::Forwarding;
use lease_borrower::LeaseBorrower;
use lease_owner::{LeaseOwner, Moment};
use local_share::LocalShare;
use membership::{Departed, PeerState};

/// The most messages that wait for one peer. Beyond that number, checks treat the peer as unreachable.
const OUTBOX_MAX: usize = 65_536;

/// A tick that comes this long after the previous one shows that this replica was too busy, or stopped. Ticks are due
/// every 10 ms.
const TICK_LATE: Duration = Duration::from_millis(25);

/// How often all slots are checked while nothing happens.
const SLOTS_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The settings of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// A peer that is not heard for this long counts as silent.
    pub(crate) silence: Duration,
    /// A peer that is silent for this long is treated as departed.
    pub(crate) forget_after: Duration,
    /// How long to wait for seeds before this replica bootstraps a cluster.
    pub(crate) bootstrap_timeout: Duration,
    /// How often changed counters are sent to the backup owner; `None` for never.
    pub(crate) backup_interval: Option<Duration>,
    /// A key that is forwarded this many times a second asks for a lease; `None` for never.
    pub(crate) lease_from: Option<u64>,
    /// The most unacknowledged hand-offs to one peer.
    pub(crate) hand_offs_max: usize,
}

/// An action for the layer that performs I/O.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A replica may be reachable at this address.
    Dial(String),
    /// This member has departed: close the link.
    Disconnect(MemberId),
    /// The outcome of one check of a local caller.
    Complete(Ticket, Outcome),
    /// From now on keys are hashed with this secret.
    SetHashSecret(Secret),
    /// Every slot is handed off, as far as possible: leave the cluster.
    Leave,
    /// An event to log for the operator.
    Report(Event),
}

/// An event that is logged for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// This replica knows the owners of the slots, and answers.
    Joined,
    /// This replica met another cluster, adopted its hash secret and discarded all its own counters.
    ClusterAdopted,
    /// Fewer members are reachable than this replica needs to trust its counters.
    Isolated,
    /// Enough members are reachable again.
    IsolationEnded,
}

/// The state of one replica in the cluster.
#[derive(Debug)]
pub(crate) struct Node {
    local_id: MemberId,
    settings: NodeSettings,
    memory: Arc<Memory>,
    /// The time by which counters are decided. It may jump forward at any time, and back when the clock gives up a
    /// lead, so timeouts do not use it.
    wall: Timestamp,
    record: MemberRecord,
    hash_secret: Option<HashSecret>,
    /// Whether the hash secret is in use, rather than only restored from the snapshot of an earlier process.
    is_hash_secret_used: bool,
    /// The lowest epoch of a slot that this replica recovers. It is the wall clock when the replica began to serve, so
    /// that copies of earlier processes are older.
    epoch_floor: u64,
    started_at: Timestamp,
    /// The last tick.
    ticked_at: Timestamp,
    /// The last tick that came late, because this replica was too busy or stopped. Since then it has sent and read on
    /// time.
    on_time_since: Timestamp,
    /// Whether every seed was tried, and only this process answered.
    no_seed_answered: bool,
    draining_since: Option<Timestamp>,
    peers: BTreeMap<MemberId, PeerState>,
    departed: BTreeMap<MemberId, Departed>,
    /// The members of the last view in which a majority was reachable.
    healthy: BTreeSet<MemberId>,
    isolated: bool,
    placement: Placement,
    slots: Vec<SlotState>,
    hand_offs: BTreeMap<HandOffId, PendingHandOff>,
    hand_offs_sent: u64,
    backed_up_at: Timestamp,
    /// A new backup owner still lacks some slots.
    backups_incomplete: bool,
    copies_swept_at: Timestamp,
    /// An event may allow slots to move.
    slots_dirty: bool,
    slots_checked_at: Timestamp,
    forwarding: Forwarding,
    lease_owner: LeaseOwner,
    lease_borrower: LeaseBorrower,
    local_share: LocalShare,
    outbox: BTreeMap<MemberId, VecDeque<Message>>,
    ready_peers: Vec<MemberId>,
    actions: Vec<Action>,
    stats: Stats,
}

/// What this replica knows about one slot.
#[derive(Debug, Default)]
struct SlotState {
    /// The newest owner that was announced.
    owner: Option<Owner>,
    /// Present while this replica owns the slot.
    ownership: Option<SlotOwnership>,
    /// The backup that is kept for another owner.
    copy: Option<StoredCopy>,
    /// The version and the receiver of the last backup.
    last_backup: Option<(Version, MemberId)>,
    /// Hand-offs to acknowledge once the backup owner has a backup.
    acks_due: Vec<HandOffId>,
    recovery: Option<Recovery>,
    /// The lost owner and the receiver of the last orphan report.
    orphan_reported: Option<(Owner, MemberId)>,
    /// Grants were lent or returned since the last backup.
    leases_changed: bool,
}

/// What the owner of a slot knows besides its counters.
#[derive(Clone, Debug)]
struct SlotOwnership {
    epoch: u64,
    origin: Origin,
    /// From this instant no replica can return with another lineage of the slot.
    origin_expires_at: Timestamp,
}

/// A copy, and the time of its last update.
#[derive(Clone, Debug)]
struct StoredCopy {
    copy: SlotCopy,
    at: Timestamp,
}

/// A hand-off that is not acknowledged yet.
#[derive(Clone, Debug)]
struct PendingHandOff {
    slot: Slot,
    copy: SlotCopy,
    origin: Origin,
    to: MemberId,
    at: Timestamp,
}

/// The recovery of a slot that has lost its owner.
#[derive(Clone, Debug)]
struct Recovery {
    /// Members that have not replied yet.
    waiting: BTreeSet<MemberId>,
    /// The newest copy received so far.
    newest: Option<SlotCopy>,
    /// The query is repeated at this instant.
    retry_at: Timestamp,
    /// Another member reaches the owner, so the slot is not recovered for now.
    blocked: bool,
}

impl Node {
    /// A replica that has not joined a cluster yet. Its memory is shared: it owns no slot until it receives or recovers
    /// one.
    pub(crate) fn new(
        local_id: MemberId,
        address: String,
        settings: NodeSettings,
        memory: Arc<Memory>,
        now: Timestamp,
    ) -> Self {
        if settings.backup_interval.is_some() {
            memory.track_changes();
        }
        let record =
            MemberRecord { id: local_id, address, state: MemberState::Joining, rules: 0, changes: 0 };
        let slots = (0..memory.slots()).map(|_| SlotState::default()).collect();
        Self {
            local_id,
            settings,
            memory,
            wall: now,
            record,
            hash_secret: None,
            is_hash_secret_used: false,
            epoch_floor: 0,
            started_at: now,
            ticked_at: now,
            on_time_since: now,
            no_seed_answered: false,
            draining_since: None,
            peers: BTreeMap::new(),
            departed: BTreeMap::new(),
            healthy: BTreeSet::new(),
            isolated: false,
            placement: Placement::default(),
            slots,
            hand_offs: BTreeMap::new(),
            hand_offs_sent: 0,
            backed_up_at: now,
            backups_incomplete: false,
            copies_swept_at: now,
            slots_dirty: true,
            slots_checked_at: now,
            forwarding: Forwarding::default(),
            lease_owner: LeaseOwner::default(),
            lease_borrower: LeaseBorrower::default(),
            local_share: LocalShare::default(),
            outbox: BTreeMap::new(),
            ready_peers: Vec::new(),
            actions: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Offers the counters of an earlier process, whose keys are hashed with `secret`, as copies. They are used unless
    /// another member has newer ones.
    pub(crate) fn restore(&mut self, secret: Secret, copies: Vec<(Slot, Version, SlotData)>, now: Timestamp) {
        self.hash_secret = Some(HashSecret { founder: self.local_id, secret });
        for (slot, version, contents) in copies {
            let copy = SlotCopy { version, contents: Arc::new(contents), grants: Vec::new() };
            self.epoch_floor = self.epoch_floor.max(version.epoch);
            self.slots[slot.index()].copy = Some(StoredCopy { copy, at: now });
        }
    }

    /// Sets the time by which counters are decided during the next inputs. All other instants are monotonic.
    pub(crate) fn set_wall(&mut self, wall: Timestamp) {
        self.wall = wall;
    }

    /// Applies a lead that the clock of the counters gives up. The caller applies it to the memory.
    pub(crate) fn give_up_lead(&mut self, lead: Lead) {
        self.local_share.give_up_lead(lead);
    }

    /// Handles one message of a peer.
    pub(crate) fn receive(&mut self, from: MemberId, message: Message, now: Timestamp) {
        // A departed member is ignored until a new session begins.
        if !self.peers.contains_key(&from) {
            return;
        }
        self.heard(from, now);
        // The sender's cluster has more slots than this one, so the slot does not exist here.
        if message.last_slot().is_some_and(|slot| self.slots.len() <= slot.index()) {
            return;
        }
        let is_of_a_slot = message.last_slot().is_some() && !matches!(message, Message::Hello(_));
        if is_of_a_slot && !self.is_synced(from) {
            return;
        }
        self.slots_dirty |= message.may_move_slots();
        match message {
            Message::Hello(hello) => self.receive_hello(from, *hello, now),
            Message::Member(record) => self.update_record(record, now),
            Message::Owns { slot, epoch, origin } => self.receive_owner(from, slot, epoch, origin, now),
            Message::HandOff(hand_off) => self.receive_hand_off(from, *hand_off, now),
            Message::HandOffAck(id) => self.receive_hand_off_ack(id, now),
            Message::Backup { slot, copy, after } => self.receive_backup(from, slot, copy, after, now),
            Message::BackupAck { slot, version } => self.receive_backup_ack(from, slot, version, now),
            Message::BackupBaseMissing { slot } => self.receive_base_missing(from, slot, now),
            Message::RecoveryQuery { slot, best, dead } => {
                self.receive_recovery_query(from, slot, best, &dead, now)
            }
            Message::RecoveryReply { slot, owner, alive, copy } => {
                self.receive_recovery_reply(from, slot, owner, alive, copy, now)
            }
            Message::Orphan { slot, owner, dead } => self.receive_orphan(slot, owner, &dead, now),
            Message::NewerCopy { slot, copy } => self.receive_newer_copy(slot, copy, now),
            Message::Forward { ticket, check, budget, hops } => {
                self.receive_forward(from, ticket, check, budget, hops, now);
            }
            Message::Reply { ticket, reply } => self.receive_reply(ticket, reply, now),
            Message::Recall { key } => self.return_grant(key, now),
            Message::Revoke { key } => self.lease_borrower.revoke_refusal(key),
        }
    }

    /// Does everything that depends on time alone.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let last = std::mem::replace(&mut self.ticked_at, now);
        // Batches that wait in the links are read before a late tick judges silence and lateness. Two late ticks in a
        // row do not both defer, so that nothing is delayed for long when every tick is late.
        let defers = now.since(last) >= TICK_LATE && self.on_time_since != last;
        if now.since(last) >= TICK_LATE {
            self.on_time_since = now;
        }
        if defers {
            return;
        }
        self.check_peers(now);
        self.start_serving(now);
        // Slots move only after an event, so all of them are scanned only from time to time without one.
        if std::mem::take(&mut self.slots_dirty) || now.since(self.slots_checked_at) >= SLOTS_CHECK_INTERVAL {
            self.slots_checked_at = now;
            self.hand_off_misplaced(now);
            self.recover_orphans(now);
            self.report_orphans();
        }
        self.drop_old_copies(now);
        self.back_up_when_due(now);
        self.expire_leases(now);
        self.report_admitted(now);
        self.retry_parked(now);
        self.expire_checks(now);
        self.leave_when_done(now);
    }

    /// Takes messages that wait for `peer`, oldest first: at most `most` messages, and about `bytes_max` bytes.
    pub(crate) fn outgoing(
        &mut self,
        peer: MemberId,
        most: usize,
        bytes_max: usize,
        now: Timestamp,
    ) -> Vec<Message> {
        let Some(waiting) = self.outbox.get_mut(&peer) else { return Vec::new() };
        let (mut bytes, mut count) = (0, 0);
        for message in waiting.iter().take(most) {
            bytes += message.wire_bytes();
            if bytes > bytes_max && count > 0 {
                break;
            }
            count += 1;
        }
        let messages: Vec<Message> = waiting.drain(..count).collect();
        self.mark_written(&messages, now);
        messages
    }

    /// The peers whose queue was empty and has received messages since the last call.
    pub(crate) fn ready_peers(&mut self) -> Vec<MemberId> {
        std::mem::take(&mut self.ready_peers)
    }

    /// Takes the pending actions, in order.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    fn send(&mut self, to: MemberId, message: Message) {
        if self.peers.get(&to).is_some_and(|peer| peer.connected) {
            let waiting = self.outbox.entry(to).or_default();
            if waiting.is_empty() {
                self.ready_peers.push(to);
            }
            waiting.push_back(message);
        }
    }

    fn broadcast(&mut self, message: &Message) {
        let connected = self.peers.iter().filter(|(_, peer)| peer.connected);
        for to in connected.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.send(to, message.clone());
        }
    }

    fn moment(&self, now: Timestamp) -> Moment {
        Moment { now, wall: self.wall }
    }

    fn slot(&self, slot: Slot) -> &SlotState {
        &self.slots[slot.index()]
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut SlotState {
        &mut self.slots[slot.index()]
    }

    fn all_slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots.len()).map(Slot::at)
    }

    /// The version of the slot, if this replica owns it.
    fn version(&self, slot: Slot) -> Option<Version> {
        let ownership = self.slot(slot).ownership.as_ref()?;
        Some(Version { epoch: ownership.epoch, seq: self.memory.version_seq(slot) })
    }
}
