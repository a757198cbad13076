//! A lane: parts that wait, the values that are known, and one batch under way at a time. What arrives meanwhile is in
//! the next batch, so a hot counter takes one round trip for many calls. Pure: the driver of the lane sends the batches.

use std::{collections::VecDeque, time::Duration};

use rustc_hash::FxHashMap;
use tollgate_counter::{
    algorithm::{Admission, Decision, Operation},
    descriptor::Key,
    resilience::{BreakerState, CircuitBreaker},
    time::Timestamp,
};
use tollgate_store::{Check, OperationOutcome, OwnTerms};

use crate::{
    batch::{BatchPart, PartOutcomes, SettledBatch, StoreBatch},
    clocks::Instants,
    failure::BatchFailure,
    script::{ClaimTerms, KeyGroupReply},
    stats::SharedStoreCounters,
    value::{Known, KnownValues},
};

/// A counter is refused without a request to the store for this long after its last answer.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// After this many failures in a row the lane's circuit breaker opens.
const BREAKER_FAILURES: u32 = 1;
/// How long the circuit breaker stays open.
const BREAKER_OPEN_FOR: Duration = Duration::from_millis(500);

/// A lane without its connection.
#[derive(Debug)]
pub(super) struct Lane {
    waiting: VecDeque<BatchPart>,
    known: KnownValues,
    is_driven: bool,
    pub(super) breaker: CircuitBreaker,
    /// The number of this replica, for claims.
    replica: u64,
    /// The last round trip.
    round_trip: Duration,
}

/// What the driver of a lane does next.
#[derive(Debug)]
pub(super) enum LaneStep {
    /// Sends a batch.
    Send(StoreBatch),
    /// Waits for the counters that others have claimed.
    Wait(Duration),
    /// Ends. The next part needs a new driver.
    End,
}

/// Answers to callers, to be sent without a lock; `None` if the store does not decide.
pub(super) type LaneAnswers = Vec<(BatchPart, Option<PartOutcomes>)>;

impl Lane {
    /// A lane that knows values of at most so many bytes, of the replica with this number.
    pub(super) fn new(known_bytes_max: usize, replica: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            known: KnownValues::new(known_bytes_max),
            is_driven: false,
            breaker: CircuitBreaker::new(BREAKER_FAILURES, BREAKER_OPEN_FOR),
            replica,
            round_trip: Duration::ZERO,
        }
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
    pub(super) fn push(&mut self, part: BatchPart) -> bool {
        self.waiting.push_back(part);
        !std::mem::replace(&mut self.is_driven, true)
    }

    /// The refusal of a charge to a counter that is known to be exhausted, without a request to the store. Refusals
    /// change nothing, time is taken into account, and what other replicas charge meanwhile only prolongs a refusal;
    /// refunds and resets are announced.
    pub(super) fn refuse_known(
        &mut self,
        &Check { key, limit, operation, origin, .. }: &Check<'_>,
        Instants { local, server }: Instants,
    ) -> Option<OperationOutcome> {
        // A queue passes what can wait, so a peek does not tell.
        if limit.is_changed_by(operation, false) || limit.admission() == Admission::Delayed {
            return None;
        }
        let known = self.known.get_mut(key)?;
        if known.claim.is_some() || local.since(known.confirmed_at) > REFUSAL_MAX {
            return None;
        }
        // The end of a hold may end the refusal.
        if known.counter.is_absent() || known.counter.is_due(server.now) {
            return None;
        }
        let counter = &mut known.counter;
        let own = origin.replaced_by(counter.own_terms(server.now)).cloned();
        if own.as_ref().is_some_and(OwnTerms::is_unlimited) {
            return None;
        }
        let limit = own.as_ref().map_or(limit, |own| &own.limit);
        let mut decide = |operation| {
            counter.update(limit, server, |limit, counter| limit.decide(counter, server.now, operation))
        };
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
        Some(OperationOutcome::new(decision, 0).by_own(own.as_ref()))
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
    pub(super) fn step(&mut self, instants: Instants, answers: &mut LaneAnswers) -> LaneStep {
        // A claim must outlast the way to the server and back.
        let millis = (4 * self.round_trip.as_millis() as u64).clamp(5, 200);
        let mut batch = StoreBatch::new(instants, ClaimTerms { replica: self.replica, millis });
        let mut later = VecDeque::new();
        while let Some(part) = self.waiting.pop_front() {
            if part.is_abandoned(instants.local) {
                answers.push((part, None));
            } else if instants.local < part.not_before {
                later.push_back(part);
            } else if batch.has_room(part.checks.len()) {
                answers.extend(batch.add(part, &mut self.known).map(|part| (part, None)));
            } else {
                self.waiting.push_front(part);
                break;
            }
        }
        let first = later.iter().map(|part| part.not_before).min();
        later.extend(self.waiting.drain(..));
        self.waiting = later;
        if !batch.is_empty() {
            return LaneStep::Send(batch);
        }
        match first {
            Some(first) => LaneStep::Wait(first.since(instants.local)),
            None => {
                self.is_driven = false;
                LaneStep::End
            }
        }
    }

    /// Takes the replies to a batch, or the failure without any, at the local instant `arrived`. Returns forgotten values,
    /// to be dropped without a lock.
    pub(super) fn complete(
        &mut self,
        batch: StoreBatch,
        replies: Result<Vec<KeyGroupReply>, BatchFailure>,
        sent: Timestamp,
        arrived: Timestamp,
        counts: &SharedStoreCounters,
        answers: &mut LaneAnswers,
    ) -> Vec<FxHashMap<Key, Known>> {
        self.round_trip = arrived.since(sent);
        let mut may_resend = false;
        match replies {
            Ok(_) => self.breaker.on_success(),
            // The next connection shows whether the store is gone.
            Err(BatchFailure { may_resend: true, .. }) => may_resend = true,
            Err(_) => counts.breaker_openings.add(self.breaker.on_failure(arrived).into()),
        }
        let SettledBatch { decided, again, failed, forgotten } =
            batch.settle(replies.unwrap_or_default(), &mut self.known, arrived, counts);
        answers.extend(decided.into_iter().map(|(part, outcomes)| (part, Some(outcomes))));
        let (resent, failed): (Vec<BatchPart>, Vec<BatchPart>) =
            failed.into_iter().partition(|part| may_resend && !part.was_lost);
        answers.extend(failed.into_iter().map(|part| (part, None)));
        let resent = resent.into_iter().map(|part| BatchPart { was_lost: true, ..part });
        for part in again.into_iter().chain(resent).rev() {
            self.waiting.push_front(part);
        }
        forgotten
    }

    /// Fails all parts that wait, because the store cannot be reached. The driver ends.
    pub(super) fn fail_waiting(&mut self, answers: &mut LaneAnswers) {
        self.is_driven = false;
        answers.extend(self.waiting.drain(..).map(|part| (part, None)));
    }
}
