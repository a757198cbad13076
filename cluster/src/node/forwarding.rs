//! Open checks: forwarded to the owners of their counters, or pending until they can be decided or forwarded.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rustc_hash::FxHashMap;
use tollgate_counter::{
    descriptor::Key,
    resilience::{BreakerState, CircuitBreaker},
    time::Timestamp,
};
use tollgate_remote::LATE_MAX;
use tollgate_rules::ForwardPolicy;

use crate::{
    member::MemberId,
    message::{Message, check::RemoteCheck},
    node::{
        context::Context,
        output::{NodeOutput, Ticket},
    },
};

/// The most open checks.
const OPEN_CHECKS_MAX: usize = 100_000;
/// The most reports that wait to be sent again.
const REPORTS_MAX: usize = 10_000;
/// Opens after this many consecutive timeouts of a peer, for this long.
const CLOSED_BREAKER: CircuitBreaker = CircuitBreaker::new(64, Duration::from_secs(1));

/// Where the reply of a check goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    Caller(Ticket, ForwardPolicy),
    Peer(MemberId, u64),
    NoReply,
}

/// A check that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct OpenCheck {
    pub(super) requester: Requester,
    pub(super) check: Arc<RemoteCheck>,
    pub(super) deadline: Timestamp,
    pub(super) hops: u8,
}

impl OpenCheck {
    /// An operation of this replica, which waits for no reply.
    pub(super) fn without_reply(check: Arc<RemoteCheck>, now: Timestamp) -> Self {
        Self { requester: Requester::NoReply, check, deadline: now.after(LATE_MAX), hops: 0 }
    }

    /// Sets the number of hits to ask for as a lease. Most checks ask for none and are not copied.
    pub(super) fn set_lease_hits(&mut self, lease_hits: u64) {
        if self.check.lease_hits != lease_hits {
            Arc::make_mut(&mut self.check).lease_hits = lease_hits;
        }
    }
}

/// A check that was forwarded to another replica.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    pub(super) open: OpenCheck,
    pub(super) sent_at: Timestamp,
    to: MemberId,
    /// When the link took the message.
    written_at: Option<Timestamp>,
}

impl Forward {
    /// Whether the peer caused the timeout. That is so if this replica has run on time since the check was sent, and
    /// the link took the message within the first half of its budget.
    fn is_peer_late(&self, on_time_since: Timestamp) -> bool {
        let half = self.open.deadline.since(self.sent_at) / 2;
        on_time_since <= self.sent_at
            && self.written_at.is_some_and(|written_at| written_at.since(self.sent_at) <= half)
    }
}

/// The open checks, and the circuit breakers of their owners.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    last_ticket: u64,
    forwards: FxHashMap<u64, Forward>,
    pending: Vec<OpenCheck>,
    /// Checks whose replies did not arrive in time, with the instant until which a late reply counts.
    pub(super) late: BTreeMap<u64, Forward>,
    /// Reports that could not be sent.
    unsent_reports: Vec<Arc<RemoteCheck>>,
    /// Nothing expires before this instant.
    next_deadline: Option<Timestamp>,
    // Peers that have had a timeout.
    breakers: BTreeMap<MemberId, CircuitBreaker>,
}

impl Forwarding {
    /// Whether checks of other replicas, or reports to owners, are open. Checks of local callers do not delay a drain.
    pub(super) fn has_peer_checks(&self) -> bool {
        let owed = |open: &OpenCheck| match open.requester {
            Requester::Peer(..) | Requester::NoReply => true,
            Requester::Caller(..) => false,
        };
        self.forwards.values().map(|forward| &forward.open).chain(&self.pending).any(owed)
    }

    /// Whether checks or reports wait for a tick.
    pub(super) fn needs_ticks(&self) -> bool {
        !self.forwards.is_empty()
            || !self.pending.is_empty()
            || !self.late.is_empty()
            || !self.unsent_reports.is_empty()
    }

    /// Whether as many checks are open as may be.
    pub(super) fn is_full(&self) -> bool {
        self.forwards.len() + self.pending.len() >= OPEN_CHECKS_MAX
    }

    /// Whether the circuit breaker of `peer` is open.
    pub(super) fn is_breaker_open(&self, peer: MemberId, now: Timestamp) -> bool {
        self.breakers.get(&peer).is_some_and(|breaker| breaker.state(now) == BreakerState::Open)
    }

