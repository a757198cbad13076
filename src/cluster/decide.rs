//! Calls whose counters are held by several replicas.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::{
    algorithm::{Ask, Decision},
    cluster::{
        Cluster, Part,
        message::{Deed, Question},
        node::{By, Outcome},
    },
    descriptor::Key,
    store::{Check, Decisions, Kept, OnRefusal, Replaced},
    time::Timestamp,
};

pub use crate::cluster::node::Wish;

/// What was decided, wherever the counters are.
#[derive(Clone, Debug)]
pub struct Afar {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// For each of them, whether it was decided without the holder of its counter.
    pub degraded: SmallVec<[bool; 2]>,
}

impl Cluster {
    /// Answers the checks of one call at their holders, within half of the caller's `patience`.
    ///
    /// Where `refused` says that the call as a whole is refused, charges that passed are taken back as their checks
    /// say. What would be refused anyway is found out by looking first, so that calls which are refused all the time
    /// leave no trace in the counters of others; a call that loses a race is charged for as long as it takes to take
    /// that back.
    pub async fn decide(
        &self,
        checks: &[Check<'_>],
        wishes: &[Wish],
        patience: Option<Duration>,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Afar {
        let budget = patience.map_or(Duration::MAX, |patience| patience / 2).min(self.0.forward_budget_max);
        let deadline = self.0.now().after(budget);
        let ask = |index: usize, ask: Ask| self.ask(&checks[index], wishes[index], Deed::Ask(ask), deadline);
        let all = 0..checks.len();
        let takes_back = |index: &usize| checks[*index].on_refusal == OnRefusal::TakeBack;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; checks.len()];
        if 1 < checks.len() && all.clone().any(|index| takes_back(&index)) {
            let looks = join_all(all.clone().map(|index| ask(index, Ask::Look))).await;
            let foreseen: Vec<Decision> = checks
                .iter()
                .zip(&looks)
                .map(|(check, look)| check.limit.foreseen(check.ask, &look.decision))
                .collect();
            if refused(&foreseen) {
                // Those that pass are not charged at all.
                for (index, look) in looks.into_iter().enumerate() {
                    if takes_back(&index) && foreseen[index].verdict.passes() {
                        outcomes[index] = Some(Outcome { charged: 0, ..look });
                    }
                }
            }
        }
        let spared: Vec<usize> = all.clone().filter(|index| outcomes[*index].is_some()).collect();
        let asked: Vec<usize> = all.clone().filter(|index| outcomes[*index].is_none()).collect();
        let answers = join_all(asked.iter().map(|index| ask(*index, checks[*index].ask))).await;
        for (index, answer) in asked.into_iter().zip(answers) {
            outcomes[index] = Some(answer);
        }
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        let decisions = |outcomes: &[Outcome]| -> Vec<Decision> {
            outcomes.iter().map(|outcome| outcome.decision).collect()
        };
        if !spared.is_empty() && !refused(&decisions(&outcomes)) {
            // What was foreseen has not come true, so all are charged after all.
            let answers = join_all(spared.iter().map(|index| ask(*index, checks[*index].ask))).await;
            for (index, answer) in spared.into_iter().zip(answers) {
                outcomes[index] = answer;
            }
        }
        if 1 < checks.len() && refused(&decisions(&outcomes)) {
            let back = outcomes.iter_mut().enumerate().rev().filter(|(index, _)| takes_back(index));
            join_all(
                back.map(|(index, outcome)| self.take_back(&checks[index], wishes[index], outcome, deadline)),
            )
            .await;
        }
        let degraded = outcomes.iter().map(|outcome| outcome.by == By::Degraded).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        let each = outcomes.iter().map(|outcome| outcome.decision).collect();
        Afar { decisions: Decisions::new(each, charged), degraded }
    }

    async fn ask(&self, check: &Check<'_>, wish: Wish, deed: Deed, deadline: Timestamp) -> Outcome {
        let question = Question { key: check.key, limit: check.limit.clone(), deed, wish: 0 };
        let (sender, answer) = oneshot::channel();
        self.0.with_part(|Part { node, waiting, tickets }, now| {
            *tickets += 1;
            waiting.insert(*tickets, sender);
            node.ask(*tickets, question, wish, deadline, now);
        });
        answer.await.unwrap_or_else(|_| Outcome::nothing(wish))
    }

    /// Takes back what was charged, if anything, and tells what is left then.
    async fn take_back(&self, check: &Check<'_>, wish: Wish, outcome: &mut Outcome, deadline: Timestamp) {
        let charged = std::mem::take(&mut outcome.charged);
        match (outcome.by, outcome.decision.receipt.take()) {
            (By::Holder, Some(receipt)) => {
                let look = self.ask(check, wish, Deed::Undo(receipt), deadline).await;
                if look.by == By::Holder {
                    let Decision { remaining, reset_after, .. } = look.decision;
                    outcome.decision = Decision { remaining, reset_after, ..outcome.decision };
                }
            }
            (By::Lease, _) if 0 < charged => {
                self.0.with(|node, _| node.undo_lease(check.key, check.limit, charged))
            }
            (By::Degraded, Some(receipt)) => {
                self.0.with(|node, _| node.undo_share(check.key, check.limit, receipt, charged));
            }
            (By::Holder | By::Lease | By::Degraded, _) => {}
        }
    }

    /// What is kept under a key, wherever it is held; `None` where its holder cannot be reached.
    pub async fn look(&self, key: Key, limit: &crate::algorithm::Limit) -> Option<Kept> {
        let outcome = self.by_hand(key, limit, Deed::Ask(Ask::Look)).await?;
        Some(self.kept(limit, outcome.decision))
    }

    /// Makes it a counter to which `hits` are charged, wherever it is held.
    pub async fn replace(&self, key: Key, limit: &crate::algorithm::Limit, hits: u64) -> Option<Replaced> {
        let before = self.look(key, limit).await?;
        let outcome = self.by_hand(key, limit, Deed::Set(hits)).await?;
        Some(Replaced { before, after: self.kept(limit, outcome.decision) })
    }

    async fn by_hand(&self, key: Key, limit: &crate::algorithm::Limit, deed: Deed) -> Option<Outcome> {
        let check = Check { key, limit, ask: Ask::Look, on_refusal: OnRefusal::Keep };
        let wish = Wish { otherwise: crate::rules::OnOwnerUnavailable::Deny, lease: false };
        let outcome = self.ask(&check, wish, deed, self.0.now().after(self.0.forward_budget_max)).await;
        (outcome.by == By::Holder).then_some(outcome)
    }

    fn kept(&self, limit: &crate::algorithm::Limit, look: Decision) -> Kept {
        let used = look.remaining < limit.allowance() && !look.reset_after.is_zero();
        Kept { idle_at: used.then(|| self.0.clock.now().after(look.reset_after)), look }
    }
}
