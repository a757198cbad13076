//! Requests: answered where the slot is held, and sent there from everywhere else.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    algorithm::{Decision, Operation, Verdict},
    cluster::{
        MemberId,
        message::{Deed, Message, Question, Reply},
        node::{Node, WAITING_MAX},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
    store::{Check, NotLocal, OnRefusal, Slot},
    time::Timestamp,
};

/// After so many replicas a request waits for a turn, for the maps are still changing.
const HOPS_MAX: u8 = 4;
/// The most requests that are open at a time.
const OPEN_MAX: usize = 100_000;
/// How long a late answer may still come.
const LATE_MAX: Duration = Duration::from_secs(30);
/// After so many late answers in a row a peer is spared for a while.
const LATE_IN_A_ROW: u32 = 64;
/// For how long.
const SPARED: Duration = Duration::from_secs(1);

/// Which check of which call of this replica's own callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) call: u64,
    pub(crate) check: u32,
}

/// What a request of this replica's own wants beside its deed.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// What is answered where the holder cannot be reached.
    pub otherwise: OnOwnerUnavailable,
    /// Whether slices may be lent of it.
    pub lease: bool,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) decision: Decision,
    /// Hits that were charged.
    pub(crate) charged: u64,
    pub(crate) by: By,
}

impl Outcome {
    /// What is answered where nobody can say anything better.
    pub(crate) fn nothing(wish: Wish) -> Self {
        let verdict = match wish.otherwise {
            OnOwnerUnavailable::Allow => Verdict::Pass,
            OnOwnerUnavailable::LocalShare | OnOwnerUnavailable::Deny => {
                Verdict::Refuse { retry_after: None }
            }
        };
        let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
        Self { decision, charged: 0, by: By::Degraded }
    }
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The holder of the counter.
    Holder,
    /// This replica, out of what it was lent, or of what it was told.
    Lease,
    /// This replica, for the holder could not be reached.
    Degraded,
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
enum Asker {
    Here(Ticket, Wish),
    Peer(MemberId, u64),
    Nobody,
}

/// A request on its way to another replica.
#[derive(Clone, Debug)]
struct Forward {
    asker: Asker,
    question: Arc<Question>,
    to: MemberId,
    sent_at: Timestamp,
    /// When the link took it.
    left_at: Option<Timestamp>,
    deadline: Timestamp,
    hops: u8,
}

impl Forward {
    /// Whether the peer is what made it late, rather than this replica, which ran on time since `kept_up_since`: it
    /// left within the first half of its budget, and whatever came since was read.
    fn is_late_by_peer(&self, kept_up_since: Timestamp) -> bool {
        let half = self.deadline.since(self.sent_at) / 2;
        kept_up_since <= self.sent_at && self.left_at.is_some_and(|left| left.since(self.sent_at) <= half)
    }
}

/// A request that waits here.
#[derive(Clone, Debug)]
struct Parked {
    asker: Asker,
    question: Arc<Question>,
    deadline: Timestamp,
    hops: u8,
}

/// A request whose answer did not come in time.
#[derive(Clone, Debug)]
struct Late {
    question: Arc<Question>,
    until: Timestamp,
}

/// The requests that are open.
#[derive(Debug, Default)]
pub(super) struct Asks {
    tickets: u64,
    forwards: BTreeMap<u64, Forward>,
    parked: Vec<Parked>,
    late: BTreeMap<u64, Late>,
    /// Since no earlier time has anything to expire.
    next_deadline: Option<Timestamp>,
}

impl Asks {
    /// Whether something is owed to others. What this replica was asked by callers it goes on with while it leaves.
    pub(super) fn are_owed(&self) -> bool {
        let owed = |asker: &Asker| match asker {
            Asker::Peer(..) | Asker::Nobody => true,
            Asker::Here(..) => false,
        };
        let forwards = self.forwards.values().map(|forward| &forward.asker);
        forwards.chain(self.parked.iter().map(|parked| &parked.asker)).any(owed)
    }

    pub(super) fn len(&self) -> usize {
        self.forwards.len() + self.parked.len()
    }
}

impl Node {
    /// A request of this replica's own. Its answer comes as an action, at the latest in the first turn after
    /// `deadline`.
    pub(crate) fn ask(
        &mut self,
        ticket: Ticket,
        question: Question,
        wish: Wish,
        deadline: Timestamp,
        now: Timestamp,
    ) {
        self.route(Asker::Here(ticket, wish), Arc::new(question), deadline, 0, now);
    }

    /// Something that is to be done at the holder, whenever it can be.
    pub(crate) fn tell(&mut self, question: impl Into<Arc<Question>>, now: Timestamp) {
        let deadline = now.after(LATE_MAX);
        self.route(Asker::Nobody, question.into(), deadline, 0, now);
    }

