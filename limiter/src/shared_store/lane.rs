//! A lane: parts that wait, the values that are known, and one batch under way at a time. What arrives meanwhile is in
//! the next batch, so a hot counter takes one round trip for many calls. Pure: the driver sends the batches.

use std::{collections::VecDeque, time::Duration};

use rustc_hash::FxHashMap;

use crate::{
    algorithm::{Admission, Decision, Limit, Operation},
    descriptor::Key,
    resilience::{BreakerState, CircuitBreaker},
    shared_store::{
        batch::{Batch, Settled},
        counters::Instants,
        known::{Known, KnownValues},
        part::{Part, PartOutcomes, Unavailable},
        script::GroupReply,
    },
    store::{Expired, Now, Outcome},
    time::Timestamp,
};

/// The most keys of a batch. A script of so many keys takes the server about half a millisecond.
const BATCH_KEYS_MAX: usize = 256;
/// No part is added to a batch whose known values have so many bytes. Counters with many reservations are large.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most round trips of a part.
const ROUNDS_MAX: u32 = 64;
/// A counter is refused without asking the store for this long after its last answer.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// After this many failures in a row the lane's circuit breaker opens.
const BREAKER_FAILURES: u32 = 1;
/// How long the circuit breaker stays open.
const BREAKER_OPEN_FOR: Duration = Duration::from_millis(500);

/// A lane without its connection.
#[derive(Debug)]
pub(super) struct Lane {
    waiting: VecDeque<Part>,
    known: KnownValues,
    is_driven: bool,
    breaker: CircuitBreaker,
    /// The last round trip.
    round_trip: Duration,
}

/// What the driver of a lane does next.
#[derive(Debug)]
pub(super) enum LaneStep {
    /// Sends a batch.
    Send(Batch, Instants),
    /// Waits for the counters that others have claimed.
    Wait(Duration),
    /// Ends. The next part needs a new driver.
    End,
}

/// Answers to callers, to be sent without a lock.
pub(super) type Answers = Vec<(Part, Result<PartOutcomes, Unavailable>)>;

/// What a batch came to, beside the answers.
#[derive(Debug, Default)]
pub(super) struct BatchStats {
    pub(super) conflicts: u64,
    pub(super) lost: u64,
    pub(super) expired: Expired,
    pub(super) has_opened: bool,
    pub(super) forgotten: Vec<FxHashMap<Key, Known>>,
}

