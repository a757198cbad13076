//! Open calls of local callers, whose checks wait for other replicas, and their bounds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::cluster::node::{ForwardPolicy, Outcome, Ticket};

/// The most checks in one call.
pub(super) const CHECKS_PER_CALL_MAX: usize = 1_024;
/// The most open checks of all calls.
pub(super) const OPEN_CHECKS_MAX: usize = 32_768;
/// A connection gets at most this fraction of what the other connections leave free, so that no connection takes
/// everything.
const CONNECTION_SHARE: usize = 8;

/// The outcomes of the checks of a call, in their order.
pub(super) type Outcomes = SmallVec<[Outcome; 1]>;

/// The number of open checks of one connection. Clones share it.
// Invariant: changes only under the lock of `Calls`, so no update comes between a load and a store.
#[derive(Clone, Debug, Default)]
pub struct OpenForwards(Arc<AtomicUsize>);

/// A call, its connection or this replica has too many open checks. No check of the call was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many checks wait for other replicas")]
pub struct Overloaded;

/// Whether a call submits more checks after this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRound {
    Close,
    StayOpen,
}

/// The open calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: FxHashMap<u64, OpenCall>,
    last_id: u64,
    // Invariant: the sum of the checks of all open calls.
    checks: usize,
}

#[derive(Debug)]
struct OpenCall {
    checks: usize,
    connection: OpenForwards,
    round: Option<Round>,
    after_round: AfterRound,
}

/// Checks of a call that were submitted together.
#[derive(Debug)]
struct Round {
    outcomes: Outcomes,
    pending: usize,
    reply: oneshot::Sender<Outcomes>,
}

impl OpenForwards {
    fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn set(&self, checks: usize) {
        self.0.store(checks, Relaxed);
    }
}

impl Calls {
    /// Admits a call with this many checks. It is open until [`Calls::close`], or until its last round is complete.
    pub(super) fn open(&mut self, checks: usize, connection: &OpenForwards) -> Result<u64, Overloaded> {
        let own = connection.get();
        let of_others = self.checks - own;
        let room = OPEN_CHECKS_MAX.saturating_sub(of_others) / CONNECTION_SHARE;
        if checks > CHECKS_PER_CALL_MAX || own + checks > room {
            return Err(Overloaded);
        }
        self.checks += checks;
        connection.set(own + checks);
        self.last_id += 1;
        let connection = connection.clone();
        self.open.insert(
            self.last_id,
            OpenCall { checks, connection, round: None, after_round: AfterRound::StayOpen },
        );
        Ok(self.last_id)
    }

    /// Starts a round of an open call, with one check for each policy, numbered from 0. There is at least one.
    pub(super) fn start_round(
        &mut self,
        call: u64,
        policies: impl Iterator<Item = ForwardPolicy>,
        after_round: AfterRound,
    ) -> oneshot::Receiver<Outcomes> {
        let (reply, receiver) = oneshot::channel();
        if let Some(open) = self.open.get_mut(&call) {
            let outcomes: Outcomes = policies.map(Outcome::without_owner).collect();
            let pending = outcomes.len();
            (open.round, open.after_round) = (Some(Round { outcomes, pending, reply }), after_round);
        }
        receiver
    }

    /// Stores the outcome of a check. The caller gets all outcomes of the round together.
    pub(super) fn complete(&mut self, Ticket { call, check }: Ticket, outcome: Outcome) {
        let Some(open) = self.open.get_mut(&call) else { return };
        let Some(round) = &mut open.round else { return };
        let Some(outcome_slot) = round.outcomes.get_mut(check as usize) else { return };
        *outcome_slot = outcome;
        round.pending -= 1;
        if round.pending == 0 {
            let ends = open.after_round == AfterRound::Close;
            if let Some(Round { outcomes, reply, .. }) = open.round.take() {
                // A caller that was cancelled has dropped the receiver.
                let _ = reply.send(outcomes);
            }
            if ends {
                self.end(call);
            }
        }
    }

