//! One replica's part in sharing slots, without any input or output of its own.
//!
//! Events go in: a message, a peer linked or lost, a request, a turn at some time. Messages and actions come out, and
//! counters change. Nobody needs a common view of the members: each replica moves what it holds and should not, and
//! claims what nobody holds and it should; a disagreement only delays a move.
//!
//! Invariants: a slot has at most one holder, and only the holder says so. Whoever holds a slot here holds it in the
//! memory too. What was handed off is kept until it is safe elsewhere.

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
    store::{Contents, Lead, Memory, Slot},
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

/// The most messages that wait for one peer; beyond them it counts as unreachable for asks.
const OUTBOX_MAX: usize = 65_536;

/// A turn that comes so long after the one before tells that this replica was too busy, or stopped. (They are due every
/// 10 ms.)
const TICK_LATE: Duration = Duration::from_millis(25);

/// How often all slots are looked at while nothing happens.
const SLOTS_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What can be chosen about a replica's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// How long nothing may be heard of a peer before it counts as silent.
    pub(crate) silence: Duration,
    /// After so long a silence a peer is treated as dead.
    pub(crate) forget_after: Duration,
    /// How long to wait for seeds before being the first.
    pub(crate) bootstrap_timeout: Duration,
    /// How often changed counters go to the runner-up; `None` for never.
    pub(crate) backup_interval: Option<Duration>,
    /// A key that is forwarded so often a second is asked for a lease; `None` for never.
    pub(crate) lease_from: Option<u64>,
    /// The most hand-offs on their way to one peer.
    pub(crate) hand_offs_max: usize,
}

/// What the shell around it is to do.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Somebody may be reached at this address.
    Dial(String),
    /// This member is treated as dead: end the link.
    Disconnect(MemberId),
    /// The answer to one of our own requests.
    Complete(Ticket, Outcome),
    /// Keys are hashed with this from now on.
    SetHashSecret(Secret),
    /// All is handed off that can be: leave.
    Leave,
    /// Something that an operator should know of.
    Report(Event),
}

/// What an operator should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// This replica knows who holds what, and answers.
    Joined,
    /// It has given up all its counters for those of another cluster that it has met.
    ClusterAdopted,
    /// It hears too few others to rely on what it holds.
    Isolated,
    /// It hears enough of them again.
    IsolationEnded,
}

/// One replica's part in the cluster.
#[derive(Debug)]
pub(crate) struct Node {
    local_id: MemberId,
    settings: NodeSettings,
    memory: Arc<Memory>,
    /// The time by which counters are decided. It may step forward at any time, and back where a lead is given up, so
    /// nothing is waited for by it.
    wall: Timestamp,
    record: MemberRecord,
    hash_secret: Option<HashSecret>,
    /// Whether the hashing is in use, rather than only remembered from a former process.
    is_hash_secret_used: bool,
    /// Slots that this replica claims have had at least so many changes of hands: as many as its wall showed when it
    /// began to serve, so that what former processes have kept is older.
    epoch_floor: u64,
    started_at: Timestamp,
    /// The last turn.
    ticked_at: Timestamp,
    /// The last turn that came late, because this replica was too busy or stopped. Since then it has sent and read on time.
    on_time_since: Timestamp,
    /// Whether every seed was tried, and none answered but this process itself.
    no_seed_answered: bool,
    draining_since: Option<Timestamp>,
    peers: BTreeMap<MemberId, PeerState>,
    departed: BTreeMap<MemberId, Departed>,
    /// The members of the last view in which most were heard.
    healthy: BTreeSet<MemberId>,
    isolated: bool,
    placement: Placement,
    slots: Vec<SlotState>,
    hand_offs: BTreeMap<HandOffId, PendingHandOff>,
    hand_offs_sent: u64,
    backed_up_at: Timestamp,
    /// A new runner-up has not been sent everything yet.
    backups_incomplete: bool,
    copies_swept_at: Timestamp,
    /// Something has happened that may let slots move.
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

/// What is known of one slot.
#[derive(Debug, Default)]
struct SlotState {
    /// The newest holder that was heard of.
    owner: Option<Owner>,
    /// Present while this replica holds it.
    ownership: Option<SlotOwnership>,
    /// Kept for another holder.
    copy: Option<StoredCopy>,
    /// The last backup: of which version, and to whom.
    last_backup: Option<(Version, MemberId)>,
    /// Hand-offs to be acknowledged when the runner-up has a backup.
    acks_due: Vec<HandOffId>,
    recovery: Option<Recovery>,
    /// Who was told last that the slot is an orphan, and of which holder.
    orphan_reported: Option<(Owner, MemberId)>,
    /// Slices were lent or came back since the last backup.
    leases_changed: bool,
}

/// What a holder knows beside the counters.
#[derive(Clone, Debug)]
struct SlotOwnership {
    epoch: u64,
    origin: Origin,
    /// From when on nobody can come any more who knows of another lineage.
    origin_expires_at: Timestamp,
}

/// A copy and when it was last renewed.
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

/// A slot that this replica would claim.
#[derive(Clone, Debug)]
struct Recovery {
    /// Those who have not answered.
    waiting: BTreeSet<MemberId>,
    /// The newest copy of those that were heard of.
    newest: Option<SlotCopy>,
    /// Asked again after this.
    retry_at: Timestamp,
    /// Somebody hears the holder, so it is not claimed for now.
    blocked: bool,
}

impl Node {
    /// A replica that has joined nobody yet. Its memory is shared: it holds no slot before it is given one.
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