    pub(super) fn asked_by(
        &mut self,
        from: MemberId,
        ticket: u64,
        question: Arc<Question>,
        budget: Duration,
        hops: u8,
        now: Timestamp,
    ) {
        let deadline = now.after(budget);
        let asker = if ticket == 0 { Asker::Nobody } else { Asker::Peer(from, ticket) };
        self.route(asker, question, deadline, hops, now);
    }

    fn slot_of(&self, question: &Question) -> Slot {
        Slot::of(question.key, self.slots.len())
    }

    fn route(
        &mut self,
        asker: Asker,
        question: Arc<Question>,
        deadline: Timestamp,
        hops: u8,
        now: Timestamp,
    ) {
        let parked = Parked { asker, question, deadline, hops };
        self.route_on(parked, HOPS_MAX < hops, now);
    }

    /// Answers, sends on, or lets wait; `pause` where it should wait for a turn first.
    fn route_on(&mut self, parked: Parked, pause: bool, now: Timestamp) {
        let slot = self.slot_of(&parked.question);
        if self.slot(slot).held.is_some() {
            // What was consumed elsewhere counts, whoever turns out to hold it.
            if self.isolated && !matters(&parked.question.deed) {
                return self.cannot_reach(parked.asker, parked.question);
            }
            return match self.carry_out(&parked.asker, &parked.question, now) {
                Some(reply) => self.reply(parked.asker, &parked.question, reply, now, now),
                None => {
                    self.recall(parked.question.key);
                    self.park(parked);
                }
            };
        }
        let mut parked = parked;
        if let Asker::Here(ticket, wish) = parked.asker
            && wish.lease
            && let Deed::Ask(ask) = parked.question.deed
        {
            if let Some((decision, charged)) =
                self.lessee.decide(parked.question.key, &parked.question.limit, ask, now)
            {
                self.figures.by_lease += 1;
                let outcome = Outcome { decision, charged, by: By::Lease };
                self.actions.push(super::Action::Answer(ticket, outcome));
                return;
            }
            if parked.hops == 0 && self.draining_since.is_none() {
                let wish = self.lessee.wish(parked.question.key, self.tuning.lease_from, now);
                ask_for(&mut parked.question, wish);
            }
        }
        let holder = self.slot(slot).holder.map(|holder| holder.member);
        let to = holder.filter(|member| *member != self.me && !self.is_gone(*member));
        let Some(to) = to.filter(|_| !pause) else { return self.park(parked) };
        let spared = self.peers.get(&to).is_none_or(|peer| now < peer.spared_until);
        let full = WAITING_MAX <= self.outbox.get(&to).map_or(0, VecDeque::len);
        // Since the last turn this replica may not have read what the peer has sent.
        let hears = self.hears(to, self.turned_at);
        if self.isolated || spared || full || OPEN_MAX <= self.asks.len() || !hears {
            return self.cannot_reach(parked.asker, parked.question);
        }
        let Parked { asker, mut question, deadline, hops, .. } = parked;
        if let Asker::Peer(..) = asker {
            // A slice is lent to whoever asks for itself, and called back from there.
            ask_for(&mut question, 0);
        }
        let budget = deadline.since(now);
        let ticket = match asker {
            Asker::Nobody if !matters(&question.deed) => 0,
            Asker::Nobody | Asker::Here(..) | Asker::Peer(..) => {
                self.asks.tickets += 1;
                let (sent_at, question) = (now, question.clone());
                let forward = Forward { asker, question, to, sent_at, left_at: None, deadline, hops };
                self.asks.forwards.insert(self.asks.tickets, forward);
                self.asks.expect(deadline);
                self.asks.tickets
            }
        };
        self.figures.forwarded += 1;
        self.send(to, Message::Ask { ticket, question, budget, hops: hops + 1 });
    }

    fn park(&mut self, parked: Parked) {
        if OPEN_MAX <= self.asks.len() {
            return self.cannot_reach(parked.asker, parked.question);
        }
        self.asks.expect(parked.deadline);
        self.asks.parked.push(parked);
    }

