//! The rounds in which the check set of one call is decided at the owners of its counters: peeks, charges, and take-backs
//! if the call is refused. A [`Submit`] submits them, so the simulation runs the same rounds.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Operation, Receipt},
    cluster::{
        calls::Outcomes,
        message::RemoteOperation,
        node::{DecidedBy, Outcome},
    },
    descriptor::Key,
    store::{Check, OnRefusal},
};

/// Submits the checks of one call.
pub(super) trait Submit {
    /// Submits at least one operation, each for the check with this index. All are sent at once and awaited together, so
    /// the work is linear in their number.
    async fn submit(&self, operations: Vec<(usize, RemoteOperation)>) -> Outcomes;

    /// Takes back hits that were charged to a grant.
    fn undo_lease(&self, check: &Check<'_>, hits: u64);

    /// Takes back a charge that was admitted from a local share.
    fn undo_share(&self, check: &Check<'_>, receipt: Receipt, hits: u64);
}

/// Decides a check set. If `refused` says that the call as a whole is refused, charges that passed are taken back where
/// their checks say so.
pub(super) async fn decide(
    submit: &impl Submit,
    checks: &[Check<'_>],
    refused: impl Fn(&[Decision]) -> bool,
) -> Outcomes {
    let rounds = Rounds { submit, checks };
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
pub(super) fn decisions(outcomes: &[Outcome]) -> SmallVec<[Decision; 2]> {
    outcomes.iter().map(|outcome| outcome.decision).collect()
}

/// The check set of one call on its way to the owners.
struct Rounds<'c, S> {
    submit: &'c S,
    checks: &'c [Check<'c>],
}

impl<S: Submit> Rounds<'_, S> {
    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    async fn submit(&self, operations: Vec<(usize, RemoteOperation)>) -> Outcomes {
        if operations.is_empty() { Outcomes::new() } else { self.submit.submit(operations).await }
    }

    /// Submits the operations of these checks.
    async fn charge(&self, checks: &[usize]) -> Outcomes {
        let operation = |index: &usize| (*index, RemoteOperation::Decide(self.checks[*index].operation));
        self.submit(checks.iter().map(operation).collect()).await
    }

    /// Peeks first. If the call would be refused, returns the expected outcomes of the checks that would pass and be
    /// taken back, and `None` for all others, which are to be submitted.
    async fn predict_taken_back(&self, refused: impl Fn(&[Decision]) -> bool) -> Vec<Option<Outcome>> {
        let all = 0..self.checks.len();
        let mut skipped = vec![None; self.checks.len()];
        if !all.clone().any(|index| self.takes_back(index)) {
            return skipped;
        }
        let peek = |index| (index, RemoteOperation::Decide(Operation::Peek));
        let peeks = self.submit(all.map(peek).collect()).await;
        let predict =
            |(check, peek): (&Check<'_>, &Outcome)| check.limit.predict(check.operation, &peek.decision);
        let predicted: Vec<Decision> = self.checks.iter().zip(&peeks).map(predict).collect();
        if refused(&predicted) {
            let repeated = self.repeated_keys();
            for (index, peek) in peeks.into_iter().enumerate() {
                // A peek does not see what an earlier check of the same call charges to the key.
                let is_repeated = repeated.binary_search(&self.checks[index].key).is_ok();
                if self.takes_back(index) && predicted[index].verdict.passes() && !is_repeated {
                    // A peek charges nothing, and its own verdict is for no hits.
                    let decision = predicted[index];
                    skipped[index] = Some(Outcome { decision, charged: 0, ..peek });
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
        mut outcomes: Vec<Option<Outcome>>,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Outcomes {
        let (submitted, skipped): (Vec<usize>, Vec<usize>) =
            (0..outcomes.len()).partition(|index| outcomes[*index].is_none());
        let replies = self.charge(&submitted).await;
        for (index, outcome) in submitted.into_iter().zip(replies) {
            outcomes[index] = Some(outcome);
        }
        let mut outcomes: Outcomes = outcomes.into_iter().flatten().collect();
        if !skipped.is_empty() && !refused(&decisions(&outcomes)) {
            let replies = self.charge(&skipped).await;
            for (index, outcome) in skipped.into_iter().zip(replies) {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Takes back the charges of a refused call, and updates what remains.
    async fn take_back(&self, outcomes: &mut [Outcome]) {
        let mut undone = Vec::new();
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, outcome) in
            outcomes.iter_mut().enumerate().rev().filter(|(index, _)| self.takes_back(*index))
        {
            let check = &self.checks[index];
            let charged = std::mem::take(&mut outcome.charged);
            match (outcome.decided_by, outcome.decision.receipt.take()) {
                (DecidedBy::Owner, Some(receipt)) => undone.push((index, RemoteOperation::Undo(receipt))),
                (DecidedBy::Lease, _) if charged > 0 => self.submit.undo_lease(check, charged),
                (DecidedBy::Degraded, Some(receipt)) => self.submit.undo_share(check, receipt, charged),
                (DecidedBy::Owner | DecidedBy::Lease | DecidedBy::Degraded | DecidedBy::Exhausted, _) => {}
            }
        }
        let keys: Vec<Key> = undone.iter().map(|(index, _)| self.checks[*index].key).collect();
        let peeks = keys.into_iter().zip(self.submit(undone).await);
        // Of a key that was charged several times, the last peek counts.
        let left: HashMap<Key, Outcome> =
            peeks.filter(|(_, peek)| peek.decided_by == DecidedBy::Owner).collect();
        for (outcome, check) in outcomes.iter_mut().zip(self.checks) {
            if outcome.decision.verdict.passes()
                && let Some(peek) = left.get(&check.key)
            {
                let Decision { remaining, reset_after, .. } = peek.decision;
                outcome.decision = Decision { remaining, reset_after, ..outcome.decision };
            }
        }
    }
}