    /// Offers counters of a former process, hashed with `hashing`, as copies: they are used unless others know newer.
    pub(crate) fn restore(&mut self, secret: Secret, copies: Vec<(Slot, Version, Contents)>, now: Timestamp) {
        self.hash_secret = Some(HashSecret { founder: self.local_id, secret });
        for (slot, version, contents) in copies {
            let copy = SlotCopy { version, contents: Arc::new(contents), grants: Vec::new() };
            self.epoch_floor = self.epoch_floor.max(version.epoch);
            self.slots[slot.index()].copy = Some(StoredCopy { copy, at: now });
        }
    }

    /// What the clock of counters shows at the next events. All other instants are those of a clock that goes on
    /// evenly, whatever the wall's does.
    pub(crate) fn set_wall(&mut self, wall: Timestamp) {
        self.wall = wall;
    }

    /// The clock of counters gives up a lead. The caller tells the memory.
    pub(crate) fn give_up_lead(&mut self, lead: Lead) {
        self.local_share.give_up_lead(lead);
    }

    /// Takes one message of a peer.
    pub(crate) fn receive(&mut self, from: MemberId, message: Message, now: Timestamp) {
        // Whoever was declared dead is heard no more, unless a new session begins.
        if !self.peers.contains_key(&from) {
            return;
        }
        self.heard(from, now);
        // It comes from a cluster of more slots, and means nothing here.
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

    /// A turn: whatever time alone brings about.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let last = std::mem::replace(&mut self.ticked_at, now);
        // What waits in the links is read before this turn tells who is silent or late. Not twice in a row, so that
        // nothing waits for long where every turn is late.
        let defers = TICK_LATE <= now.since(last) && self.on_time_since != last;
        if TICK_LATE <= now.since(last) {
            self.on_time_since = now;
        }
        if defers {
            return;
        }
        self.check_peers(now);
        self.start_serving(now);
        // Nothing moves by itself, so that all slots are looked at in vain only now and then.
        if std::mem::take(&mut self.slots_dirty) || SLOTS_CHECK_INTERVAL <= now.since(self.slots_checked_at) {
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

    /// What waits for `peer`, oldest first: so many messages at most, and about so many bytes.
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
            if bytes_max < bytes && 0 < count {
                break;
            }
            count += 1;
        }
        let messages: Vec<Message> = waiting.drain(..count).collect();
        self.mark_written(&messages, now);
        messages
    }

    /// The peers for which something has begun to wait since this was last asked.
    pub(crate) fn ready_peers(&mut self) -> Vec<MemberId> {
        std::mem::take(&mut self.ready_peers)
    }

    /// What is to be done, in order.
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

    /// The slot's version where this replica holds it.
    fn version(&self, slot: Slot) -> Option<Version> {
        let ownership = self.slot(slot).ownership.as_ref()?;
        Some(Version { epoch: ownership.epoch, seq: self.memory.version_seq(slot) })
    }
}
