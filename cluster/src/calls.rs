//! Rounds of local callers, whose checks wait for other replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, ThreadId},
};

use dashmap::{DashMap, Entry};
use rustc_hash::FxBuildHasher;
use tokio::{runtime::Handle, sync::oneshot};
use tollgate_remote::{OpenChecks, RemoteOutcome, RemoteOutcomes};

use crate::node::output::Ticket;

/// The open rounds. Rounds on different cores find theirs without a common lock.
#[derive(Debug, Default)]
pub(super) struct OpenRounds {
    open: DashMap<u64, Round, FxBuildHasher>,
    last: AtomicU64,
}

/// Checks that were submitted together.
#[derive(Debug)]
pub(super) struct Round {
    outcomes: RemoteOutcomes,
    pending: usize,
    caller: oneshot::Sender<RemoteOutcomes>,
    // Where the caller runs.
    thread: ThreadId,
    runtime: Option<Handle>,
    // Keeps the checks open, also if the caller has gone.
    open: Option<Arc<OpenChecks>>,
}

impl OpenRounds {
    /// Starts a round with at least one check. `outcomes` are those that hold until the checks are answered. The receiver
    /// gets them once all are known.
    pub(super) fn start_round(
        &self,
        outcomes: RemoteOutcomes,
        open: Option<Arc<OpenChecks>>,
    ) -> (u64, oneshot::Receiver<RemoteOutcomes>) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let (caller, received) = oneshot::channel();
        let thread = thread::current().id();
        let runtime = Handle::try_current().ok();
        self.open.insert(number, Round { pending: outcomes.len(), outcomes, caller, thread, runtime, open });
        (number, received)
    }

    /// Stores the outcome of a check. Returns the round if it is complete.
    pub(super) fn complete(&self, ticket: Ticket, outcome: RemoteOutcome) -> Option<Round> {
        let Entry::Occupied(mut entry) = self.open.entry(ticket.call) else { return None };
        let round = entry.get_mut();
        *round.outcomes.get_mut(ticket.check as usize)? = outcome;
        round.pending -= 1;
        if round.pending > 0 {
            return None;
        }
        round.open = None;
        Some(entry.remove())
    }
}

impl Round {
    /// Answers the callers of these rounds, which are complete. The callers of each thread are woken together, by a task
    /// there: if they were woken one after the other from here, their thread would answer the first ones in writes of
    /// their own.
    pub(super) fn answer_all(mut rounds: Vec<Self>) {
        while let Some(first) = rounds.first() {
            let thread = first.thread;
            let runtime = first.runtime.clone();
            let of_thread: Vec<Self> = rounds.extract_if(.., |round| round.thread == thread).collect();
            let has_several = of_thread.len() > 1;
            // A caller that has gone needs no outcomes.
            let answer = |round: Self| drop(round.caller.send(round.outcomes));
            let wake = move || of_thread.into_iter().for_each(answer);
            match runtime.filter(|_| has_several && thread != thread::current().id()) {
                Some(runtime) => drop(runtime.spawn(async move { wake() })),
                None => wake(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{
        future::FutureExt as _,
        stream::{FuturesUnordered, StreamExt as _},
    };

    use super::*;

    #[test]
    fn call_gets_its_outcomes_when_all_checks_are_complete() {
        let calls = OpenRounds::default();
        let outcome = RemoteOutcome::unreachable();
        let (call, mut outcomes) = calls.start_round(RemoteOutcomes::from_elem(outcome.clone(), 3), None);
        for check in 0..3 {
            assert!((&mut outcomes).now_or_never().is_none());
            let complete = calls.complete(Ticket { call, check }, outcome.clone());
            Round::answer_all(complete.into_iter().collect());
        }
        assert_eq!(outcomes.now_or_never().unwrap().unwrap().len(), 3);
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
        thread::spawn(|| Round::answer_all(complete)).join().unwrap();
        assert!(open.next().now_or_never().is_none());
        assert!(open.next().await.is_some());
        assert!(open.next().now_or_never().is_some() && open.next().now_or_never().is_some());
    }
}
