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
        message::{Copy, Hashing, Holder, Message, Origin, Record, State, TransferId, Version},
        slots::Wanted,
    },
    descriptor::Secret,
    store::{Lead, Memory, Slot, SlotData},
    time::Timestamp,
};

mod asks;
mod backups;
mod claims;
mod figures;
mod hand_off;
mod joining;
mod lender;
mod lessee;
mod members;
mod shares;
mod view;

pub use asks::Wish;
pub(crate) use asks::{By, Outcome, Ticket};
pub(crate) use figures::Figures;
pub use figures::{MemberView, View};

use asks::Asks;
use lender::{Lender, Moment};
use lessee::Lessee;
use members::{Gone, Peer};
use shares::Shares;

/// The most messages that wait for one peer; beyond them it counts as unreachable for asks.
const WAITING_MAX: usize = 65_536;

/// A turn that comes so long after the one before tells that this replica was too busy, or stopped. (They are due every
/// 10 ms.)
const TURN_LATE: Duration = Duration::from_millis(25);

/// How often all slots are looked at while nothing happens.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// What can be chosen about a replica's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// How long nothing may be heard of a peer before it counts as silent.
    pub(crate) silence: Duration,
    /// After so long a silence a peer is treated as dead.
    pub(crate) forget_after: Duration,
    /// How long to wait for seeds before being the first.
    pub(crate) patience: Duration,
    /// How often changed counters go to the runner-up; `None` for never.
    pub(crate) backup_interval: Option<Duration>,
    /// A key that is forwarded so often a second is asked for a lease; `None` for never.
    pub(crate) lease_from: Option<u64>,
    /// The most hand-offs on their way to one peer.
    pub(crate) transfers_max: usize,
}

/// What the shell around it is to do.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Somebody may be reached at this address.
    Dial(String),
    /// This member is treated as dead: end the link.
    Forget(MemberId),
    /// The answer to one of our own requests.
    Answer(Ticket, Outcome),
    /// Keys are hashed with this from now on.
    Hash(Secret),
    /// All is handed off that can be: leave.
    Leave,
    /// Something that an operator should know of.
    Tell(Event),
}

/// What an operator should know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// This replica knows who holds what, and answers.
    Joined,
    /// It has given up all its counters for those of another cluster that it has met.
    BegunAnew,
    /// It hears too few others to rely on what it holds.
    Isolated,
    /// It hears enough of them again.
    Reunited,
}

/// One replica's part in the cluster.
#[derive(Debug)]
pub(crate) struct Node {
    me: MemberId,
    tuning: Tuning,
    memory: Arc<Memory>,
    /// The time by which counters are decided. It may step forward at any time, and back where a lead is given up, so
    /// nothing is waited for by it.
    wall: Timestamp,
    record: Record,
    hashing: Option<Hashing>,
    /// Whether the hashing is in use, rather than only remembered from a former process.
    is_founded: bool,
    /// Slots that this replica claims have had at least so many changes of hands: as many as its wall showed when it
    /// began to serve, so that what former processes have kept is older.
    epochs_from: u64,
    born: Timestamp,
    /// The last turn.
    turned_at: Timestamp,
    /// The last turn that came late, because this replica was too busy or stopped. Since then it has sent and read on time.
    kept_up_since: Timestamp,
    /// Whether every seed was tried, and none answered but this process itself.
    alone: bool,
    draining_since: Option<Timestamp>,
    peers: BTreeMap<MemberId, Peer>,
    gone: BTreeMap<MemberId, Gone>,
    /// The members of the last view in which most were heard.
    healthy: BTreeSet<MemberId>,
    isolated: bool,
    wanted: Wanted,
    slots: Vec<SlotState>,
    pending: BTreeMap<TransferId, Pending>,
    transfers: u64,
    backed_up_at: Timestamp,
    /// A new runner-up has not been sent everything yet.
    backups_left: bool,
    swept_at: Timestamp,
    /// Something has happened that may let slots move.
    restless: bool,
    looked_at: Timestamp,
    asks: Asks,
    lender: Lender,
    lessee: Lessee,
    shares: Shares,
    outbox: BTreeMap<MemberId, VecDeque<Message>>,
    woken: Vec<MemberId>,
    actions: Vec<Action>,
    figures: Figures,
}

