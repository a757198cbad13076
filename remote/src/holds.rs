//! Reservations whose counters are elsewhere. Only counters decide on them: nothing is held or settled without them.

use std::{collections::HashMap, time::Duration};

use smallvec::SmallVec;
use tollgate_counter::{
    descriptor::Key,
    lock::lock,
    resilience::{Caller, Overloaded},
};
use tollgate_store::{
    Check, CheckDecision, Checks, CounterOperation, CounterOutcomes, Decisions, HoldId, HoldOutcome,
    HoldTerms, Refusal, Settled, UnknownId, each_hold_id,
};

use crate::{
    Remote,
    check::{COUNTER_ONLY, CounterCheck, CounterChecks, DecidedBy, RemoteOutcome, RemoteOutcomes},
    rounds,
    submit::SubmissionMode,
};

/// Why counters elsewhere have not held or settled anything for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteHoldError {
    /// Too many checks are open. Nothing was sent.
    #[error("too many checks wait for counters elsewhere")]
    Overloaded,
    /// A counter has too many holds. Nothing is held.
    #[error("too many reservations are open")]
    Exhausted,
    /// A counter could not be reached in time. Nothing is held; what was settled stays so, and a repeated call settles
    /// the rest.
    #[error("the owner of a counter could not be reached in time")]
    OwnerUnreachable,
}

impl From<Overloaded> for RemoteHoldError {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}

impl Remote {
    /// Holds the charges of all checks, within half of the caller's `timeout`, or none if `refusal` says that their
    /// decisions refuse the call. What was held in vain is withdrawn, also if the call is canceled; until that arrives
    /// it counts. A refusal tells what is left without the call.
    pub async fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        timeout: Option<Duration>,
        connection: &Caller,
        refusal: Refusal,
    ) -> Result<CounterOutcomes, RemoteHoldError> {
        let terms = terms.with_random_attempt();
        let operations = reserve_operations(checks, &terms);
        let call = self.open(&operations, timeout, connection)?;
        let withdrawals = withdrawals(checks, &terms);
        *lock(&call.take_backs.each) = withdrawals.clone();
        let submission = call.submission(&operations, SubmissionMode::Reserve(refusal.clone()));
        let (outcomes, is_one_step) = match self.submit.submit(submission) {
            Some(outcomes) => (outcomes.await, true),
            None => (call.submit(&operations).await, false),
        };
        let all_answered = answered(&outcomes);
        // In one step, nothing is held of a call that is not held as a whole.
        if is_one_step && all_answered != Err(RemoteHoldError::OwnerUnreachable) {
            call.take_backs.finish();
        }
        let mut decisions = all_answered?;
        if refusal.is_refused(&decisions) {
            if !is_one_step && let Ok(left) = answered(&call.submit(&withdrawals).await) {
                call.take_backs.finish();
                // Of a counter that was charged several times, the last peek counts.
                let left: HashMap<Key, CheckDecision> =
                    checks.iter().map(|check| check.key).zip(left).collect();
                for (check, CheckDecision { decision, .. }) in checks.iter().zip(&mut decisions) {
                    if let Some(left) = left.get(&check.key) {
                        *decision = decision.after_take_back(left);
                    }
                }
            }
            for CheckDecision { decision, charged, .. } in &mut decisions {
                decision.receipt = None;
                *charged = 0;
            }
            return Ok(decisions.into());
        }
        call.take_backs.finish();
        let has_ended = outcomes.iter().any(|outcome| outcome.outcome.hold == HoldOutcome::Ended);
        Ok(CounterOutcomes { is_held: true, has_ended, ..decisions.into() })
    }

    /// Applies operations that only counters decide, within half of the caller's `timeout`. If a counter could not be
    /// reached, a repeated call applies the rest.
    pub async fn ask(
        &self,
        operations: CounterChecks,
        timeout: Option<Duration>,
        connection: &Caller,
    ) -> Result<RemoteOutcomes, RemoteHoldError> {
        let call = self.open(&operations, timeout, connection)?;
        Ok(call.submit(&operations).await)
    }
}

/// What refunds the hits of checks, each once.
pub fn refund_operations(checks: &[Check<'_>], terms: &HoldTerms) -> CounterChecks {
    each_operation(checks, &terms.id, |index, id, check| {
        let terms = Box::new(terms.for_part(index, id));
        CounterOperation::RefundOnce { terms, hits: check.refunded() }
    })
}

/// What holds the charges of checks.
pub fn reserve_operations(checks: &[Check<'_>], terms: &HoldTerms) -> CounterChecks {
    each_operation(checks, &terms.id, |index, id, check| {
        let terms = Box::new(terms.for_part(index, id));
        CounterOperation::Reserve { terms, hits: check.hits() }
    })
}

/// What settles the holds of checks, each at the hits of its charge.
pub fn settle_operations(checks: &[Check<'_>], id: &HoldId, unknown: UnknownId) -> CounterChecks {
    each_operation(checks, id, |_, id, check| CounterOperation::Settle { id, actual: check.hits(), unknown })
}

/// What takes back the holds of one attempt.
pub fn withdrawals(checks: &[Check<'_>], terms: &HoldTerms) -> CounterChecks {
    each_operation(checks, &terms.id, |_, id, _| CounterOperation::Withdraw { id, attempt: terms.attempt })
}

/// An operation on the counter of each check, from its index, the id of its hold and the check.
fn each_operation(
    checks: &[Check<'_>],
    id: &HoldId,
    operation: impl Fn(usize, HoldId, &Check<'_>) -> CounterOperation,
) -> CounterChecks {
    let ids = each_hold_id(checks, id);
    let check = |(index, (check, id)): (usize, (&Check<'_>, HoldId))| {
        CounterCheck::new(check, COUNTER_ONLY).with(operation(index, id, check))
    };
    checks.iter().zip(ids).enumerate().map(check).collect()
}

/// What the counters have refunded, if all have answered.
pub fn refunded(outcomes: &[RemoteOutcome]) -> Result<Decisions, RemoteHoldError> {
    let mut decisions = answered(outcomes)?;
    decisions.iter_mut().for_each(|decision| decision.charged = 0);
    Ok(decisions)
}

/// How the counters have settled, if all have answered.
pub fn settled(outcomes: &[RemoteOutcome]) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
    answered(outcomes)?;
    let settled = |outcome: &RemoteOutcome| {
        let HoldOutcome::Settled(settled) = &outcome.outcome.hold else { return None };
        Some(**settled)
    };
    outcomes.iter().map(settled).collect::<Option<_>>().ok_or(RemoteHoldError::OwnerUnreachable)
}

/// The decisions of the counters, if all have answered.
pub fn answered(outcomes: &[RemoteOutcome]) -> Result<Decisions, RemoteHoldError> {
    for RemoteOutcome { outcome, decided_by } in outcomes {
        if *decided_by != DecidedBy::Counter {
            return Err(RemoteHoldError::OwnerUnreachable);
        }
        if outcome.hold == HoldOutcome::Exhausted {
            return Err(RemoteHoldError::Exhausted);
        }
    }
    Ok(rounds::decisions(outcomes))
}
