//! Calls whose counters are held by several replicas.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::{
    algorithm::{Ask, Decision, Limit},
    cluster::{
        Cluster, Part,
        message::{Deed, Question},
        node::{By, Outcome},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
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

/// The same where there is one check.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// What was decided.
    pub decision: Decision,
    /// The hits that were charged.
    pub charged: u64,
    /// Whether it was decided without the holder of the counter.
    pub degraded: bool,
}

impl Cluster {
    /// Answers the only check of a call as [`Cluster::decide`] does.
    pub async fn decide_alone(&self, check: &Check<'_>, wish: Wish, patience: Option<Duration>) -> Alone {
        let deed = Deed::Ask(check.ask);
        let Outcome { decision, charged, by } = self.ask(check, wish, deed, self.deadline(patience)).await;
        Alone { decision, charged, degraded: by == By::Degraded }
    }

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
        let call = Call { cluster: self, checks, wishes, deadline: self.deadline(patience) };
        let outcomes = if checks.len() == 1 {
            call.ask(0..1).await
        } else {
            let spared = call.foreseen_to_pass_in_vain(&refused).await;
            let mut outcomes = call.ask_but_for(spared, &refused).await;
            if refused(&decisions(&outcomes)) {
                call.take_back(&mut outcomes).await;
            }
            outcomes
        };
        let degraded = outcomes.iter().map(|outcome| outcome.by == By::Degraded).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        Afar { decisions: Decisions::new(decisions(&outcomes), charged), degraded }
    }

    /// Until when a call waits for other replicas.
    fn deadline(&self, patience: Option<Duration>) -> Timestamp {
        let budget = patience.map_or(Duration::MAX, |patience| patience / 2).min(self.0.forward_budget_max);
        self.0.now().after(budget)
    }

    async fn ask(&self, check: &Check<'_>, wish: Wish, deed: Deed, deadline: Timestamp) -> Outcome {
        let question = Question { key: check.key, limit: check.limit.clone(), deed, wish: 0 };
        let (sender, answer) = oneshot::channel();
        let ((), woken) = self.0.with_links_asleep(|Part { node, waiting, tickets }, now| {
            *tickets += 1;
            waiting.insert(*tickets, sender);
            node.ask(*tickets, question, wish, deadline, now);
        });
        if !woken.is_empty() {
            // Once all calls that are here now have asked, so that their questions go together. Not in the task of
            // this call, which may be given up.
            let replica = self.0.clone();
            tokio::spawn(async move { replica.wake(&woken) });
        }
        answer.await.unwrap_or_else(|_| Outcome::nothing(wish))
    }

    /// What is kept under a key, wherever it is held; `None` where its holder cannot be reached.
    pub async fn look(&self, key: Key, limit: &Limit) -> Option<Kept> {
        let outcome = self.by_hand(key, limit, Deed::Ask(Ask::Look)).await?;
        Some(self.kept(limit, outcome.decision))
    }

    /// Makes it a counter to which `hits` are charged, wherever it is held.
    pub async fn replace(&self, key: Key, limit: &Limit, hits: u64) -> Option<Replaced> {
        let before = self.look(key, limit).await?;
        let outcome = self.by_hand(key, limit, Deed::Set(hits)).await?;
        Some(Replaced { before, after: self.kept(limit, outcome.decision) })
    }

    async fn by_hand(&self, key: Key, limit: &Limit, deed: Deed) -> Option<Outcome> {
        let check = Check { key, limit, ask: Ask::Look, on_refusal: OnRefusal::Keep };
        let wish = Wish { otherwise: OnOwnerUnavailable::Deny, lease: false };
        let outcome = self.ask(&check, wish, deed, self.0.now().after(self.0.forward_budget_max)).await;
        (outcome.by == By::Holder).then_some(outcome)
    }

    fn kept(&self, limit: &Limit, look: Decision) -> Kept {
        let used = look.remaining < limit.allowance() && !look.reset_after.is_zero();
        Kept { idle_at: used.then(|| self.0.clock.now().after(look.reset_after)), look }
    }
}