/// What is known of one slot.
#[derive(Debug, Default)]
struct SlotState {
    /// The newest holder that was heard of.
    holder: Option<Holder>,
    /// Present while this replica holds it.
    held: Option<Held>,
    /// Kept for another holder.
    copy: Option<Kept>,
    /// The last backup: of which version, and to whom.
    sent: Option<(Version, MemberId)>,
    /// Hand-offs to be acknowledged when the runner-up has a backup.
    owed: Vec<TransferId>,
    query: Option<Query>,
    /// Who was told last that the slot is an orphan, and of which holder.
    told: Option<(Holder, MemberId)>,
    /// Slices were lent or came back since the last backup.
    lent_changed: bool,
}

/// What a holder knows beside the counters.
#[derive(Clone, Debug)]
struct Held {
    epoch: u64,
    origin: Origin,
    /// From when on nobody can come any more who knows of another lineage.
    origin_kept_until: Timestamp,
}

/// A copy and when it was last renewed.
#[derive(Clone, Debug)]
struct Kept {
    copy: Copy,
    at: Timestamp,
}

/// A hand-off that is not acknowledged yet.
#[derive(Clone, Debug)]
struct Pending {
    slot: Slot,
    copy: Copy,
    origin: Origin,
    to: MemberId,
    at: Timestamp,
}

/// A slot that this replica would claim.
#[derive(Clone, Debug)]
struct Query {
    /// Those who have not answered.
    waiting: BTreeSet<MemberId>,
    /// The newest copy of those that were heard of.
    best: Option<Copy>,
    /// Asked again after this.
    at: Timestamp,
    /// Somebody hears the holder, so it is not claimed for now.
    blocked: bool,
}

