//! Requests: answered where the slot is held, and sent there from everywhere else.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    algorithm::{Ask, Decision, Verdict},
    cluster::{
        MemberId,
        message::{Message, RemoteCheck, RemoteOperation, Reply},
        node::{Node, OUTBOX_MAX},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
    store::{Check, Elsewhere, OnRefusal, Slot},
    time::Timestamp,
};

/// After so many replicas a request waits for a turn, for the maps are still changing.
const HOPS_MAX: u8 = 4;
/// The most requests that are open at a time.
const OPEN_CHECKS_MAX: usize = 100_000;
/// How long a late answer may still come.
const LATE_REPLY_MAX: Duration = Duration::from_secs(30);
/// After so many late answers in a row a peer is spared for a while.
const BREAKER_TIMEOUTS: u32 = 64;
/// For how long.
const BREAKER_OPEN_FOR: Duration = Duration::from_secs(1);

/// Which check of which call of this replica's own callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) call: u64,
    pub(crate) check: u32,
}

/// What a request of this replica's own wants beside its deed.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPolicy {
    /// What is answered where the holder cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether slices may be lent of it.
    pub lease: bool,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) decision: Decision,
    /// Hits that were charged.
    pub(crate) charged: u64,
    pub(crate) decided_by: DecidedBy,
}

impl Outcome {
    /// What is answered where nobody can say anything better.
    pub(crate) fn without_owner(policy: ForwardPolicy) -> Self {
        let verdict = match policy.on_owner_unavailable {
            OnOwnerUnavailable::Allow => Verdict::Pass,
            OnOwnerUnavailable::LocalShare | OnOwnerUnavailable::Deny => {
                Verdict::Refuse { retry_after: None }
            }
        };
        let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
        Self { decision, charged: 0, decided_by: DecidedBy::Degraded }
    }
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    /// The holder of the counter.
    Owner,
    /// This replica, out of what it was lent, or of what it was told.
    Lease,
    /// This replica, for the holder could not be reached.
    Degraded,
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
enum Requester {
    Caller(Ticket, ForwardPolicy),
    Peer(MemberId, u64),
    NoReply,
}

/// A request on its way to another replica.
#[derive(Clone, Debug)]
struct Forward {
    requester: Requester,
    check: Arc<RemoteCheck>,
    to: MemberId,
    sent_at: Timestamp,
    /// When the link took it.
    written_at: Option<Timestamp>,
    deadline: Timestamp,
    hops: u8,
}

impl Forward {
    /// Whether the peer is what made it late, rather than this replica, which ran on time since `kept_up_since`: it
    /// left within the first half of its budget, and whatever came since was read.
    fn is_peer_late(&self, on_time_since: Timestamp) -> bool {
        let half = self.deadline.since(self.sent_at) / 2;
        on_time_since <= self.sent_at && self.written_at.is_some_and(|left| left.since(self.sent_at) <= half)
    }
}

/// A request that waits here.
#[derive(Clone, Debug)]
struct ParkedCheck {
    requester: Requester,
    check: Arc<RemoteCheck>,
    deadline: Timestamp,
    hops: u8,
}

/// A request whose answer did not come in time.
#[derive(Clone, Debug)]
struct LateReply {
    check: Arc<RemoteCheck>,
    until: Timestamp,
}

/// The requests that are open.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    tickets: u64,
    forwards: BTreeMap<u64, Forward>,
    parked: Vec<ParkedCheck>,
    late: BTreeMap<u64, LateReply>,
    /// Since no earlier time has anything to expire.
    next_deadline: Option<Timestamp>,
}

impl Forwarding {
    /// Whether something is owed to others. What this replica was asked by callers it goes on with while it leaves.
    pub(super) fn has_peer_checks(&self) -> bool {
        let owed = |requester: &Requester| match requester {
            Requester::Peer(..) | Requester::NoReply => true,
            Requester::Caller(..) => false,
        };
        let forwards = self.forwards.values().map(|forward| &forward.requester);
        forwards.chain(self.parked.iter().map(|parked| &parked.requester)).any(owed)
    }

