//! Rounds of local callers, whose checks wait for other replicas.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread::{self, ThreadId},
};

use dashmap::{DashMap, Entry};
use futures_util::task::AtomicWaker;
use rustc_hash::FxBuildHasher;
use tokio::runtime::Handle;
use tollgate_remote::{OpenChecks, RemoteOutcome, RemoteOutcomes, lock};

use crate::node::Ticket;

/// The open rounds. Rounds on different cores find theirs without a common lock.
#[derive(Debug, Default)]
pub(super) struct OpenRounds {
    open: DashMap<u64, Arc<Round>, FxBuildHasher>,
    last: AtomicU64,
}

/// Checks that were submitted together.
#[derive(Debug)]
struct Round {
    state: Mutex<RoundState>,
    caller: AtomicWaker,
    // Where the caller runs.
    thread: ThreadId,
    runtime: Option<Handle>,
}

#[derive(Debug)]
struct RoundState {
    outcomes: RemoteOutcomes,
    pending: usize,
    // Keeps the checks open, also if the caller has gone.
    open: Option<Arc<OpenChecks>>,
}

/// The outcomes of a round, once all are known.
#[derive(Debug)]
pub(super) struct RoundOutcomes(Arc<Round>);

impl Future for RoundOutcomes {
    type Output = RemoteOutcomes;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RemoteOutcomes> {
        let Self(round) = self.get_mut();
        // Registered first, so that the last outcome is seen here or wakes the caller.
        round.caller.register(cx.waker());
        let mut state = lock(&round.state);
        if state.pending > 0 { Poll::Pending } else { Poll::Ready(std::mem::take(&mut state.outcomes)) }
    }
}

impl OpenRounds {
    /// Starts a round with at least one check. `outcomes` are those that hold until the checks are answered.
    pub(super) fn start_round(
        &self,
        outcomes: RemoteOutcomes,
        open: Option<Arc<OpenChecks>>,
    ) -> (u64, RoundOutcomes) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let state = RoundState { pending: outcomes.len(), outcomes, open };
        let round = Arc::new(Round {
            state: Mutex::new(state),
            caller: AtomicWaker::new(),
            thread: thread::current().id(),
            runtime: Handle::try_current().ok(),
        });
        self.open.insert(number, round.clone());
        (number, RoundOutcomes(round))
    }

    /// Stores the outcome of a check. Returns the round that it completes.
    pub(super) fn complete(&self, ticket: Ticket, outcome: RemoteOutcome) -> Option<CompleteRound> {
        let Entry::Occupied(round) = self.open.entry(ticket.call) else { return None };
        round.get().complete(ticket.check, outcome).then(|| CompleteRound(round.remove()))
    }
}

/// A round whose checks are answered and whose caller is not woken yet.
#[derive(Debug)]
pub(super) struct CompleteRound(Arc<Round>);

impl CompleteRound {
    /// Wakes the callers of these rounds. The callers of each thread are woken together, by a task there: if they were
    /// woken one after the other from here, their thread would answer the first ones in writes of their own.
    pub(super) fn wake_all(mut rounds: Vec<Self>) {
        while let Some(Self(first)) = rounds.first() {
            let thread = first.thread;
            let runtime = first.runtime.clone();
            let of_thread: Vec<Self> = rounds.extract_if(.., |Self(round)| round.thread == thread).collect();
            let has_several = of_thread.len() > 1;
            let wake = move || of_thread.into_iter().for_each(|Self(round)| round.caller.wake());
            match runtime.filter(|_| has_several && thread != thread::current().id()) {
                Some(runtime) => drop(runtime.spawn(async move { wake() })),
                None => wake(),
            }
        }
    }
}

impl Round {
    /// Stores the outcome of a check. Returns whether it was the last one.
    fn complete(&self, check: u32, outcome: RemoteOutcome) -> bool {
        let RoundState { outcomes, pending, open } = &mut *lock(&self.state);
        let Some(place) = outcomes.get_mut(check as usize) else { return false };
        *place = outcome;
        *pending -= 1;
        if *pending == 0 {
            *open = None;
        }
        *pending == 0
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{
        future::FutureExt as _,
        stream::{FuturesUnordered, StreamExt as _},
    };

    use super::*;

    #[test]
    fn call_gets_its_outcomes_when_all_checks_are_complete() {
        let calls = OpenRounds::default();
        let outcome = RemoteOutcome::unreachable();
        let (call, outcomes) = calls.start_round(RemoteOutcomes::from_elem(outcome.clone(), 3), None);
        let mut outcomes = pin!(outcomes);
        for check in 0..3 {
            assert!(outcomes.as_mut().now_or_never().is_none());
            let complete = calls.complete(Ticket { call, check }, outcome.clone());
            CompleteRound::wake_all(complete.into_iter().collect());
        }
        assert_eq!(outcomes.now_or_never().unwrap().len(), 3);
        assert!(calls.open.is_empty());
    }

    #[tokio::test]
    async fn callers_of_a_thread_are_woken_together() {
        let calls = OpenRounds::default();
        let outcome = RemoteOutcome::unreachable();
        let mut complete = Vec::new();
        let mut open = FuturesUnordered::new();
        for _ in 0..3 {
            let (call, outcomes) = calls.start_round(RemoteOutcomes::from_elem(outcome.clone(), 1), None);
            open.push(outcomes);
            assert!(open.next().now_or_never().is_none());
            complete.extend(calls.complete(Ticket { call, check: 0 }, outcome.clone()));
        }
        thread::spawn(|| CompleteRound::wake_all(complete)).join().unwrap();
        assert!(open.next().now_or_never().is_none());
        assert!(open.next().await.is_some());
        assert!(open.next().now_or_never().is_some() && open.next().now_or_never().is_some());
    }
}