    /// Forwards a check to the owner of its counter.
    pub(super) fn forward(&mut self, mut open: OpenCheck, to: MemberId, cx: &mut Context<'_>) {
        if let Requester::Peer(..) = open.requester {
            // Only a replica that asks for its own callers gets a lease, because the owner recalls it from that
            // replica.
            open.set_lease_hits(0);
        }
        let check = open.check.clone();
        let budget = open.deadline.since(cx.now);
        let hops = open.hops.saturating_add(1);
        let ticket = match open.requester {
            Requester::NoReply if !check.operation.must_arrive() => 0,
            Requester::NoReply | Requester::Caller(..) | Requester::Peer(..) => {
                self.last_ticket += 1;
                self.note_deadline(open.deadline);
                let forward = Forward { open, sent_at: cx.now, to, written_at: None };
                self.forwards.insert(self.last_ticket, forward);
                self.last_ticket
            }
        };
        cx.out.stats.forwarded += 1;
        cx.out.send(to, Message::Forward { ticket, check, budget, hops });
    }

    /// Keeps a check until it can be decided or forwarded.
    pub(super) fn add_pending(&mut self, open: OpenCheck) {
        self.note_deadline(open.deadline);
        self.pending.push(open);
    }

    /// Takes the pending checks that are ready.
    pub(super) fn take_pending(&mut self, is_ready: impl Fn(&RemoteCheck) -> bool) -> Vec<OpenCheck> {
        self.pending.extract_if(.., |open| is_ready(&open.check)).collect()
    }

    /// Queues a report for an owner that is unreachable. False if the queue is full, and the report is dropped.
    pub(super) fn queue_report(&mut self, report: Arc<RemoteCheck>) -> bool {
        let has_room = self.unsent_reports.len() < REPORTS_MAX;
        if has_room {
            self.unsent_reports.push(report);
        }
        has_room
    }

    /// Takes the queued reports whose owners are reachable.
    pub(super) fn take_reports(&mut self, is_reachable: impl Fn(Key) -> bool) -> Vec<Arc<RemoteCheck>> {
        self.unsent_reports.extract_if(.., |report| is_reachable(report.key)).collect()
    }

    /// Takes the check that this reply answers.
    pub(super) fn take_answered(&mut self, ticket: u64) -> Option<Forward> {
        let forward = self.forwards.remove(&ticket)?;
        if let Some(breaker) = self.breakers.get_mut(&forward.to) {
            breaker.on_success();
        }
        Some(forward)
    }

    /// Records that the link has taken these messages.
    pub(super) fn mark_written(&mut self, messages: &[Message], now: Timestamp) {
        for message in messages {
            if let Message::Forward { ticket, .. } = message
                && let Some(forward) = self.forwards.get_mut(ticket)
            {
                forward.written_at = Some(now);
            }
        }
    }

    /// Takes the forwards to a member that has departed.
    pub(super) fn take_forwards_to(&mut self, member: MemberId) -> Vec<OpenCheck> {
        self.breakers.remove(&member);
        let forwards = self.take_forwards_where(|forward| forward.to == member);
        forwards.into_iter().map(|(_, forward)| forward.open).collect()
    }

    /// Takes the checks whose deadline has passed. A peer is blamed only if this replica has run on time since
    /// `on_time_since`.
    pub(super) fn take_expired(
        &mut self,
        on_time_since: Timestamp,
        now: Timestamp,
        out: &mut NodeOutput,
    ) -> Vec<OpenCheck> {
        if self.next_deadline.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut expired: Vec<OpenCheck> = self.pending.extract_if(.., |open| open.deadline <= now).collect();
        for (ticket, forward) in self.take_forwards_where(|forward| forward.open.deadline <= now) {
            if forward.is_peer_late(on_time_since) {
                let breaker = self.breakers.entry(forward.to).or_insert(CLOSED_BREAKER);
                out.stats.breaker_openings += u64::from(breaker.on_failure(now));
            }
            expired.push(forward.open.clone());
            if let Requester::Caller(..) = forward.open.requester
                && self.late.len() < OPEN_CHECKS_MAX
            {
                let open = OpenCheck { deadline: now.after(LATE_MAX), ..forward.open };
                self.late.insert(ticket, Forward { open, ..forward });
            }
        }
        self.late.retain(|_, late| now < late.open.deadline);
        let forwards = self.forwards.values().chain(self.late.values()).map(|forward| &forward.open);
        self.next_deadline = forwards.chain(&self.pending).map(|open| open.deadline).min();
        expired
    }

    /// Takes all open checks, and forgets the reports that could not be sent.
    pub(super) fn take_all(&mut self) -> Vec<OpenCheck> {
        self.late.clear();
        self.unsent_reports.clear();
        let forwards = self.take_forwards_where(|_| true);
        let forwards = forwards.into_iter().map(|(_, forward)| forward.open);
        forwards.chain(std::mem::take(&mut self.pending)).collect()
    }

    /// Takes forwards in the order in which they were sent.
    fn take_forwards_where(&mut self, is_taken: impl Fn(&Forward) -> bool) -> Vec<(u64, Forward)> {
        let mut taken: Vec<_> = self.forwards.extract_if(|_, forward| is_taken(forward)).collect();
        taken.sort_unstable_by_key(|(ticket, _)| *ticket);
        taken
    }

    fn note_deadline(&mut self, deadline: Timestamp) {
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }
}
