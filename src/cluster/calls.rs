//! Open calls of local callers, whose checks wait for other replicas, and their bounds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use tokio::sync::oneshot;

use crate::{
    cluster::node::{Outcome, Ticket},
    resilience::{OpenForwards, Overloaded},
    rules::ForwardPolicy,
    store::rounds,
};

/// The most checks in one call.
pub(super) const CHECKS_PER_CALL_MAX: usize = 1_024;
/// The most open checks of all calls.
pub(super) const OPEN_CHECKS_MAX: usize = 32_768;
/// A connection gets at most this fraction of what the other connections leave free, so that no connection takes
/// everything.
const CONNECTION_SHARE: usize = 8;

/// The outcomes of the checks of a call, in their order.
pub(super) type Outcomes = rounds::Outcomes<Outcome>;

/// The open calls. Calls on different cores find theirs without a common lock.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: DashMap<u64, OpenCall, FxBuildHasher>,
    admitted: Mutex<Admitted>,
}

/// What was admitted.
#[derive(Debug, Default)]
struct Admitted {
    last_id: u64,
    // Invariant: the sum of the checks of all open calls.
    checks: usize,
}

#[derive(Debug)]
struct OpenCall {
    checks: usize,
    connection: OpenForwards,
    round: Option<Round>,
    /// The caller is gone: the call ends with its round.
    is_closed: bool,
}

/// Checks of a call that were submitted together.
#[derive(Debug)]
struct Round {
    outcomes: Outcomes,
    pending: usize,
    reply: oneshot::Sender<Outcomes>,
}

impl Calls {
    /// Admits a call with this many checks. It is open until [`Calls::close`], and until its last round is complete.
    pub(super) fn open(&self, checks: usize, connection: &OpenForwards) -> Result<u64, Overloaded> {
        let id = self.admitted().admit(checks, connection)?;
        let connection = connection.clone();
        self.open.insert(id, OpenCall { checks, connection, round: None, is_closed: false });
        Ok(id)
    }

    /// Starts a round of an open call, with one check for each policy, numbered from 0. There is at least one.
    pub(super) fn start_round(
        &self,
        call: u64,
        policies: impl Iterator<Item = ForwardPolicy>,
    ) -> oneshot::Receiver<Outcomes> {
        let (reply, receiver) = oneshot::channel();
        let outcomes: Outcomes = policies.map(Outcome::without_owner).collect();
        if let Some(mut open) = self.open.get_mut(&call) {
            open.round = Some(Round { pending: outcomes.len(), outcomes, reply });
        }
        receiver
    }

    /// Stores the outcome of a check. The caller gets all outcomes of the round together.
    pub(super) fn complete(&self, Ticket { call, check }: Ticket, outcome: Outcome) {
        // The guard is dropped before the caller is woken.
        let finished = self.open.get_mut(&call).and_then(|mut open| open.complete(check, outcome));
        let Some((Round { outcomes, reply, .. }, is_closed)) = finished else { return };
        if is_closed {
            self.end(call);
        }
        // A caller that was cancelled has dropped the receiver.
        let _ = reply.send(outcomes);
    }

    /// Closes a call once its current round is complete.
    pub(super) fn close(&self, call: u64) {
        let is_idle = self.open.get_mut(&call).is_some_and(|mut open| {
            open.is_closed = true;
            open.round.is_none()
        });
        if is_idle {
            self.end(call);
        }
    }

    fn end(&self, call: u64) {
        if let Some((_, OpenCall { checks, connection, .. })) = self.open.remove(&call) {
            let mut admitted = self.admitted();
            admitted.checks -= checks;
            connection.set(connection.get() - checks);
        }
    }

    fn admitted(&self) -> MutexGuard<'_, Admitted> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    fn admit(&mut self, checks: usize, connection: &OpenForwards) -> Result<u64, Overloaded> {
        let own = connection.get();
        let of_others = self.checks - own;
        let room = OPEN_CHECKS_MAX.saturating_sub(of_others) / CONNECTION_SHARE;
        if checks > CHECKS_PER_CALL_MAX || own + checks > room {
            return Err(Overloaded);
        }
        self.checks += checks;
        connection.set(own + checks);
        self.last_id += 1;
        Ok(self.last_id)
    }
}

