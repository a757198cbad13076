//! Checks: decided here if this replica owns the slot or has borrowed hits, and forwarded to the owner otherwise. What
//! a caller is answered while the owner is unreachable is decided above.

use std::sync::Arc;

use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_remote::{Admitted, DecidedBy, LATE_MAX, LocalShare, RemoteOutcome};
use tollgate_store::{CounterOperation, OperationOutcome, SlotData};

use crate::{
    member::MemberId,
    message::{
        Message,
        check::{CheckReply, LeaseReply, RemoteCheck, RemoteOperation},
    },
    node::{
        context::Context,
        forwarding::{Forward, Forwarding, OpenCheck, Requester},
        lease_borrower::LeaseBorrower,
        output::{NodeAction, Ticket},
        slots::Slots,
    },
};

/// After this many hops a check waits for the next tick, because the members' owner tables still differ.
const HOPS_MAX: u8 = 4;

/// Routes checks during one input.
#[derive(Debug)]
pub(super) struct Router<'n> {
    pub(super) forwarding: &'n mut Forwarding,
    pub(super) borrower: &'n mut LeaseBorrower,
    pub(super) slots: &'n mut Slots,
    pub(super) cx: Context<'n>,
}

impl Router<'_> {
    pub(super) fn receive_reply(&mut self, ticket: u64, reply: CheckReply) {
        if let Some(Forward { open, sent_at, .. }) = self.forwarding.take_answered(ticket) {
            return self.reply(open, reply, sent_at);
        }
        let Some(Forward { open: OpenCheck { check, .. }, sent_at, .. }) =
            self.forwarding.late.remove(&ticket)
        else {
            return;
        };
        let CheckReply::Decided { outcome, lease } = reply else { return };
        // The owner charges hits that it has lent, unless this replica uses or returns them.
        if let Some(lease) = lease {
            self.receive_lease(&check, &outcome, *lease, sent_at);
        }
        // The caller was already answered without this decision, so its charge is undone.
        if let Some(receipt) = outcome.decision.receipt
            && check.operation.decided().is_some()
        {
            self.cx.out.stats.late_answers += 1;
            let mut check = Arc::unwrap_or_clone(check);
            (check.operation, check.lease_hits) =
                (RemoteOperation::Counter(CounterOperation::Undo(receipt)), 0);
            self.send_to_owner(check);
        }
    }

    /// Returns the grant of `key`, which the owner recalls.
    pub(super) fn return_grant(&mut self, key: Key) {
        if let Some(settlement) = self.borrower.take(key, self.cx.now) {
            self.send_to_owner(settlement);
        }
    }

    /// Returns all grants.
    pub(super) fn return_grants(&mut self) {
        for key in self.borrower.keys() {
            self.return_grant(key);
        }
    }

    /// Routes forwards to a departed member again, and returns what was borrowed from it. The member may have charged
    /// the forwards already; a second charge is strict, never lenient.
    pub(super) fn member_departed(&mut self, member: MemberId) {
        for key in self.borrower.keys() {
            let owner = self.slots.ownership.owner(self.slots.slot_of(key));
            if owner.is_some_and(|owner| owner.member == member) {
                self.return_grant(key);
            }
        }
        for open in self.forwarding.take_forwards_to(member) {
            self.route_now(open);
        }
    }

    /// Settles grants, retries pending checks, and answers checks whose deadline has passed.
    pub(super) fn tick(&mut self, on_time_since: Timestamp) {
        for report in self.borrower.tick(self.cx.now) {
            self.send_to_owner(report);
        }
        // Every pending check is retried, whatever it has waited for.
        drop(self.slots.take_ready());
        for open in self.forwarding.take_pending(|_| true) {
            self.route_now(open);
        }
        for open in self.forwarding.take_expired(on_time_since, self.cx.now, self.cx.out) {
            self.owner_unreachable(open);
        }
    }

    /// Sends reports to the owners that are reachable: of `share`, and those that could not be sent before.
    pub(super) fn report(&mut self, share: &mut LocalShare) {
        if !self.cx.members.is_isolated() {
            let is_reachable = |key| self.slots.is_owner_reachable(key, &self.cx);
            for report in take_reports(share, self.forwarding, is_reachable, self.cx.wall) {
                self.send_to_owner(report);
            }
        }
        if self.cx.members.is_draining() {
            self.pass_on_reports(share);
        }
    }

    /// Passes reports to the intended owners, which forward them once the owners are reachable: this replica leaves.
    fn pass_on_reports(&mut self, share: &mut LocalShare) {
        let Self { forwarding, slots, cx, .. } = self;
        let members = cx.members;
        let now = cx.now;
        let intended = |key| {
            let owner = members.placement.owner(slots.slot_of(key));
            owner.filter(|owner| members.is_reachable(*owner, now))
        };
        let is_reachable = |key| intended(key).is_some();
        let reports = take_reports(share, forwarding, is_reachable, cx.wall);
        for (to, check) in reports.into_iter().filter_map(|report| Some((intended(report.key)?, report))) {
            cx.out.send(to, Message::Forward { ticket: 0, check, budget: LATE_MAX, hops: 0 });
        }
    }

    /// Retries pending checks that waited for a slot or for grants.
    pub(super) fn retry_ready(&mut self) {
        for (open, reply) in self.slots.backup_sender.take_answerable(self.cx.now) {
            self.reply(open, reply, self.cx.now);
        }
        while let Some(ready) = self.slots.take_ready() {
            for open in self.forwarding.take_pending(|check| ready(check.key)) {
                self.route_now(open);
            }
        }
    }

    /// Fails all open checks and forgets what was borrowed, because the counters are discarded.
    pub(super) fn discard(&mut self) {
        self.borrower.discard();
        for open in self.slots.backup_sender.take_unanswered() {
            self.owner_unreachable(open);
        }
        for open in self.forwarding.take_all() {
            if !matches!(open.requester, Requester::NoReply) {
                self.owner_unreachable(open);
            }
        }
    }

    /// Sends an operation to the owner, now or as soon as the owner is reachable.
    pub(super) fn send_to_owner(&mut self, check: impl Into<Arc<RemoteCheck>>) {
        self.route(OpenCheck::without_reply(check.into(), self.cx.now));
    }

    /// Decides the check, forwards it, or leaves it pending.
    pub(super) fn route(&mut self, open: OpenCheck) {
        if let Some(open) = self.decide(open) {
            if open.hops > HOPS_MAX { self.leave_pending(open) } else { self.forward(open) }
        }
    }

    /// Decides the check or forwards it, whatever the number of hops.
    fn route_now(&mut self, open: OpenCheck) {
        if let Some(open) = self.decide(open) {
            self.forward(open);
        }
    }

    /// Decides the check if this replica owns its slot or has borrowed hits. Returns the check to forward otherwise.
    fn decide(&mut self, mut open: OpenCheck) -> Option<OpenCheck> {
        if self.slots.ownership.owns(self.slots.slot_of(open.check.key)) {
            if self.cx.members.is_isolated() && !open.check.operation.is_applied_in_isolation() {
                self.owner_unreachable(open);
                return None;
            }
            let peer = match open.requester {
                Requester::Peer(peer, _) => Some(peer),
                Requester::Caller(..) | Requester::NoReply => None,
            };
            match self.slots.apply(&open.check, peer, &mut self.cx) {
                Some(reply) => {
                    if let Some((open, reply)) = self.slots.await_backup(open, reply, &mut self.cx) {
                        self.reply(open, reply, self.cx.now);
                    }
                }
                None => self.leave_pending(open),
            }
            return None;
        }
        if let Requester::Caller(ticket, policy) = open.requester
            && policy.lease
            && let Some(operation) = open.check.operation.decided()
        {
            let RemoteCheck { key, limit, operation: sent, .. } = &*open.check;
            let decided = self.borrower.decide(*key, limit, sent.origin(), operation, self.cx.now);
            if let Some(outcome) = decided {
                self.cx.out.stats.leased += 1;
                self.complete(ticket, outcome, DecidedBy::Lease);
                return None;
            }
            if open.hops == 0 && !self.cx.members.is_draining() {
                let lease_hits = self.borrower.hits_to_request(open.check.key, self.cx.now);
                open.set_lease_hits(lease_hits);
            }
        }
        Some(open)
    }

    fn forward(&mut self, open: OpenCheck) {
        let slot = self.slots.slot_of(open.check.key);
        let members = &self.cx.members;
        let owner = self.slots.ownership.owner(slot).map(|owner| owner.member);
        let other = owner.filter(|owner| *owner != members.local_id() && !members.is_departed(*owner));
        // The intended owner claims a slot that has lost its owner, first those for which checks wait.
        let intended = members.placement.owner(slot).filter(|intended| {
            *intended != members.local_id() && members.is_reachable(*intended, self.cx.judged_at)
        });
        let Some(to) = other.or(intended) else {
            // While no member serves, none claims the slot.
            let may_be_claimed =
                !self.cx.members.is_draining() || !self.cx.members.placement.members().is_empty();
            if !may_be_claimed {
                return self.owner_unreachable(open);
            }
            self.slots.claim_if_orphan(slot, &mut self.cx);
            return self.leave_pending(open);
        };
        if self.cx.members.is_isolated()
            || self.cx.out.is_full(to)
            || self.forwarding.is_full()
            || !self.cx.members.is_reachable(to, self.cx.judged_at)
            || self.forwarding.is_breaker_open(to, self.cx.now)
        {
            self.send_take_back(&open, to);
            return self.owner_unreachable(open);
        }
        self.forwarding.forward(open, to, &mut self.cx);
    }

    /// Sends a take-back without a reply to an owner that callers do not wait for. The session delivers it once, or
    /// ends.
    fn send_take_back(&mut self, open: &OpenCheck, to: MemberId) {
        if open.check.operation.is_undo() && !self.cx.out.is_full(to) {
            let without_reply = OpenCheck::without_reply(open.check.clone(), self.cx.now);
            let take_back = OpenCheck { hops: open.hops, ..without_reply };
            self.forwarding.forward(take_back, to, &mut self.cx);
        }
    }

    fn leave_pending(&mut self, open: OpenCheck) {
        if self.forwarding.is_full() {
            return self.owner_unreachable(open);
        }
        self.forwarding.add_pending(open);
    }

    fn reply(&mut self, open: OpenCheck, reply: CheckReply, sent_at: Timestamp) {
        match (open.requester, reply) {
            (Requester::NoReply, CheckReply::Decided { .. }) => {}
            (Requester::Peer(peer, ticket), reply) => {
                self.cx.out.send(peer, Message::Reply { ticket, reply });
            }
            (Requester::Caller(ticket, _), CheckReply::Decided { outcome, lease }) => {
                if let Some(lease) = lease {
                    self.receive_lease(&open.check, &outcome, *lease, sent_at);
                }
                self.complete(ticket, outcome, DecidedBy::Counter);
            }
            (Requester::Caller(..) | Requester::NoReply, CheckReply::Unreachable) => {
                self.owner_unreachable(open);
            }
        }
    }

    fn complete(&mut self, ticket: Ticket, outcome: OperationOutcome, decided_by: DecidedBy) {
        self.cx.out.actions.push(NodeAction::Complete(ticket, RemoteOutcome { outcome, decided_by }));
    }

    /// Handles a lease or a refusal from the owner. The previous grant of the key is settled.
    fn receive_lease(
        &mut self,
        check: &RemoteCheck,
        outcome: &OperationOutcome,
        lease: LeaseReply,
        sent_at: Timestamp,
    ) {
        self.return_grant(check.key);
        if let Some(settlement) = self.borrower.record(check, outcome, lease, sent_at, self.cx.now) {
            self.send_to_owner(settlement);
        }
        if self.cx.members.is_draining() {
            self.return_grants();
        }
    }

    /// Replies that the owner is unreachable.
    fn owner_unreachable(&mut self, open: OpenCheck) {
        match open.requester {
            Requester::Peer(peer, ticket) => {
                self.cx.out.send(peer, Message::Reply { ticket, reply: CheckReply::Unreachable });
            }
            Requester::Caller(ticket, _) => {
                let own = self.slots.known_own_terms(open.check.key, self.cx.wall);
                let RemoteOutcome { outcome, decided_by } = RemoteOutcome::unreachable();
                self.complete(ticket, outcome.by_own(own.as_ref()), decided_by);
            }
            // The owner must learn of the consumption later.
            Requester::NoReply => {
                if open.check.operation.must_arrive() && !self.forwarding.queue_report(open.check) {
                    self.cx.out.stats.reports_dropped += 1;
                }
            }
        }
    }
}

/// Takes the reports whose owners are reachable: what `share` has admitted, and reports that could not be sent.
fn take_reports(
    share: &mut LocalShare,
    forwarding: &mut Forwarding,
    is_reachable: impl Fn(Key) -> bool,
    now: Timestamp,
) -> Vec<Arc<RemoteCheck>> {
    let mut reports = forwarding.take_reports(&is_reachable);
    reports.extend(share.take_admitted_where(is_reachable).map(|(key, Admitted { limit, counter })| {
        let consumed = Arc::new(SlotData::from_usage(key, &limit, counter, now));
        Arc::new(RemoteCheck { key, limit, operation: RemoteOperation::Absorb(consumed), lease_hits: 0 })
    }));
    reports
}