    /// Closes a call once its current round is complete.
    pub(super) fn close(&mut self, call: u64) {
        match self.open.get_mut(&call) {
            Some(OpenCall { round: Some(_), after_round, .. }) => *after_round = AfterRound::Close,
            Some(OpenCall { round: None, .. }) => self.end(call),
            None => {}
        }
    }

    fn end(&mut self, call: u64) {
        if let Some(OpenCall { checks, connection, .. }) = self.open.remove(&call) {
            self.checks -= checks;
            connection.set(connection.get() - checks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::OnOwnerUnavailable;

    const POLICY: ForwardPolicy =
        ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };

    fn start_round(
        calls: &mut Calls,
        call: u64,
        checks: usize,
        after_round: AfterRound,
    ) -> oneshot::Receiver<Outcomes> {
        calls.start_round(call, std::iter::repeat_n(POLICY, checks), after_round)
    }

    fn complete(calls: &mut Calls, call: u64, checks: usize) {
        for check in 0..checks {
            calls.complete(Ticket { call, check: check as u32 }, Outcome::without_owner(POLICY));
        }
    }

    #[test]
    fn call_with_too_many_checks_is_refused_and_reserves_nothing() {
        let (mut calls, connection) = (Calls::default(), OpenForwards::default());
        assert_eq!(calls.open(30_000, &connection), Err(Overloaded));
        assert_eq!(calls.open(CHECKS_PER_CALL_MAX + 1, &connection), Err(Overloaded));
        assert_eq!((calls.checks, connection.get()), (0, 0));
        assert!(calls.open(CHECKS_PER_CALL_MAX, &connection).is_ok());
    }

    #[test]
    fn connection_at_its_bound_is_refused_until_a_call_ends() {
        let (mut calls, connection) = (Calls::default(), OpenForwards::default());
        let open: Vec<u64> = std::iter::from_fn(|| calls.open(256, &connection).ok()).collect();
        assert_eq!(open.len() * 256, OPEN_CHECKS_MAX / CONNECTION_SHARE);
        assert!(calls.open(256, &OpenForwards::default()).is_ok());

        // The caller is cancelled while its checks are open.
        drop(start_round(&mut calls, open[0], 256, AfterRound::StayOpen));
        calls.close(open[0]);
        assert_eq!(calls.open(1, &connection), Err(Overloaded));
        complete(&mut calls, open[0], 256);
        assert!(calls.open(1, &connection).is_ok());
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let mut calls = Calls::default();
        let mut taken = Vec::new();
        for _ in 0..500 {
            let greedy = OpenForwards::default();
            let open: Vec<u64> = std::iter::from_fn(|| calls.open(1, &greedy).ok()).collect();
            taken.push((greedy, open));
        }
        assert!(calls.checks <= OPEN_CHECKS_MAX);
        for call in &taken[0].1[..100] {
            calls.close(*call);
        }
        assert_eq!(calls.open(1, &taken[0].0), Err(Overloaded));
        assert!(calls.open(1, &OpenForwards::default()).is_ok());
    }

    #[test]
    fn call_gets_its_outcomes_when_all_checks_are_complete() {
        let (mut calls, connection) = (Calls::default(), OpenForwards::default());
        let call = calls.open(3, &connection).unwrap();
        let mut receiver = start_round(&mut calls, call, 3, AfterRound::StayOpen);
        complete(&mut calls, call, 2);
        assert!(receiver.try_recv().is_err());
        calls.complete(Ticket { call, check: 2 }, Outcome::without_owner(POLICY));
        assert_eq!(receiver.try_recv().unwrap().len(), 3);

        let mut receiver = start_round(&mut calls, call, 1, AfterRound::Close);
        complete(&mut calls, call, 1);
        assert_eq!(receiver.try_recv().unwrap().len(), 1);
        assert_eq!((calls.open.len(), calls.checks, connection.get()), (0, 0, 0));
    }
}