impl OpenCall {
    /// Stores the outcome of a check. Returns the round if it is complete, and whether the call has ended.
    fn complete(&mut self, check: u32, outcome: Outcome) -> Option<(Round, bool)> {
        let round = self.round.as_mut()?;
        *round.outcomes.get_mut(check as usize)? = outcome;
        round.pending -= 1;
        let finished = self.round.take_if(|round| round.pending == 0)?;
        Some((finished, self.is_closed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::OnOwnerUnavailable;

    const POLICY: ForwardPolicy =
        ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };

    fn start_round(calls: &Calls, call: u64, checks: usize) -> oneshot::Receiver<Outcomes> {
        calls.start_round(call, std::iter::repeat_n(POLICY, checks))
    }

    fn complete(calls: &Calls, call: u64, checks: usize) {
        for check in 0..checks {
            calls.complete(Ticket { call, check: check as u32 }, Outcome::without_owner(POLICY));
        }
    }

    #[test]
    fn call_with_too_many_checks_is_refused_and_reserves_nothing() {
        let (calls, connection) = (Calls::default(), OpenForwards::default());
        assert_eq!(calls.open(30_000, &connection), Err(Overloaded));
        assert_eq!(calls.open(CHECKS_PER_CALL_MAX + 1, &connection), Err(Overloaded));
        assert_eq!((calls.admitted().checks, connection.get()), (0, 0));
        assert!(calls.open(CHECKS_PER_CALL_MAX, &connection).is_ok());
    }

    #[test]
    fn connection_at_its_bound_is_refused_until_a_call_ends() {
        let (calls, connection) = (Calls::default(), OpenForwards::default());
        let open: Vec<u64> = std::iter::from_fn(|| calls.open(256, &connection).ok()).collect();
        assert_eq!(open.len() * 256, OPEN_CHECKS_MAX / CONNECTION_SHARE);
        assert!(calls.open(256, &OpenForwards::default()).is_ok());

        // The caller is cancelled while its checks are open.
        drop(start_round(&calls, open[0], 256));
        calls.close(open[0]);
        assert_eq!(calls.open(1, &connection), Err(Overloaded));
        complete(&calls, open[0], 256);
        assert!(calls.open(1, &connection).is_ok());
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let calls = Calls::default();
        let mut taken = Vec::new();
        for _ in 0..500 {
            let greedy = OpenForwards::default();
            let open: Vec<u64> = std::iter::from_fn(|| calls.open(1, &greedy).ok()).collect();
            taken.push((greedy, open));
        }
        assert!(calls.admitted().checks <= OPEN_CHECKS_MAX);
        for call in &taken[0].1[..100] {
            calls.close(*call);
        }
        assert_eq!(calls.open(1, &taken[0].0), Err(Overloaded));
        assert!(calls.open(1, &OpenForwards::default()).is_ok());
    }

    #[test]
    fn call_gets_its_outcomes_when_all_checks_are_complete() {
        let (calls, connection) = (Calls::default(), OpenForwards::default());
        let call = calls.open(3, &connection).unwrap();
        let mut receiver = start_round(&calls, call, 3);
        complete(&calls, call, 2);
        assert!(receiver.try_recv().is_err());
        calls.complete(Ticket { call, check: 2 }, Outcome::without_owner(POLICY));
        assert_eq!(receiver.try_recv().unwrap().len(), 3);

        let mut receiver = start_round(&calls, call, 1);
        calls.close(call);
        complete(&calls, call, 1);
        assert_eq!(receiver.try_recv().unwrap().len(), 1);
        assert_eq!((calls.open.len(), calls.admitted().checks, connection.get()), (0, 0, 0));
    }
}
