//! Operations of operators: dry runs, and access to single counters.

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Limit, Operation},
    descriptor::Key,
    shared_store::{
        SharedStore,
        part::{Action, Mode, Outcome, SharedCheck},
    },
    store::{Check, CounterState, Decisions, OnRefusal, Refusal, Replacement},
};

impl SharedStore {
    /// Reads the counter of `key`; `None` if the store cannot be used.
    pub async fn peek(&self, key: Key, limit: &Limit) -> Option<CounterState> {
        let outcomes = self.each(key, limit, &[Action::Decide(Operation::Peek)]).await?;
        Some(self.state_of(limit, outcomes.first()?.decision))
    }

    /// Replaces the counter of `key` by one with `hits` charged; `None` if the store cannot be used.
    pub async fn replace(&self, key: Key, limit: &Limit, hits: u64) -> Option<Replacement> {
        let outcomes = self.each(key, limit, &[Action::Decide(Operation::Peek), Action::Set(hits)]).await?;
        let [before, after] = &outcomes[..] else { return None };
        let (before, after) = (before.decision, after.decision);
        Some(Replacement { before: self.state_of(limit, before), after: self.state_of(limit, after) })
    }

    /// The decisions that [`SharedStore::decide`] would return now, with the states of the counters before. Changes
    /// nothing. The decisions are `None` if the counters do not change in one step; then they can be predicted from the
    /// states. All is `None` if the store cannot be used.
    pub async fn dry_run(
        &self,
        checks: &[Check<'_>],
        refusal: Refusal,
    ) -> Option<(SmallVec<[CounterState; 2]>, Option<Decisions>)> {
        if !self.0.is_one_step(checks.iter().map(|check| check.key)) {
            let peeks = checks.iter().map(|check| self.peek(check.key, check.limit));
            let before: Option<_> = futures_util::future::join_all(peeks).await.into_iter().collect();
            return Some((before?, None));
        }
        if checks.is_empty() {
            return Some((SmallVec::new(), Some(Decisions::default())));
        }
        let deadline = self.0.local().after(self.0.settings.timeout);
        let shared: SmallVec<[SharedCheck; 1]> = checks.iter().map(SharedCheck::of).collect();
        let outcomes = self.0.decide_part(shared, Mode::DryRun(refusal), deadline).await.ok()?;
        let before: SmallVec<[CounterState; 2]> = outcomes
            .iter()
            .zip(checks)
            .map(|(outcome, check)| self.state_of(check.limit, outcome.before))
            .collect();
        let each = outcomes.iter().map(|outcome| outcome.decision).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        Some((before, Some(Decisions::new(each, charged))))
    }

    async fn each(&self, key: Key, limit: &Limit, actions: &[Action]) -> Option<SmallVec<[Outcome; 1]>> {
        let check = |action: &Action| SharedCheck {
            key,
            limit: limit.clone(),
            action: action.clone(),
            on_refusal: OnRefusal::Keep,
        };
        let deadline = self.0.local().after(self.0.settings.timeout);
        self.0.decide_part(actions.iter().map(check).collect(), Mode::Each, deadline).await.ok()
    }

    /// The state of a counter whose peek was answered like this, with instants of this replica's clock.
    fn state_of(&self, limit: &Limit, peek: Decision) -> CounterState {
        let is_used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        CounterState { idle_at: is_used.then(|| self.0.clock.now().after(peek.reset_after)), peek }
    }
}
