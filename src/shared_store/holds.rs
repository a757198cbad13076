//! Reservations whose counters are in the store. Only the store decides on them: while it cannot be used, nothing is
//! held or settled.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    algorithm::Decision,
    resilience::budget,
    shared_store::{
        Shared, SharedStore,
        decide::Call,
        part::{Action, HoldReply, Mode, Outcome, SharedCheck, Unavailable},
    },
    store::{
        Check, Checks, Decisions, HoldId, HoldTerms, OnRefusal, Refusal, RemoteHoldError, Reserved, Settled,
        each_hold_id,
    },
};

/// For so long a withdrawal is repeated while the store does not answer. Then the expiry ends what is held.
const WITHDRAWAL_MAX: Duration = Duration::from_secs(30);
/// How often it is repeated.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The most withdrawals that are open. The expiry ends what others would take back.
const WITHDRAWALS_MAX: usize = 1_024;

impl SharedStore {
    /// Holds the charges of all checks, within half of the caller's `timeout`, or none if `refusal` says that their
    /// decisions refuse the call. What was held in vain is withdrawn, also if the call is canceled; until that arrives
    /// it counts.
    pub async fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        timeout: Option<Duration>,
        refusal: Refusal,
    ) -> Result<Reserved, RemoteHoldError> {
        let attempt = rand::random();
        let reserve = |id, hits| {
            let terms = Box::new(HoldTerms { id, attempt, ..terms.clone() });
            Action::Reserve { terms, hits }
        };
        let withdraw = |id, _| Action::WithdrawHold { id, attempt };
        let call = self.hold_call(each_action(checks, &terms.id, reserve), timeout)?;
        let mut attempted =
            Attempt { store: &self.0, withdrawals: each_action(checks, &terms.id, withdraw).into_vec() };
        let outcomes = call.reserve(&refusal).await?;
        if call.is_one_step() {
            attempted.keep();
        }
        let decisions: SmallVec<[Decision; 2]> = outcomes.iter().map(|outcome| outcome.decision).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged);
        if refusal.is_refused(&decisions) {
            let charged = charged.map(|_| 0).collect();
            return Ok(Reserved { is_held: false, decisions: Decisions::new(decisions, charged) });
        }
        if outcomes.iter().any(|outcome| matches!(outcome.hold, HoldReply::Exhausted)) {
            self.0.counts.holds_exhausted.increase();
            return Err(RemoteHoldError::Exhausted);
        }
        attempted.keep();
        Ok(Reserved { is_held: true, decisions: Decisions::new(decisions, charged.collect()) })
    }

    /// Settles the holds of all checks, each at the hits of its charge, within half of the caller's `timeout`.
    pub async fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        timeout: Option<Duration>,
    ) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
        let settle = |id, actual| Action::SettleHold { id, actual };
        let call = self.hold_call(each_action(checks, id, settle), timeout)?;
        let settled = |outcome: Result<Outcome, Unavailable>| match outcome?.hold {
            HoldReply::Settled(settled) => Ok(settled),
            HoldReply::Decided | HoldReply::Exhausted => Err(RemoteHoldError::OwnerUnreachable),
        };
        self.0.decide_each(call.checks.to_vec(), call.deadline).await.into_iter().map(settled).collect()
    }

    fn hold_call(
        &self,
        checks: SmallVec<[SharedCheck; 1]>,
        timeout: Option<Duration>,
    ) -> Result<Call, RemoteHoldError> {
        let deadline = self.0.local().after(budget(timeout, self.0.settings.timeout));
        Ok(self.call(checks, &[], deadline)?)
    }
}

impl Call {
    /// The outcomes of reservations. In one step, nothing is held of a call that is refused; in several steps, what is
    /// held is to be withdrawn then.
    async fn reserve(&self, refusal: &Refusal) -> Result<Vec<Outcome>, Unavailable> {
        if self.checks.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_one_step() {
            let mode = Mode::Reserve(refusal.clone());
            return Ok(self.store.decide_part(self.checks.clone(), mode, self.deadline).await?.into_vec());
        }
        self.store.decide_each(self.checks.to_vec(), self.deadline).await.into_iter().collect()
    }
}

impl From<Unavailable> for RemoteHoldError {
    fn from(_: Unavailable) -> Self {
        Self::OwnerUnreachable
    }
}

/// An action on the counter of each check, from the id of its hold and the hits of its charge.
fn each_action(
    checks: &Checks<'_>,
    id: &HoldId,
    action: impl Fn(HoldId, u64) -> Action,
) -> SmallVec<[SharedCheck; 1]> {
    let shared = |(check, id): (&Check<'_>, HoldId)| SharedCheck {
        key: check.key,
        limit: check.limit.clone(),
        action: action(id, check.hits()),
        on_refusal: OnRefusal::TakeBack,
    };
    checks.iter().zip(each_hold_id(checks, id)).map(shared).collect()
}

/// What one call has reserved. Dropping it withdraws everything.
struct Attempt<'s> {
    store: &'s Arc<Shared>,
    withdrawals: Vec<SharedCheck>,
}

impl Attempt<'_> {
    /// Withdraws nothing.
    fn keep(&mut self) {
        self.withdrawals.clear();
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // At the end of the process no lane can be driven.
        if self.withdrawals.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (store, checks) = (self.store.clone(), std::mem::take(&mut self.withdrawals));
        if store.open_withdrawals.fetch_add(1, Relaxed) < WITHDRAWALS_MAX {
            tokio::spawn(async move {
                store.withdraw(checks).await;
                store.open_withdrawals.fetch_sub(1, Relaxed);
            });
        } else {
            store.open_withdrawals.fetch_sub(1, Relaxed);
        }
    }
}

impl Shared {
    /// Takes back what one attempt holds, as soon as the store answers.
    async fn withdraw(self: &Arc<Self>, checks: Vec<SharedCheck>) {
        let last = self.local().after(WITHDRAWAL_MAX);
        while self.local() < last {
            let deadline = self.local().after(self.settings.timeout);
            let outcomes = self.decide_each(checks.clone(), deadline).await;
            if outcomes.iter().all(Result::is_ok) {
                return;
            }
            tokio::time::sleep(WITHDRAWAL_INTERVAL).await;
        }
    }
}
