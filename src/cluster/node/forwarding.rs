//! Checks: decided here if this replica owns the slot, forwarded to the owner otherwise.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    algorithm::{Decision, Operation, Verdict},
    cluster::{
        MemberId,
        message::{Message, RemoteCheck, RemoteOperation, Reply},
        node::{Node, OUTBOX_MAX},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
    store::{Check, NotLocal, OnRefusal, Slot},
    time::Timestamp,
};

/// After this many hops a check waits for the next tick, because the members' owner tables still differ.
const HOPS_MAX: u8 = 4;
/// The most open checks.
const OPEN_CHECKS_MAX: usize = 100_000;
/// How long a late reply may still arrive.
const LATE_REPLY_MAX: Duration = Duration::from_secs(30);
/// After this many consecutive timeouts the circuit breaker of a peer opens.
const BREAKER_TIMEOUTS: u32 = 64;
/// How long the circuit breaker stays open.
const BREAKER_OPEN_FOR: Duration = Duration::from_secs(1);

/// Identifies one check of one call of a local caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) call: u64,
    pub(crate) check: u32,
}

/// How a local caller's check is handled when another replica owns its counter.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPolicy {
    /// The answer while the owner is unreachable.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether the owner may lend hits of the limit to this replica.
    pub lease: bool,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) decision: Decision,
    /// The hits that were charged.
    pub(crate) charged: u64,
    pub(crate) decided_by: DecidedBy,
}

impl Outcome {
    /// The outcome for a check that neither the owner nor a local share decides.
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

/// What decided the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    /// The owner of the counter.
    Owner,
    /// This replica, from a grant or a refusal that the owner has lent or sent.
    Lease,
    /// This replica, because the owner was unreachable.
    Degraded,
}

/// Where the reply of a check goes.
#[derive(Clone, Copy, Debug)]
enum Requester {
    Caller(Ticket, ForwardPolicy),
    Peer(MemberId, u64),
    NoReply,
}

/// A check that was forwarded to another replica.
#[derive(Clone, Debug)]
struct Forward {
    requester: Requester,
    check: Arc<RemoteCheck>,
    to: MemberId,
    sent_at: Timestamp,
    /// When the link took the message.
    written_at: Option<Timestamp>,
    deadline: Timestamp,
    hops: u8,
}

impl Forward {
    /// Whether the peer caused the timeout. That is so if this replica has run on time since the check was sent, and
    /// the link took the message within the first half of its budget.
    fn is_peer_late(&self, on_time_since: Timestamp) -> bool {
        let half = self.deadline.since(self.sent_at) / 2;
        on_time_since <= self.sent_at
            && self.written_at.is_some_and(|written_at| written_at.since(self.sent_at) <= half)
    }
}

/// A check that waits in this replica.
#[derive(Clone, Debug)]
struct ParkedCheck {
    requester: Requester,
    check: Arc<RemoteCheck>,
    deadline: Timestamp,
    hops: u8,
}

/// A check whose reply did not arrive in time.
#[derive(Clone, Debug)]
struct TimedOutCheck {
    check: Arc<RemoteCheck>,
    until: Timestamp,
}

/// The open checks.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    last_ticket: u64,
    forwards: BTreeMap<u64, Forward>,
    parked: Vec<ParkedCheck>,
    late: BTreeMap<u64, TimedOutCheck>,
    /// Nothing expires before this instant.
    next_deadline: Option<Timestamp>,
}

impl Forwarding {
    /// Whether checks of other replicas, or reports to owners, are open. Checks of local callers do not delay a drain.
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
    /// Starts a check of a local caller. The outcome is an action, at the latest in the first tick after `deadline`.
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