impl Node {
    /// A replica that has joined nobody yet. Its memory is shared: it holds no slot before it is given one.
    pub(crate) fn new(
        me: MemberId,
        address: String,
        tuning: Tuning,
        memory: Arc<Memory>,
        now: Timestamp,
    ) -> Self {
        if tuning.backup_interval.is_some() {
            memory.track_changes();
        }
        let record = Record { id: me, address, state: State::Joining, rules: 0, changes: 0 };
        let slots = (0..memory.slots()).map(|_| SlotState::default()).collect();
        Self {
            me,
            tuning,
            memory,
            wall: now,
            record,
            hashing: None,
            is_founded: false,
            epochs_from: 0,
            born: now,
            turned_at: now,
            kept_up_since: now,
            alone: false,
            draining_since: None,
            peers: BTreeMap::new(),
            gone: BTreeMap::new(),
            healthy: BTreeSet::new(),
            isolated: false,
            wanted: Wanted::default(),
            slots,
            pending: BTreeMap::new(),
            transfers: 0,
            backed_up_at: now,
            backups_left: false,
            swept_at: now,
            restless: true,
            looked_at: now,
            asks: Asks::default(),
            lender: Lender::default(),
            lessee: Lessee::default(),
            shares: Shares::default(),
            outbox: BTreeMap::new(),
            woken: Vec::new(),
            actions: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// Offers counters of a former process, hashed with `hashing`, as copies: they are used unless others know newer.
    pub(crate) fn restore(&mut self, secret: Secret, copies: Vec<(Slot, Version, SlotData)>, now: Timestamp) {
        self.hashing = Some(Hashing { founder: self.me, secret });
        for (slot, version, contents) in copies {
            let copy = Copy { version, contents: Arc::new(contents), slices: Vec::new() };
            self.epochs_from = self.epochs_from.max(version.epoch);
            self.slots[slot.index()].copy = Some(Kept { copy, at: now });
        }
    }

    /// What the clock of counters shows at the next events. All other instants are those of a clock that goes on
    /// evenly, whatever the wall's does.
    pub(crate) fn set_wall(&mut self, wall: Timestamp) {
        self.wall = wall;
    }

    /// The clock of counters gives up a lead. The caller tells the memory.
    pub(crate) fn give_up_lead(&mut self, lead: Lead) {
        self.shares.give_up_lead(lead);
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
        if is_of_a_slot && !self.is_mapped(from) {
            return;
        }
        self.restless |= message.may_move_slots();
        match message {
            Message::Hello(hello) => self.greeted(from, *hello, now),
            Message::Member(record) => self.hear(record, now),
            Message::Holds { slot, epoch, origin } => self.told_holder(from, slot, epoch, origin, now),
            Message::Transfer(transfer) => self.take(from, *transfer, now),
            Message::Taken(id) => self.taken(id, now),
            Message::Backup { slot, copy, after } => self.keep(from, slot, copy, after, now),
            Message::Backed { slot, version } => self.backed(from, slot, version, now),
            Message::Lacking { slot } => self.lacking(from, slot, now),
            Message::Query { slot, best, dead } => self.queried_by(from, slot, best, &dead, now),
            Message::Known { slot, holder, alive, copy } => {
                self.told_known(from, slot, holder, alive, copy, now)
            }
            Message::Orphan { slot, holder, dead } => self.told_orphan(slot, holder, &dead, now),
            Message::Better { slot, copy } => self.told_better(slot, copy, now),
            Message::Ask { ticket, question, budget, hops } => {
                self.asked_by(from, ticket, question, budget, hops, now);
            }
            Message::Answer { ticket, reply } => self.answered(ticket, reply, now),
            Message::Recall { key } => self.recalled(key, now),
            Message::Revoke { key } => self.lessee.revoke(key),
        }
    }

    /// A turn: whatever time alone brings about.
    pub(crate) fn turn(&mut self, now: Timestamp) {
        let last = std::mem::replace(&mut self.turned_at, now);
        // What waits in the links is read before this turn tells who is silent or late. Not twice in a row, so that
        // nothing waits for long where every turn is late.
        let defers = TURN_LATE <= now.since(last) && self.kept_up_since != last;
        if TURN_LATE <= now.since(last) {
            self.kept_up_since = now;
        }
        if defers {
            return;
        }
        self.watch_peers(now);
        self.start_serving(now);
        // Nothing moves by itself, so that all slots are looked at in vain only now and then.
        if std::mem::take(&mut self.restless) || LOOK_AFTER <= now.since(self.looked_at) {
            self.looked_at = now;
            self.hand_off_unwanted(now);
            self.claim_orphans(now);
            self.tell_of_orphans();
        }
        self.drop_old_copies(now);
        self.back_up_when_due(now);
        self.end_leases(now);
        self.tell_shares(now);
        self.ask_again(now);
        self.expire_asks(now);
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
            bytes += message.weight();
            if bytes_max < bytes && 0 < count {
                break;
            }
            count += 1;
        }
        let messages: Vec<Message> = waiting.drain(..count).collect();
        self.have_left(&messages, now);
        messages
    }

    /// The peers for which something has begun to wait since this was last asked.
    pub(crate) fn woken(&mut self) -> Vec<MemberId> {
        std::mem::take(&mut self.woken)
    }

    /// What is to be done, in order.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    fn send(&mut self, to: MemberId, message: Message) {
        if self.peers.get(&to).is_some_and(|peer| peer.linked) {
            let waiting = self.outbox.entry(to).or_default();
            if waiting.is_empty() {
                self.woken.push(to);
            }
            waiting.push_back(message);
        }
    }

    fn tell_all(&mut self, message: &Message) {
        let linked = self.peers.iter().filter(|(_, peer)| peer.linked);
        for to in linked.map(|(id, _)| *id).collect::<Vec<_>>() {
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
        let held = self.slot(slot).held.as_ref()?;
        Some(Version { epoch: held.epoch, seq: self.memory.version_seq(slot) })
    }
}
