//! The checks of local callers and their outcomes.

use std::time::Duration;

use crate::{
    algorithm::{Decision, Verdict},
    rules::{ForwardPolicy, OnOwnerUnavailable},
    store::{Settled, rounds},
};

/// Identifies one check of one call of a local caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) call: u64,
    pub(crate) check: u32,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) decision: Decision,
    /// The hits that were charged.
    pub(crate) charged: u64,
    pub(crate) decided_by: DecidedBy,
    /// How a hold was settled.
    pub(crate) settled: Option<Box<Settled>>,
}

impl Outcome {
    /// The outcome of a check that the owner has decided without a charge.
    pub(crate) fn of_owner(decision: Decision) -> Self {
        Self { decision, charged: 0, decided_by: DecidedBy::Owner, settled: None }
    }

    /// The outcome of the settlement of a hold.
    pub(crate) fn of_settled(settled: Settled) -> Self {
        let Settled { remaining, reset_after, .. } = settled;
        let decision = Decision { verdict: Verdict::Pass, remaining, reset_after, receipt: None };
        Self { settled: Some(Box::new(settled)), ..Self::of_owner(decision) }
    }

    /// The outcome for a check that neither the owner nor a local share decides.
    pub(crate) fn without_owner(policy: ForwardPolicy) -> Self {
        let verdict = match policy.on_owner_unavailable {
            OnOwnerUnavailable::Allow => Verdict::Pass,
            OnOwnerUnavailable::LocalShare | OnOwnerUnavailable::Deny => {
                Verdict::Refuse { retry_after: None }
            }
        };
        let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
        Self { decided_by: DecidedBy::Degraded, ..Self::of_owner(decision) }
    }
}

impl rounds::Outcome for Outcome {
    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn parts_mut(&mut self) -> (&mut Decision, &mut u64) {
        (&mut self.decision, &mut self.charged)
    }

    fn is_of_counter(&self) -> bool {
        self.decided_by == DecidedBy::Owner
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
    /// Nothing: the owner has too many holds.
    Exhausted,
}