    pub(super) fn len(&self) -> usize {
        self.forwards.len() + self.parked.len()
    }
}

impl Node {
    /// A request of this replica's own. Its answer comes as an action, at the latest in the first turn after
    /// `deadline`.
    pub(crate) fn submit(
        &mut self,
        ticket: Ticket,
        check: RemoteCheck,
        policy: ForwardPolicy,
        deadline: Timestamp,
        now: Timestamp,
    ) {
        self.route(Requester::Caller(ticket, policy), Arc::new(check), deadline, 0, now);
    }

    /// Something that is to be done at the holder, whenever it can be.
    pub(crate) fn send_to_owner(&mut self, check: impl Into<Arc<RemoteCheck>>, now: Timestamp) {
        let deadline = now.after(LATE_REPLY_MAX);
        self.route(Requester::NoReply, check.into(), deadline, 0, now);
    }

    pub(super) fn receive_forward(
        &mut self,
        from: MemberId,
        ticket: u64,
        check: Arc<RemoteCheck>,
        budget: Duration,
        hops: u8,
        now: Timestamp,
    ) {
        let deadline = now.after(budget);
        let requester = if ticket == 0 { Requester::NoReply } else { Requester::Peer(from, ticket) };
        self.route(requester, check, deadline, hops, now);
    }

    fn slot_of(&self, check: &RemoteCheck) -> Slot {
        Slot::of(check.key, self.slots.len())
    }

    fn route(
        &mut self,
        requester: Requester,
        check: Arc<RemoteCheck>,
        deadline: Timestamp,
        hops: u8,
        now: Timestamp,
    ) {
        let parked = ParkedCheck { requester, check, deadline, hops };
        self.route_parked(parked, HOPS_MAX < hops, now);
    }

    /// Answers, sends on, or lets wait; `pause` where it should wait for a turn first.
    fn route_parked(&mut self, parked: ParkedCheck, wait_for_tick: bool, now: Timestamp) {
        let slot = self.slot_of(&parked.check);
        if self.slot(slot).ownership.is_some() {
            // What was consumed elsewhere counts, whoever turns out to hold it.
            if self.isolated && !must_arrive(&parked.check.operation) {
                return self.owner_unreachable(parked.requester, parked.check);
            }
            return match self.apply_check(&parked.requester, &parked.check, now) {
                Some(reply) => self.reply(parked.requester, &parked.check, reply, now, now),
                None => {
                    self.recall_grants(parked.check.key);
                    self.park(parked);
                }
            };
        }
        let mut parked = parked;
        if let Requester::Caller(ticket, policy) = parked.requester
            && policy.lease
            && let RemoteOperation::Decide(ask) = parked.check.operation
        {
            if let Some((decision, charged)) =
                self.lease_borrower.decide(parked.check.key, &parked.check.limit, ask, now)
            {
                self.stats.leased += 1;
                let outcome = Outcome { decision, charged, decided_by: DecidedBy::Lease };
                self.actions.push(super::Action::Complete(ticket, outcome));
                return;
            }
            if parked.hops == 0 && self.draining_since.is_none() {
                let lease_hits =
                    self.lease_borrower.hits_to_request(parked.check.key, self.settings.lease_from, now);
                set_lease_hits(&mut parked.check, lease_hits);
            }
        }
        let owner = self.slot(slot).owner.map(|owner| owner.member);
        let to = owner.filter(|member| *member != self.local_id && !self.is_departed(*member));
        let Some(to) = to.filter(|_| !wait_for_tick) else { return self.park(parked) };
        let breaker_open = self.peers.get(&to).is_none_or(|peer| now < peer.breaker_open_until);
        let full = OUTBOX_MAX <= self.outbox.get(&to).map_or(0, VecDeque::len);
        // Since the last turn this replica may not have read what the peer has sent.
        let is_reachable = self.is_reachable(to, self.ticked_at);
        if self.isolated || breaker_open || full || OPEN_CHECKS_MAX <= self.forwarding.len() || !is_reachable
        {
            return self.owner_unreachable(parked.requester, parked.check);
        }
        let ParkedCheck { requester, mut check, deadline, hops, .. } = parked;
        if let Requester::Peer(..) = requester {
            // A slice is lent to whoever asks for itself, and called back from there.
            set_lease_hits(&mut check, 0);
        }
        let budget = deadline.since(now);
        let ticket = match requester {
            Requester::NoReply if !must_arrive(&check.operation) => 0,
            Requester::NoReply | Requester::Caller(..) | Requester::Peer(..) => {
                self.forwarding.tickets += 1;
                let (sent_at, check) = (now, check.clone());
                let forward = Forward { requester, check, to, sent_at, written_at: None, deadline, hops };
                self.forwarding.forwards.insert(self.forwarding.tickets, forward);
                self.forwarding.note_deadline(deadline);
                self.forwarding.tickets
            }
        };
        self.stats.forwarded += 1;
        self.send(to, Message::Forward { ticket, check, budget, hops: hops + 1 });
    }