    /// Does what is asked to the counter, which is held here; `None` where slices have to come back first.
    fn carry_out(&mut self, asker: &Asker, question: &Question, now: Timestamp) -> Option<Reply> {
        let Question { key, limit, deed, wish } = question;
        let slot = self.slot_of(question);
        let mut charged = 0;
        let decision = match deed {
            Deed::Ask(ask) => {
                let check = Check { key: *key, limit, operation: *ask, on_refusal: OnRefusal::Keep };
                match self.memory.apply(&[check], self.wall, |_| false) {
                    Ok(decisions) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(NotLocal::Lent(_)) => return None,
                    // It is held, as the caller has seen; a clock that stands aside changes nothing of that.
                    Err(NotLocal::Slot(_)) => return Some(Reply::Unreachable),
                }
            }
            Deed::Undo(receipt) => self.memory.undo(*key, limit, *receipt, self.wall),
            Deed::Absorb(consumed) => {
                self.memory.add(slot, consumed.difference(&Default::default()), self.wall);
                self.memory.peek(*key, limit, self.wall).peek
            }
            Deed::Settle(settlement) => {
                self.settle(*key, limit, settlement, now);
                self.memory.peek(*key, limit, self.wall).peek
            }
            Deed::Set(hits) => {
                self.forget_charged(*key);
                self.memory.set(*key, limit, *hits, self.wall)
            }
        };
        if frees(deed) {
            self.revoke(*key);
        }
        let grant = match asker {
            Asker::Peer(peer, _) if 0 < *wish => self.grant(*peer, question, &decision, now),
            Asker::Peer(..) | Asker::Here(..) | Asker::Nobody => None,
        };
        Some(Reply::Decided { decision, charged, grant })
    }

    fn reply(
        &mut self,
        asker: Asker,
        question: &Arc<Question>,
        reply: Reply,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        match (asker, reply) {
            (Asker::Nobody, Reply::Decided { .. }) => {}
            (Asker::Nobody, Reply::Unreachable) => self.keep_to_tell(question.clone()),
            (Asker::Peer(peer, ticket), reply) => self.send(peer, Message::Answer { ticket, reply }),
            (Asker::Here(ticket, _), Reply::Decided { decision, charged, grant }) => {
                if let Some(grant) = grant {
                    self.granted(question, &decision, grant, asked_at, now);
                }
                let outcome = Outcome { decision, charged, by: By::Holder };
                self.actions.push(super::Action::Answer(ticket, outcome));
            }
            (asker @ Asker::Here(..), Reply::Unreachable) => self.cannot_reach(asker, question.clone()),
        }
    }

    pub(super) fn answered(&mut self, ticket: u64, reply: Reply, now: Timestamp) {
        if let Some(forward) = self.asks.forwards.remove(&ticket) {
            if let Some(peer) = self.peers.get_mut(&forward.to) {
                peer.late_in_a_row = 0;
            }
            return self.reply(forward.asker, &forward.question, reply, forward.sent_at, now);
        }
        // It was answered without: what it charged is given back.
        if let Some(late) = self.asks.late.remove(&ticket)
            && let Reply::Decided { decision: Decision { receipt: Some(receipt), .. }, .. } = reply
            && matches!(late.question.deed, Deed::Ask(_))
        {
            self.figures.late_answers += 1;
            self.tell(
                Question { deed: Deed::Undo(receipt), wish: 0, ..Question::clone(&late.question) },
                now,
            );
        }
    }

    /// The holder cannot be asked. Peers are told so; our own requests are answered as their rules say.
    fn cannot_reach(&mut self, asker: Asker, question: Arc<Question>) {
        match asker {
            Asker::Peer(peer, ticket) => {
                self.send(peer, Message::Answer { ticket, reply: Reply::Unreachable })
            }
            Asker::Here(ticket, wish) => {
                self.figures.degraded += 1;
                let outcome = match (&question.deed, wish.otherwise) {
                    (Deed::Ask(ask), OnOwnerUnavailable::LocalShare) => {
                        let (Question { key, limit, .. }, members) = (&*question, self.healthy.len());
                        let (decision, charged) = self.shares.decide(*key, limit, *ask, members, self.wall);
                        Outcome { decision, charged, by: By::Degraded }
                    }
                    (Deed::Ask(_), OnOwnerUnavailable::Allow | OnOwnerUnavailable::Deny)
                    | (Deed::Undo(_) | Deed::Absorb(_) | Deed::Settle(_) | Deed::Set(_), _) => {
                        Outcome::nothing(wish)
                    }
                };
                self.actions.push(super::Action::Answer(ticket, outcome));
            }
            // What was consumed must be told, now or later.
            Asker::Nobody => self.keep_to_tell(question),
        }
    }

    /// Requests that waited for `slot` to have a holder.
    pub(super) fn ask_parked(&mut self, slot: Slot, now: Timestamp) {
        let slots = self.slots.len();
        self.ask_again_where(|question| Slot::of(question.key, slots) == slot, now);
    }

    /// Requests that waited for slices of `key`.
    pub(super) fn ask_lent(&mut self, key: Key, now: Timestamp) {
        self.ask_again_where(|question| question.key == key, now);
    }

    /// A turn of those that wait.
    pub(super) fn ask_again(&mut self, now: Timestamp) {
        self.ask_again_where(|_| true, now);
    }

