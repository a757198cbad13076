//! Rounds of local callers, whose checks wait for other replicas.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use tokio::sync::oneshot;
use tollgate_limiter::remote::{OpenChecks, RemoteOutcome, RemoteOutcomes};

use crate::cluster::node::Ticket;

/// The open rounds. Rounds on different cores find theirs without a common lock.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: DashMap<u64, Round, FxBuildHasher>,
    last: AtomicU64,
}

/// Checks that were submitted together.
#[derive(Debug)]
struct Round {
    outcomes: RemoteOutcomes,
    pending: usize,
    reply: oneshot::Sender<RemoteOutcomes>,
    // Keeps the checks open, also if the caller has gone.
    _open: Option<Arc<OpenChecks>>,
}

impl Calls {
    /// Starts a round with at least one check. `outcomes` are those that hold until the checks are answered.
    pub(super) fn start_round(
        &self,
        outcomes: RemoteOutcomes,
        open: Option<Arc<OpenChecks>>,
    ) -> (u64, oneshot::Receiver<RemoteOutcomes>) {
        let (reply, receiver) = oneshot::channel();
        let number = self.last.fetch_add(1, Relaxed) + 1;
        self.open.insert(number, Round { pending: outcomes.len(), outcomes, reply, _open: open });
        (number, receiver)
    }

    /// Stores the outcome of a check. The caller gets all outcomes of the round together.
    pub(super) fn complete(&self, Ticket { call, check }: Ticket, outcome: RemoteOutcome) {
        // The guard is dropped before the caller is woken.
        let is_complete = self.open.get_mut(&call).is_some_and(|mut round| round.complete(check, outcome));
        if is_complete && let Some((_, Round { outcomes, reply, .. })) = self.open.remove(&call) {
            // A caller that was cancelled has dropped the receiver.
            let _ = reply.send(outcomes);
        }
    }
}

impl Round {
    /// Stores the outcome of a check. Returns whether it was the last one.
    fn complete(&mut self, check: u32, outcome: RemoteOutcome) -> bool {
        let Some(place) = self.outcomes.get_mut(check as usize) else { return false };
        *place = outcome;
        self.pending -= 1;
        self.pending == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_gets_its_outcomes_when_all_checks_are_complete() {
        let (calls, outcome) = (Calls::default(), RemoteOutcome::unreachable());
        let (call, mut receiver) = calls.start_round(RemoteOutcomes::from_elem(outcome.clone(), 3), None);
        for check in 0..3 {
            assert!(receiver.try_recv().is_err());
            calls.complete(Ticket { call, check }, outcome.clone());
        }
        assert_eq!(receiver.try_recv().unwrap().len(), 3);
        assert!(calls.open.is_empty());
    }
}