impl Lane {
    /// A lane that knows values of at most so many bytes.
    pub(super) fn new(known_bytes_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            known: KnownValues::new(known_bytes_max),
            is_driven: false,
            breaker: CircuitBreaker::new(BREAKER_FAILURES, BREAKER_OPEN_FOR),
            round_trip: Duration::ZERO,
        }
    }

    /// The state of the circuit breaker.
    pub(super) fn breaker(&self, local: Timestamp) -> BreakerState {
        self.breaker.state(local)
    }

    /// Whether a part may be added. After failures a single batch tries, and no other caller waits for it.
    pub(super) fn accepts(&self, local: Timestamp) -> bool {
        match self.breaker.state(local) {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            BreakerState::HalfOpen => !self.is_driven,
        }
    }

    /// Adds a part. Returns whether the lane needs a driver.
    pub(super) fn push(&mut self, part: Part) -> bool {
        self.waiting.push_back(part);
        !std::mem::replace(&mut self.is_driven, true)
    }

    /// The refusal of a charge to a counter that is known to be exhausted, without asking the store. Refusals change
    /// nothing, time is taken into account, and what other replicas charge meanwhile only prolongs a refusal; refunds
    /// and resets are announced.
    pub(super) fn refuse_known(
        &mut self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        local: Timestamp,
        server: Timestamp,
        given_up: Option<Timestamp>,
    ) -> Option<Outcome> {
        // A queue passes what can wait, so a peek does not tell.
        if limit.is_changed_by(operation, false) || limit.admission() == Admission::Delayed {
            return None;
        }
        let known = self.known.get_mut(key)?;
        if known.claim.is_some() || local.since(known.confirmed_at) > REFUSAL_MAX {
            return None;
        }
        // The end of a hold may end the refusal.
        if known.counter.is_absent() || known.counter.is_due(server) {
            return None;
        }
        let now = Now { now: server, given_up: given_up.map(|at| at.min(server)) };
        let mut decide =
            |operation| known.counter.update(limit, now, |counter| limit.decide(counter, server, operation));
        let peek = decide(Operation::Peek);
        if limit.predict(operation, &peek).verdict.passes() {
            return None;
        }
        let decision: Decision = decide(operation);
        if decision.verdict.passes() {
            // The prediction was wrong, as for no hits at all, and the value may be changed now.
            self.forget(key);
            return None;
        }
        Some(Outcome::of(decision, 0))
    }

    /// Forgets what is known of a counter that another replica has refunded or reset.
    pub(super) fn forget(&mut self, key: Key) {
        drop(self.known.take(key));
    }

    /// Forgets all that is known.
    pub(super) fn forget_all(&mut self) {
        self.known.clear();
    }

    /// What the driver does next: usually a batch of all that waits.
    pub(super) fn step(&mut self, mut instants: Instants, answers: &mut Answers) -> LaneStep {
        // A claim must outlast the way to the server and back.
        instants.claim_ms = (4 * self.round_trip.as_millis() as u64).clamp(5, 200);
        let mut batch = Batch::default();
        let mut later = VecDeque::new();
        while let Some(part) = self.waiting.pop_front() {
            if part.is_abandoned(instants.local) {
                answers.push((part, Err(Unavailable::Unreachable)));
            } else if instants.local < part.not_before {
                later.push_back(part);
            } else if batch.is_empty()
                || (batch.len() + part.checks.len() <= BATCH_KEYS_MAX && batch.bytes() < BATCH_BYTES_MAX)
            {
                if let Err((part, unavailable)) = batch.add(part, &mut self.known, &instants) {
                    answers.push((part, Err(unavailable)));
                }
            } else {
                self.waiting.push_front(part);
                break;
            }
        }
        let first = later.iter().map(|part| part.not_before).min();
        later.extend(self.waiting.drain(..));
        self.waiting = later;
        if !batch.is_empty() {
            batch.encode(&instants);
            return LaneStep::Send(batch, instants);
        }
        match first {
            Some(first) => LaneStep::Wait(first.since(instants.local)),
            None => {
                self.is_driven = false;
                LaneStep::End
            }
        }
    }

    /// Takes the replies to a batch, or the failure without any, at the local instant `arrived`.
    pub(super) fn complete(
        &mut self,
        batch: Batch,
        replies: Vec<GroupReply>,
        failure: Option<Failure>,
        sent: Timestamp,
        arrived: Timestamp,
        answers: &mut Answers,
    ) -> BatchStats {
        let (Settled { decided, again, conflicts, lost, expired, forgotten }, failed) =
            batch.settle(replies, &mut self.known, arrived);
        self.round_trip = arrived.since(sent);
        let mut has_opened = false;
        match failure {
            // The next connection shows whether the store is gone.
            Some(Failure { may_resend: true, .. }) => {}
            Some(_) => has_opened = self.breaker.on_failure(arrived),
            None => self.breaker.on_success(),
        }
        answers.extend(decided.into_iter().map(|(part, outcomes)| (part, Ok(outcomes))));
        let mut front: Vec<Part> = Vec::new();
        for part in again {
            if part.rounds > ROUNDS_MAX {
                answers.push((part, Err(Unavailable::Contended)));
            } else {
                front.push(part);
            }
        }
        for part in failed {
            match failure {
                Some(Failure { may_resend: true, .. }) if !part.was_lost => {
                    front.push(Part { was_lost: true, ..part });
                }
                Some(Failure { unavailable, .. }) => answers.push((part, Err(unavailable))),
                None => answers.push((part, Err(Unavailable::Unreachable))),
            }
        }
        for part in front.into_iter().rev() {
            self.waiting.push_front(part);
        }
        BatchStats { conflicts, lost, expired, has_opened, forgotten }
    }

    /// Fails all parts that wait, because the store cannot be reached. The driver ends.
    pub(super) fn fail_waiting(&mut self, answers: &mut Answers) {
        self.is_driven = false;
        answers.extend(self.waiting.drain(..).map(|part| (part, Err(Unavailable::Unreachable))));
    }
}

/// Why a batch has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) unavailable: Unavailable,
    /// The connection is of no more use.
    pub(super) is_broken: bool,
    /// The connection broke, so the batch is sent once more over the next one. If the store had charged it, it is
    /// charged twice.
    pub(super) may_resend: bool,
}