    fn park(&mut self, parked: ParkedCheck) {
        if OPEN_CHECKS_MAX <= self.forwarding.len() {
            return self.owner_unreachable(parked.requester, parked.check);
        }
        self.forwarding.note_deadline(parked.deadline);
        self.forwarding.parked.push(parked);
    }

    /// Does what is asked to the counter, which is held here; `None` where slices have to come back first.
    fn apply_check(&mut self, requester: &Requester, check: &RemoteCheck, now: Timestamp) -> Option<Reply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let slot = self.slot_of(check);
        let mut charged = 0;
        let decision = match operation {
            RemoteOperation::Decide(ask) => {
                let check = Check { key: *key, limit, ask: *ask, on_refusal: OnRefusal::Keep };
                match self.memory.apply(&[check], self.wall, |_| false) {
                    Ok(decisions) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(Elsewhere::Lent(_)) => return None,
                    // It is held, as the caller has seen; a clock that stands aside changes nothing of that.
                    Err(Elsewhere::Slot(_)) => return Some(Reply::Unreachable),
                }
            }
            RemoteOperation::Undo(receipt) => self.memory.undo(*key, limit, *receipt, self.wall),
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(slot, consumed.difference(&Default::default()), self.wall);
                self.memory.look(*key, limit, self.wall).look
            }
            RemoteOperation::Settle(settlement) => {
                self.settle(*key, limit, settlement, now);
                self.memory.look(*key, limit, self.wall).look
            }
            RemoteOperation::Set(hits) => {
                self.fix_charged_hits(*key);
                self.memory.set(*key, limit, *hits, self.wall)
            }
        };
        if frees_hits(operation) {
            self.revoke_refusals(*key);
        }
        let lease = match requester {
            Requester::Peer(peer, _) if 0 < *lease_hits => self.lease_hits(*peer, check, &decision, now),
            Requester::Peer(..) | Requester::Caller(..) | Requester::NoReply => None,
        };
        Some(Reply::Decided { decision, charged, lease })
    }

    fn reply(
        &mut self,
        requester: Requester,
        check: &Arc<RemoteCheck>,
        reply: Reply,
        sent_at: Timestamp,
        now: Timestamp,
    ) {
        match (requester, reply) {
            (Requester::NoReply, Reply::Decided { .. }) => {}
            (Requester::NoReply, Reply::Unreachable) => self.queue_report(check.clone()),
            (Requester::Peer(peer, ticket), reply) => self.send(peer, Message::Reply { ticket, reply }),
            (Requester::Caller(ticket, _), Reply::Decided { decision, charged, lease }) => {
                if let Some(lease) = lease {
                    self.receive_lease_reply(check, &decision, lease, sent_at, now);
                }
                let outcome = Outcome { decision, charged, decided_by: DecidedBy::Owner };
                self.actions.push(super::Action::Complete(ticket, outcome));
            }
            (requester @ Requester::Caller(..), Reply::Unreachable) => {
                self.owner_unreachable(requester, check.clone())
            }
        }
    }

    pub(super) fn receive_reply(&mut self, ticket: u64, reply: Reply, now: Timestamp) {
        if let Some(forward) = self.forwarding.forwards.remove(&ticket) {
            if let Some(peer) = self.peers.get_mut(&forward.to) {
                peer.consecutive_timeouts = 0;
            }
            return self.reply(forward.requester, &forward.check, reply, forward.sent_at, now);
        }
        // It was answered without: what it charged is given back.
        if let Some(late) = self.forwarding.late.remove(&ticket)
            && let Reply::Decided { decision: Decision { receipt: Some(receipt), .. }, .. } = reply
            && matches!(late.check.operation, RemoteOperation::Decide(_))
        {
            self.stats.late_answers += 1;
            self.send_to_owner(
                RemoteCheck {
                    operation: RemoteOperation::Undo(receipt),
                    lease_hits: 0,
                    ..RemoteCheck::clone(&late.check)
                },
                now,
            );
        }
    }

    /// The holder cannot be asked. Peers are told so; our own requests are answered as their rules say.
    fn owner_unreachable(&mut self, requester: Requester, check: Arc<RemoteCheck>) {
        match requester {
            Requester::Peer(peer, ticket) => {
                self.send(peer, Message::Reply { ticket, reply: Reply::Unreachable })
            }
            Requester::Caller(ticket, policy) => {
                self.stats.degraded += 1;
                let outcome = match (&check.operation, policy.on_owner_unavailable) {
                    (RemoteOperation::Decide(ask), OnOwnerUnavailable::LocalShare) => {
                        let (RemoteCheck { key, limit, .. }, members) = (&*check, self.healthy.len());
                        let (decision, charged) =
                            self.local_share.decide(*key, limit, *ask, members, self.wall);
                        Outcome { decision, charged, decided_by: DecidedBy::Degraded }
                    }
                    (RemoteOperation::Decide(_), OnOwnerUnavailable::Allow | OnOwnerUnavailable::Deny)
                    | (
                        RemoteOperation::Undo(_)
                        | RemoteOperation::Absorb(_)
                        | RemoteOperation::Settle(_)
                        | RemoteOperation::Set(_),
                        _,
                    ) => Outcome::without_owner(policy),
                };
                self.actions.push(super::Action::Complete(ticket, outcome));
            }
            // What was consumed must be told, now or later.
            Requester::NoReply => self.queue_report(check),
        }
    }

    /// Requests that waited for `slot` to have a holder.
    pub(super) fn retry_parked_of_slot(&mut self, slot: Slot, now: Timestamp) {
        let slots = self.slots.len();
        self.retry_parked_where(|check| Slot::of(check.key, slots) == slot, now);
    }

    /// Requests that waited for slices of `key`.
    pub(super) fn retry_parked_of_key(&mut self, key: Key, now: Timestamp) {
        self.retry_parked_where(|check| check.key == key, now);
    }

    /// A turn of those that wait.
    pub(super) fn retry_parked(&mut self, now: Timestamp) {
        self.retry_parked_where(|_| true, now);
    }

    fn retry_parked_where(&mut self, is_ready: impl Fn(&RemoteCheck) -> bool, now: Timestamp) {
        let parked = std::mem::take(&mut self.forwarding.parked);
        let (ready, waiting): (Vec<ParkedCheck>, _) =
            parked.into_iter().partition(|parked| is_ready(&parked.check));
        self.forwarding.parked = waiting;
        for parked in ready {
            self.route_parked(parked, false, now);
        }
    }

    /// Requests to somebody who is dead are asked again: it may have charged them, which is strict, never lenient.
    pub(super) fn reroute_forwards(&mut self, member: MemberId, now: Timestamp) {
        let forward_ids: Vec<u64> = self
            .forwarding
            .forwards
            .iter()
            .filter(|(_, forward)| forward.to == member)
            .map(|(id, _)| *id)
            .collect();
        for ticket in forward_ids {
            if let Some(Forward { requester, check, deadline, hops, .. }) =
                self.forwarding.forwards.remove(&ticket)
            {
                self.route_parked(ParkedCheck { requester, check, deadline, hops }, false, now);
            }
        }
    }

    /// Answers what has no time left.
    pub(super) fn expire_checks(&mut self, now: Timestamp) {
        if self.forwarding.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        let parked = std::mem::take(&mut self.forwarding.parked);
        let (over, waiting): (Vec<ParkedCheck>, _) =
            parked.into_iter().partition(|parked| parked.deadline <= now);
        self.forwarding.parked = waiting;
        for ParkedCheck { requester, check, .. } in over {
            self.owner_unreachable(requester, check);
        }
        let over: Vec<u64> = self
            .forwarding
            .forwards
            .iter()
            .filter(|(_, forward)| forward.deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        for ticket in over {
            if let Some(forward) = self.forwarding.forwards.remove(&ticket) {
                if forward.is_peer_late(self.on_time_since) {
                    self.record_timeout(forward.to, now);
                }
                let Forward { requester, check, .. } = forward;
                if let Requester::Caller(..) = requester
                    && self.forwarding.late.len() < OPEN_CHECKS_MAX
                {
                    let until = now.after(LATE_REPLY_MAX);
                    self.forwarding.late.insert(ticket, LateReply { check: check.clone(), until });
                }
                self.owner_unreachable(requester, check);
            }
        }
        self.forwarding.late.retain(|_, late| now < late.until);
        let deadlines = self.forwarding.forwards.values().map(|forward| forward.deadline);
        let deadlines = deadlines.chain(self.forwarding.parked.iter().map(|parked| parked.deadline));
        self.forwarding.next_deadline =
            deadlines.chain(self.forwarding.late.values().map(|late| late.until)).min();
    }

    fn record_timeout(&mut self, member: MemberId, now: Timestamp) {
        // What was asked before it was spared says nothing new of it.
        let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.breaker_open_until <= now) else {
            return;
        };
        peer.consecutive_timeouts += 1;
        if BREAKER_TIMEOUTS <= peer.consecutive_timeouts {
            (peer.consecutive_timeouts, peer.breaker_open_until) =
                (BREAKER_TIMEOUTS / 2, now.after(BREAKER_OPEN_FOR));
            self.stats.breaker_openings += 1;
        }
    }

    /// Notes that the link has taken these messages.
    pub(super) fn mark_written(&mut self, messages: &[Message], now: Timestamp) {
        for message in messages {
            if let Message::Forward { ticket, .. } = message
                && let Some(forward) = self.forwarding.forwards.get_mut(ticket)
            {
                forward.written_at = Some(now);
            }
        }
    }

    /// Nothing that is open can be answered: the counters that it asks for are void.
    pub(super) fn fail_open_checks(&mut self) {
        let forwards = std::mem::take(&mut self.forwarding.forwards).into_values();
        let parked = std::mem::take(&mut self.forwarding.parked).into_iter();
        let open = forwards.map(|forward| (forward.requester, forward.check));
        let open: Vec<_> = open.chain(parked.map(|parked| (parked.requester, parked.check))).collect();
        for (requester, check) in open {
            if !matches!(requester, Requester::NoReply) {
                self.owner_unreachable(requester, check);
            }
        }
        self.forwarding.late.clear();
    }
}

impl Forwarding {
    fn note_deadline(&mut self, deadline: Timestamp) {
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }
}

/// Has `question` ask for so many hits to be lent. Most ask for none, and stay as they are.
fn set_lease_hits(check: &mut Arc<RemoteCheck>, lease_hits: u64) {
    if check.lease_hits != lease_hits {
        Arc::make_mut(check).lease_hits = lease_hits;
    }
}

/// Whether it has to be told again where it gets lost.
fn must_arrive(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Absorb(_) | RemoteOperation::Settle(_) => true,
        RemoteOperation::Decide(_) | RemoteOperation::Undo(_) | RemoteOperation::Set(_) => false,
    }
}

/// Whether it leaves more than there was, so that refusals that were told are no longer true.
fn frees_hits(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Decide(Ask::Refund(_)) | RemoteOperation::Undo(_) | RemoteOperation::Set(_) => true,
        RemoteOperation::Decide(Ask::Look | Ask::Charge(_))
        | RemoteOperation::Absorb(_)
        | RemoteOperation::Settle(_) => false,
    }
}
