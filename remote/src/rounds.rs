//! The rounds in which the check set of one call is decided where its counters are, if they cannot change in one step:
//! peeks, charges, and take-backs if the call is refused. The same rounds serve
//! the owners in a cluster, a shared store, and the simulation.

use std::collections::HashMap;

use tollgate_counter::{
    algorithm::{Decision, Operation},
    descriptor::Key,
};
use tollgate_store::{Check, CheckDecision, CounterOperation, Decisions, OnRefusal, OperationOutcome};

use crate::check::{DecidedBy, RemoteOutcome, RemoteOutcomes};

/// The counters of one call.
pub trait CallCounters {
    /// Applies at least one operation, each to the counter of the check with this index.
    fn apply(&self, operations: Vec<(usize, CounterOperation)>) -> impl Future<Output = RemoteOutcomes>;

    /// Takes back what the check with this index has charged to something else than its counter.
    fn take_back_here(&self, index: usize, outcome: &mut RemoteOutcome);
}

/// Decides a check set. If `refused` says that the call as a whole is refused, charges that passed are taken back where
/// their checks say so. Refunds and overdrafts stay.
///
/// A peek before the charges finds calls that would be refused anyway, so that calls which are always refused leave no
/// trace in other counters. A call that loses a race is charged until the charge is taken back.
pub async fn decide<C: CallCounters>(
    counters: &C,
    checks: &[Check<'_>],
    refused: impl Fn(&[CheckDecision]) -> bool,
) -> RemoteOutcomes {
    let rounds = Rounds { counters, checks };
    if checks.len() == 1 {
        return rounds.charge(&[0]).await;
    }
    let skipped = rounds.predict_taken_back(&refused).await;
    let mut outcomes = rounds.charge_except(skipped, &refused).await;
    if refused(&decisions(&outcomes)) {
        rounds.take_back(&mut outcomes).await;
    }
    outcomes
}

/// The decisions of these outcomes.
pub(crate) fn decisions(outcomes: &[RemoteOutcome]) -> Decisions {
    outcomes.iter().map(|outcome| CheckDecision::from(&outcome.outcome)).collect()
}

/// The check set of one call on its way to its counters.
struct Rounds<'c, C> {
    counters: &'c C,
    checks: &'c [Check<'c>],
}