    fn ask_again_where(&mut self, is_ready: impl Fn(&Question) -> bool, now: Timestamp) {
        let parked = std::mem::take(&mut self.asks.parked);
        let (ready, waiting): (Vec<Parked>, _) =
            parked.into_iter().partition(|parked| is_ready(&parked.question));
        self.asks.parked = waiting;
        for parked in ready {
            self.route_on(parked, false, now);
        }
    }

    /// Requests to somebody who is dead are asked again: it may have charged them, which is strict, never lenient.
    pub(super) fn ask_elsewhere(&mut self, member: MemberId, now: Timestamp) {
        let theirs: Vec<u64> = self
            .asks
            .forwards
            .iter()
            .filter(|(_, forward)| forward.to == member)
            .map(|(id, _)| *id)
            .collect();
        for ticket in theirs {
            if let Some(Forward { asker, question, deadline, hops, .. }) = self.asks.forwards.remove(&ticket)
            {
                self.route_on(Parked { asker, question, deadline, hops }, false, now);
            }
        }
    }

    /// Answers what has no time left.
    pub(super) fn expire_asks(&mut self, now: Timestamp) {
        if self.asks.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        let parked = std::mem::take(&mut self.asks.parked);
        let (over, waiting): (Vec<Parked>, _) = parked.into_iter().partition(|parked| parked.deadline <= now);
        self.asks.parked = waiting;
        for Parked { asker, question, .. } in over {
            self.cannot_reach(asker, question);
        }
        let over: Vec<u64> = self
            .asks
            .forwards
            .iter()
            .filter(|(_, forward)| forward.deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        for ticket in over {
            if let Some(forward) = self.asks.forwards.remove(&ticket) {
                if forward.is_late_by_peer(self.kept_up_since) {
                    self.note_late(forward.to, now);
                }
                let Forward { asker, question, .. } = forward;
                if let Asker::Here(..) = asker
                    && self.asks.late.len() < OPEN_MAX
                {
                    let until = now.after(LATE_MAX);
                    self.asks.late.insert(ticket, Late { question: question.clone(), until });
                }
                self.cannot_reach(asker, question);
            }
        }
        self.asks.late.retain(|_, late| now < late.until);
        let deadlines = self.asks.forwards.values().map(|forward| forward.deadline);
        let deadlines = deadlines.chain(self.asks.parked.iter().map(|parked| parked.deadline));
        self.asks.next_deadline = deadlines.chain(self.asks.late.values().map(|late| late.until)).min();
    }

    fn note_late(&mut self, member: MemberId, now: Timestamp) {
        // What was asked before it was spared says nothing new of it.
        let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.spared_until <= now) else { return };
        peer.late_in_a_row += 1;
        if LATE_IN_A_ROW <= peer.late_in_a_row {
            (peer.late_in_a_row, peer.spared_until) = (LATE_IN_A_ROW / 2, now.after(SPARED));
            self.figures.breaker_openings += 1;
        }
    }

    /// Notes that the link has taken these messages.
    pub(super) fn have_left(&mut self, messages: &[Message], now: Timestamp) {
        for message in messages {
            if let Message::Ask { ticket, .. } = message
                && let Some(forward) = self.asks.forwards.get_mut(ticket)
            {
                forward.left_at = Some(now);
            }
        }
    }

    /// Nothing that is open can be answered: the counters that it asks for are void.
    pub(super) fn fail_asks(&mut self) {
        let forwards = std::mem::take(&mut self.asks.forwards).into_values();
        let parked = std::mem::take(&mut self.asks.parked).into_iter();
        let open = forwards.map(|forward| (forward.asker, forward.question));
        let open: Vec<_> = open.chain(parked.map(|parked| (parked.asker, parked.question))).collect();
        for (asker, question) in open {
            if !matches!(asker, Asker::Nobody) {
                self.cannot_reach(asker, question);
            }
        }
        self.asks.late.clear();
    }
}

impl Asks {
    fn expect(&mut self, deadline: Timestamp) {
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }
}

/// Has `question` ask for so many hits to be lent. Most ask for none, and stay as they are.
fn ask_for(question: &mut Arc<Question>, wish: u64) {
    if question.wish != wish {
        Arc::make_mut(question).wish = wish;
    }
}

/// Whether it has to be told again where it gets lost.
fn matters(deed: &Deed) -> bool {
    match deed {
        Deed::Absorb(_) | Deed::Settle(_) => true,
        Deed::Ask(_) | Deed::Undo(_) | Deed::Set(_) => false,
    }
}

/// Whether it leaves more than there was, so that refusals that were told are no longer true.
fn frees(deed: &Deed) -> bool {
    match deed {
        Deed::Ask(Operation::Refund(_)) | Deed::Undo(_) | Deed::Set(_) => true,
        Deed::Ask(Operation::Peek | Operation::Charge(_)) | Deed::Absorb(_) | Deed::Settle(_) => false,
    }
}