/// The checks of one call, on their way to their holders.
struct Call<'c> {
    cluster: &'c Cluster,
    checks: &'c [Check<'c>],
    wishes: &'c [Wish],
    deadline: Timestamp,
}

impl Call<'_> {
    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    async fn do_one(&self, index: usize, deed: Deed) -> Outcome {
        self.cluster.ask(&self.checks[index], self.wishes[index], deed, self.deadline).await
    }

    /// Asks what these checks ask.
    async fn ask(&self, checks: impl IntoIterator<Item = usize>) -> Vec<Outcome> {
        join_all(checks.into_iter().map(|index| self.do_one(index, Deed::Ask(self.checks[index].ask)))).await
    }

    /// Looks first. Where the call would be refused: the checks that would pass and be taken back, with what they would
    /// find. `None` for all others, which are to be asked.
    async fn foreseen_to_pass_in_vain(&self, refused: impl Fn(&[Decision]) -> bool) -> Vec<Option<Outcome>> {
        let all = 0..self.checks.len();
        let mut spared = vec![None; self.checks.len()];
        if !all.clone().any(|index| self.takes_back(index)) {
            return spared;
        }
        let looks = join_all(all.map(|index| self.do_one(index, Deed::Ask(Ask::Look)))).await;
        let foresee = |(check, look): (&Check<'_>, &Outcome)| check.limit.foreseen(check.ask, &look.decision);
        let foreseen: Vec<Decision> = self.checks.iter().zip(&looks).map(foresee).collect();
        if refused(&foreseen) {
            for (index, look) in looks.into_iter().enumerate() {
                if self.takes_back(index) && foreseen[index].verdict.passes() {
                    // A look charges nothing, but its verdict is of no hits.
                    let decision = foreseen[index];
                    spared[index] = Some(Outcome { decision, charged: 0, ..look });
                }
            }
        }
        spared
    }

    /// Asks all checks but the spared ones; those too where the call is not refused after all.
    async fn ask_but_for(
        &self,
        mut outcomes: Vec<Option<Outcome>>,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Vec<Outcome> {
        let (asked, spared): (Vec<usize>, Vec<usize>) =
            (0..outcomes.len()).partition(|index| outcomes[*index].is_none());
        let answers = self.ask(asked.iter().copied()).await;
        for (index, answer) in asked.into_iter().zip(answers) {
            outcomes[index] = Some(answer);
        }
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        if !spared.is_empty() && !refused(&decisions(&outcomes)) {
            let answers = self.ask(spared.iter().copied()).await;
            for (index, answer) in spared.into_iter().zip(answers) {
                outcomes[index] = answer;
            }
        }
        outcomes
    }

    /// Takes back what is not to be charged by a call that is refused, and tells what is left then.
    async fn take_back(&self, outcomes: &mut [Outcome]) {
        let back = outcomes.iter_mut().enumerate().filter(|(index, _)| self.takes_back(*index));
        join_all(back.map(|(index, outcome)| self.take_back_one(index, outcome))).await;
    }

    async fn take_back_one(&self, index: usize, outcome: &mut Outcome) {
        let (Check { key, limit, .. }, replica) = (self.checks[index], &self.cluster.0);
        let charged = std::mem::take(&mut outcome.charged);
        match (outcome.by, outcome.decision.receipt.take()) {
            (By::Holder, Some(receipt)) => {
                let look = self.do_one(index, Deed::Undo(receipt)).await;
                if look.by == By::Holder {
                    let Decision { remaining, reset_after, .. } = look.decision;
                    outcome.decision = Decision { remaining, reset_after, ..outcome.decision };
                }
            }
            (By::Lease, _) if 0 < charged => {
                replica.with(|node, _| node.undo_lease(key, limit, charged));
            }
            (By::Degraded, Some(receipt)) => {
                replica.with(|node, _| node.undo_share(key, limit, receipt, charged));
            }
            (By::Holder | By::Lease | By::Degraded, _) => {}
        }
    }
}

fn decisions(outcomes: &[Outcome]) -> SmallVec<[Decision; 2]> {
    outcomes.iter().map(|outcome| outcome.decision).collect()
}