impl<C: CallCounters> Rounds<'_, C> {
    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    async fn submit(&self, operations: Vec<(usize, CounterOperation)>) -> RemoteOutcomes {
        if operations.is_empty() { RemoteOutcomes::new() } else { self.counters.apply(operations).await }
    }

    /// Submits the operations of these checks.
    async fn charge(&self, checks: &[usize]) -> RemoteOutcomes {
        let operation = |index: &usize| (*index, CounterOperation::Decide(self.checks[*index].operation));
        self.submit(checks.iter().map(operation).collect()).await
    }

    /// Peeks first. If the call would be refused, returns the expected outcomes of the checks that would pass and be
    /// taken back, and `None` for all others, which are to be submitted.
    async fn predict_taken_back(
        &self,
        refused: impl Fn(&[CheckDecision]) -> bool,
    ) -> Vec<Option<RemoteOutcome>> {
        let all = 0..self.checks.len();
        let mut skipped = vec![None; self.checks.len()];
        if !all.clone().any(|index| self.takes_back(index)) {
            return skipped;
        }
        let peek = |index| (index, CounterOperation::Decide(Operation::Peek));
        let peeks = self.submit(all.map(peek).collect()).await;
        let predict = |(check, peek): (&Check<'_>, &RemoteOutcome)| {
            let decision = check.limit.predict(check.operation, &peek.outcome.decision);
            CheckDecision { decision, ..CheckDecision::from(&peek.outcome) }
        };
        let predicted: Decisions = self.checks.iter().zip(&peeks).map(predict).collect();
        if refused(&predicted) {
            let repeated = self.repeated_keys();
            for (index, mut peek) in peeks.into_iter().enumerate() {
                let Check { key, operation, .. } = self.checks[index];
                let Decision { verdict, remaining, .. } = predicted[index].decision;
                // A peek does not see what an earlier check of the same call charges to the key.
                let is_repeated = repeated.binary_search(&key).is_ok();
                if self.takes_back(index)
                    && verdict.passes()
                    && operation.is_taken_back(remaining)
                    && !is_repeated
                {
                    // A peek charges nothing, and its own verdict is for no hits.
                    peek.outcome.decision = predicted[index].decision;
                    skipped[index] = Some(peek);
                }
            }
        }
        skipped
    }

    /// The keys of several checks, in ascending order.
    fn repeated_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.checks.iter().map(|check| check.key).collect();
        keys.sort_unstable();
        keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
    }

    /// Submits all checks but the skipped ones, and those as well if the call is not refused.
    async fn charge_except(
        &self,
        mut outcomes: Vec<Option<RemoteOutcome>>,
        refused: impl Fn(&[CheckDecision]) -> bool,
    ) -> RemoteOutcomes {
        let (submitted, skipped): (Vec<usize>, Vec<usize>) =
            (0..outcomes.len()).partition(|index| outcomes[*index].is_none());
        let replies = self.charge(&submitted).await;
        for (index, outcome) in submitted.into_iter().zip(replies) {
            outcomes[index] = Some(outcome);
        }
        let mut outcomes: RemoteOutcomes = outcomes.into_iter().flatten().collect();
        if !skipped.is_empty() && !refused(&decisions(&outcomes)) {
            let replies = self.charge(&skipped).await;
            for (index, outcome) in skipped.into_iter().zip(replies) {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Takes back the charges of a refused call, and updates what remains.
    async fn take_back(&self, outcomes: &mut [RemoteOutcome]) {
        let mut undone = Vec::new();
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, outcome) in
            outcomes.iter_mut().enumerate().rev().filter(|(index, _)| self.takes_back(*index))
        {
            if outcome.decided_by != DecidedBy::Counter {
                self.counters.take_back_here(index, outcome);
                continue;
            }
            let OperationOutcome { decision, charged, .. } = &mut outcome.outcome;
            if let Some(receipt) = decision.receipt.take() {
                *charged = 0;
                undone.push((index, CounterOperation::Undo(receipt)));
            }
        }
        // An earlier check of a repeated key has not seen what later ones did.
        let mut peeked = self.repeated_keys();
        peeked.retain(|key| undone.iter().all(|(index, _)| self.checks[*index].key != *key));
        for (index, check) in self.checks.iter().enumerate() {
            if let Ok(position) = peeked.binary_search(&check.key) {
                peeked.remove(position);
                undone.push((index, CounterOperation::Decide(Operation::Peek)));
            }
        }
        let keys: Vec<Key> = undone.iter().map(|(index, _)| self.checks[*index].key).collect();
        let peeks = keys.into_iter().zip(self.submit(undone).await);
        // Of a key that was charged several times, the last peek counts.
        let left: HashMap<Key, RemoteOutcome> = peeks.collect();
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            let decision = &mut outcome.outcome.decision;
            if self.takes_back(index)
                && let Some(peek) = left.get(&self.checks[index].key)
                && peek.decided_by == DecidedBy::Counter
            {
                *decision = decision.after_take_back(&peek.outcome.decision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use proptest::prelude::*;

    use super::*;
    use tollgate_counter::{
        algorithm::{Verdict, laws::any_limit},
        time::{SECOND, Timestamp},
    };
    use tollgate_store::{Checks, LimitOrigin, Memory, OnFull};

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    /// Submits each step to one store.
    struct OneStore<'c> {
        memory: &'c Memory,
        checks: &'c [Check<'c>],
    }

    impl CallCounters for OneStore<'_> {
        async fn apply(&self, operations: Vec<(usize, CounterOperation)>) -> RemoteOutcomes {
            let apply = |(index, operation): (usize, CounterOperation)| {
                let Check { key, limit, .. } = self.checks[index];
                let outcome = self.memory.operate(key, limit, &operation, NOW).expect("each slot is here");
                RemoteOutcome::from_counter(outcome)
            };
            operations.into_iter().map(apply).collect()
        }

        fn take_back_here(&self, _: usize, _: &mut RemoteOutcome) {
            unreachable!("the counter decides each step")
        }
    }

    fn is_refused(decisions: &[CheckDecision]) -> bool {
        decisions.iter().any(|decision| !decision.verdict.passes())
    }

    fn any_operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            1 => Just(Operation::Peek),
            6 => (1..7_u64).prop_map(Operation::Charge),
            2 => (1..7_u64).prop_map(Operation::Refund),
        ]
    }

    proptest! {
        #[test]
        fn rounds_decide_as_one_step_does(
            limits in prop::collection::vec((any_limit(), any::<bool>()), 1..4),
            calls in prop::collection::vec(
                prop::collection::vec((any::<prop::sample::Index>(), any_operation()), 2..6), 1..12),
        ) {
            let keys: Vec<Key> =
                (0..limits.len()).map(|index| Key::from_halves(0, index as u64)).collect();
            let (by_rounds, at_once) = (Memory::new(1 << 24, OnFull::Deny), Memory::new(1 << 24, OnFull::Deny));
            for call in calls {
                let check = |(index, operation): &(prop::sample::Index, Operation)| {
                    let index = index.index(limits.len());
                    let (limit, takes_back) = &limits[index];
                    let on_refusal = if *takes_back { OnRefusal::TakeBack } else { OnRefusal::Keep };
                    Check { key: keys[index], limit, operation: *operation, on_refusal, origin: LimitOrigin::Rule }
                };
                let checks: Checks<'_> = call.iter().map(check).collect();
                let store = OneStore { memory: &by_rounds, checks: &checks };
                let deciding = pin!(decide(&store, &checks, is_refused));
                let Poll::Ready(outcomes) = deciding.poll(&mut Context::from_waker(Waker::noop())) else {
                    panic!("each step is decided at once");
                };
                let expected = at_once.apply(&checks, NOW, is_refused).expect("each slot is here");
                let shown = |decision: &Decision| {
                    // The delay of a call that is refused is not predicted.
                    let verdict = if decision.verdict.passes() { Verdict::Pass } else { decision.verdict };
                    (verdict, decision.remaining, decision.reset_after)
                };
                let decided = outcomes.iter().map(|RemoteOutcome { outcome, .. }| outcome);
                let decided: Vec<_> =
                    decided.map(|outcome| (shown(&outcome.decision), outcome.charged)).collect();
                let expected: Vec<_> =
                    expected.iter().map(|expected| (shown(expected), expected.charged)).collect();
                prop_assert_eq!(decided, expected, "{:?}", checks);
                for (key, (limit, _)) in keys.iter().zip(&limits) {
                    let left = |memory: &Memory| memory.peek(*key, limit, NOW).peek;
                    prop_assert_eq!(shown(&left(&by_rounds)), shown(&left(&at_once)));
                }
            }
        }
    }
}