    /// Sends an operation to the owner, now or as soon as the owner is reachable.
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
        self.route_parked(parked, hops > HOPS_MAX, now);
    }

    /// Decides the check, forwards it, or parks it. `wait_for_tick` parks a check that this replica cannot decide.
    fn route_parked(&mut self, parked: ParkedCheck, wait_for_tick: bool, now: Timestamp) {
        let slot = self.slot_of(&parked.check);
        if self.slot(slot).ownership.is_some() {
            // Consumption that was admitted elsewhere is absorbed even while this replica is isolated.
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
            && let RemoteOperation::Decide(operation) = parked.check.operation
        {
            if let Some((decision, charged)) =
                self.lease_borrower.decide(parked.check.key, &parked.check.limit, operation, now)
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
        let full = self.outbox.get(&to).map_or(0, VecDeque::len) >= OUTBOX_MAX;
        // After `ticked_at` this replica may not have read what the peer has sent.
        let is_reachable = self.is_reachable(to, self.ticked_at);
        if self.isolated || breaker_open || full || self.forwarding.len() >= OPEN_CHECKS_MAX || !is_reachable
        {
            return self.owner_unreachable(parked.requester, parked.check);
        }
        let ParkedCheck { requester, mut check, deadline, hops, .. } = parked;
        if let Requester::Peer(..) = requester {
            // Only a replica that asks for its own callers gets a lease, because the owner recalls it from that
            // replica.
            set_lease_hits(&mut check, 0);
        }
        let budget = deadline.since(now);
        let ticket = match requester {
            Requester::NoReply if !must_arrive(&check.operation) => 0,
            Requester::NoReply | Requester::Caller(..) | Requester::Peer(..) => {
                self.forwarding.last_ticket += 1;
                let (sent_at, check) = (now, check.clone());
                let forward = Forward { requester, check, to, sent_at, written_at: None, deadline, hops };
                self.forwarding.forwards.insert(self.forwarding.last_ticket, forward);
                self.forwarding.note_deadline(deadline);
                self.forwarding.last_ticket
            }
        };
        self.stats.forwarded += 1;
        self.send(to, Message::Forward { ticket, check, budget, hops: hops + 1 });
    }

    fn park(&mut self, parked: ParkedCheck) {
        if self.forwarding.len() >= OPEN_CHECKS_MAX {
            return self.owner_unreachable(parked.requester, parked.check);
        }
        self.forwarding.note_deadline(parked.deadline);
        self.forwarding.parked.push(parked);
    }

    /// Applies the check to the counter, which is owned here. `None` if grants have to be returned first.
    fn apply_check(&mut self, requester: &Requester, check: &RemoteCheck, now: Timestamp) -> Option<Reply> {
        let RemoteCheck { key, limit, operation, lease_hits } = check;
        let slot = self.slot_of(check);
        let mut charged = 0;
        let decision = match operation {
            RemoteOperation::Decide(operation) => {
                let check = Check { key: *key, limit, operation: *operation, on_refusal: OnRefusal::Keep };
                match self.memory.apply(&[check], self.wall, |_| false) {
                    Ok(decisions) => {
                        charged = decisions.charged()[0];
                        decisions[0]
                    }
                    Err(NotLocal::Lent(_)) => return None,
                    // Not expected: the caller has checked that this replica owns the slot.
                    Err(NotLocal::Slot(_)) => return Some(Reply::Unreachable),
                }
            }
            RemoteOperation::Undo(receipt) => self.memory.undo(*key, limit, *receipt, self.wall),
            RemoteOperation::Absorb(consumed) => {
                self.memory.add(slot, consumed.difference(&Default::default()), self.wall);
                self.memory.peek(*key, limit, self.wall).peek
            }
            RemoteOperation::Settle(settlement) => {
                self.settle(*key, limit, settlement, now);
                self.memory.peek(*key, limit, self.wall).peek
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
            Requester::Peer(peer, _) if *lease_hits > 0 => self.grant_lease(*peer, check, &decision, now),
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
        // The caller was already answered without this decision, so its charge is undone.
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

    /// Replies that the owner is unreachable. A peer gets that as an answer; a local caller gets what its rule says.
    fn owner_unreachable(&mut self, requester: Requester, check: Arc<RemoteCheck>) {
        match requester {
            Requester::Peer(peer, ticket) => {
                self.send(peer, Message::Reply { ticket, reply: Reply::Unreachable })
            }
            Requester::Caller(ticket, policy) => {
                self.stats.degraded += 1;
                let outcome = match (&check.operation, policy.on_owner_unavailable) {
                    (RemoteOperation::Decide(operation), OnOwnerUnavailable::LocalShare) => {
                        let (RemoteCheck { key, limit, .. }, members) = (&*check, self.healthy.len());
                        let (decision, charged) =
                            self.local_share.decide(*key, limit, *operation, members, self.wall);
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
            // The owner must learn of the consumption later.
            Requester::NoReply => self.queue_report(check),
        }
    }

    /// Retries checks that waited for an owner of `slot`.
    pub(super) fn retry_parked_of_slot(&mut self, slot: Slot, now: Timestamp) {
        let slots = self.slots.len();
        self.retry_parked_where(|check| Slot::of(check.key, slots) == slot, now);
    }

    /// Retries checks that waited for grants of `key`.
    pub(super) fn retry_parked_of_key(&mut self, key: Key, now: Timestamp) {
        self.retry_parked_where(|check| check.key == key, now);
    }

    /// Retries all parked checks.
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

    /// Routes forwards to a departed member again. The member may have charged them already; a second charge is strict,
    /// never lenient.
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

    /// Answers checks whose deadline has passed.
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
                    self.forwarding.late.insert(ticket, TimedOutCheck { check: check.clone(), until });
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
        // Checks that were forwarded before the breaker opened are no new evidence.
        let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.breaker_open_until <= now) else {
            return;
        };
        peer.consecutive_timeouts += 1;
        if peer.consecutive_timeouts >= BREAKER_TIMEOUTS {
            (peer.consecutive_timeouts, peer.breaker_open_until) =
                (BREAKER_TIMEOUTS / 2, now.after(BREAKER_OPEN_FOR));
            self.stats.breaker_openings += 1;
        }
    }

    /// Records that the link has taken these messages.
    pub(super) fn mark_written(&mut self, messages: &[Message], now: Timestamp) {
        for message in messages {
            if let Message::Forward { ticket, .. } = message
                && let Some(forward) = self.forwarding.forwards.get_mut(ticket)
            {
                forward.written_at = Some(now);
            }
        }
    }

    /// Fails all open checks, because their counters are discarded.
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

/// Sets the number of hits to ask for as a lease. Most checks ask for none and are not copied.
fn set_lease_hits(check: &mut Arc<RemoteCheck>, lease_hits: u64) {
    if check.lease_hits != lease_hits {
        Arc::make_mut(check).lease_hits = lease_hits;
    }
}

/// Whether the operation is sent again if it gets lost.
fn must_arrive(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Absorb(_) | RemoteOperation::Settle(_) => true,
        RemoteOperation::Decide(_) | RemoteOperation::Undo(_) | RemoteOperation::Set(_) => false,
    }
}

/// Whether the operation raises what remains, so that earlier refusals are no longer true.
fn frees_hits(operation: &RemoteOperation) -> bool {
    match operation {
        RemoteOperation::Decide(Operation::Refund(_))
        | RemoteOperation::Undo(_)
        | RemoteOperation::Set(_) => true,
        RemoteOperation::Decide(Operation::Peek | Operation::Charge(_))
        | RemoteOperation::Absorb(_)
        | RemoteOperation::Settle(_) => false,
    }
}
