//! Calls whose counters are held by several replicas.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Limit, Operation},
    cluster::{
        Cluster, MemberId, OpenForwards, Overloaded, Part,
        calls::{Outcomes, Then},
        message::{Deed, Question},
        node::{By, Outcome, Ticket},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
    store::{Check, CounterState, Decisions, OnRefusal, Replacement},
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
    pub async fn decide_alone(
        &self,
        check: &Check<'_>,
        wish: Wish,
        patience: Option<Duration>,
        connection: &OpenForwards,
    ) -> Result<Alone, Overloaded> {
        let deed = Deed::Ask(check.operation);
        let Outcome { decision, charged, by } =
            self.ask(check, wish, deed, self.deadline(patience), connection).await?;
        Ok(Alone { decision, charged, degraded: by == By::Degraded })
    }

    /// Answers the checks of one call at their holders, within half of the caller's `patience`.
    ///
    /// Where `refused` says that the call as a whole is refused, charges that passed are taken back as their checks
    /// say. What would be refused anyway is found out by looking first, so that calls which are refused all the time
    /// leave no trace in the counters of others; a call that loses a race is charged for as long as it takes to take
    /// that back.
    ///
    /// An error means that nothing was asked: the call has too many checks, or too many are under way for its
    /// `connection` or for this replica.
    pub async fn decide(
        &self,
        checks: &[Check<'_>],
        wishes: &[Wish],
        patience: Option<Duration>,
        connection: &OpenForwards,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<Afar, Overloaded> {
        let call = Call::open(self, checks, wishes, self.deadline(patience), connection)?;
        let outcomes = if checks.len() == 1 {
            call.ask(&[0]).await
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
        Ok(Afar { decisions: Decisions::new(decisions(&outcomes), charged), degraded })
    }

    /// Until when a call waits for other replicas.
    fn deadline(&self, patience: Option<Duration>) -> Timestamp {
        let budget = patience.map_or(Duration::MAX, |patience| patience / 2).min(self.0.forward_budget_max);
        self.0.now().after(budget)
    }

    async fn ask(
        &self,
        check: &Check<'_>,
        wish: Wish,
        deed: Deed,
        deadline: Timestamp,
        connection: &OpenForwards,
    ) -> Result<Outcome, Overloaded> {
        let question = Question { key: check.key, limit: check.limit.clone(), deed, wish: 0 };
        let (answer, woken) = self.0.with_links_asleep(|Part { node, calls }, now| {
            let call = calls.open(1, connection)?;
            let answer = calls.ask(call, std::iter::once(wish), Then::Closes);
            node.ask(Ticket { call, check: 0 }, question, wish, deadline, now);
            Ok(answer)
        });
        self.wake_later(woken);
        let outcomes = answer?.await.unwrap_or_default();
        Ok(outcomes.into_iter().next().unwrap_or_else(|| Outcome::nothing(wish)))
    }

    /// Wakes links once all calls that are here now have asked, so that their questions go together. Not in the task
    /// of a call, which may be given up.
    fn wake_later(&self, links: Vec<MemberId>) {
        if !links.is_empty() {
            let replica = self.0.clone();
            tokio::spawn(async move { replica.wake(&links) });
        }
    }

    /// What is kept under a key, wherever it is held; `None` where its holder cannot be reached.
    pub async fn look(&self, key: Key, limit: &Limit) -> Option<CounterState> {
        let outcome = self.by_hand(key, limit, Deed::Ask(Operation::Peek)).await?;
        Some(self.kept(limit, outcome.decision))
    }

    /// Makes it a counter to which `hits` are charged, wherever it is held.
    pub async fn replace(&self, key: Key, limit: &Limit, hits: u64) -> Option<Replacement> {
        let before = self.look(key, limit).await?;
        let outcome = self.by_hand(key, limit, Deed::Set(hits)).await?;
        Some(Replacement { before, after: self.kept(limit, outcome.decision) })
    }

    async fn by_hand(&self, key: Key, limit: &Limit, deed: Deed) -> Option<Outcome> {
        let check = Check { key, limit, operation: Operation::Peek, on_refusal: OnRefusal::Keep };
        let wish = Wish { otherwise: OnOwnerUnavailable::Deny, lease: false };
        let deadline = self.0.now().after(self.0.forward_budget_max);
        let outcome = self.ask(&check, wish, deed, deadline, &OpenForwards::default()).await.ok()?;
        (outcome.by == By::Holder).then_some(outcome)
    }

    fn kept(&self, limit: &Limit, look: Decision) -> CounterState {
        let used = look.remaining < limit.allowance() && !look.reset_after.is_zero();
        CounterState { idle_at: used.then(|| self.0.clock.now().after(look.reset_after)), peek: look }
    }
}

/// The checks of one call, on their way to their holders. Open for as long as this lives, and until all that it has
/// asked is answered.
struct Call<'c> {
    cluster: &'c Cluster,
    checks: &'c [Check<'c>],
    wishes: &'c [Wish],
    deadline: Timestamp,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.cluster.0.lock().calls.close(self.number);
    }
}

impl<'c> Call<'c> {
    fn open(
        cluster: &'c Cluster,
        checks: &'c [Check<'c>],
        wishes: &'c [Wish],
        deadline: Timestamp,
        connection: &OpenForwards,
    ) -> Result<Self, Overloaded> {
        let number = cluster.0.lock().calls.open(checks.len(), connection)?;
        Ok(Self { cluster, checks, wishes, deadline, number })
    }

    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    /// Does something about some of the checks: all are asked at once, and the answer comes when all are answered, so
    /// that the work grows with their number and no faster.
    async fn do_all(&self, deeds: Vec<(usize, Deed)>) -> Outcomes {
        if deeds.is_empty() {
            return Outcomes::new();
        }
        let (answer, woken) = self.cluster.0.with_links_asleep(|Part { node, calls }, now| {
            let wishes = deeds.iter().map(|(index, _)| self.wishes[*index]);
            let answer = calls.ask(self.number, wishes, Then::StaysOpen);
            for (check, (index, deed)) in (0..).zip(deeds) {
                let Check { key, limit, .. } = self.checks[index];
                let question = Question { key, limit: limit.clone(), deed, wish: 0 };
                let ticket = Ticket { call: self.number, check };
                node.ask(ticket, question, self.wishes[index], self.deadline, now);
            }
            answer
        });
        self.cluster.wake_later(woken);
        answer.await.expect("a call that is open keeps the sender of its round")
    }

    /// Asks what these checks ask.
    async fn ask(&self, checks: &[usize]) -> Outcomes {
        self.do_all(checks.iter().map(|index| (*index, Deed::Ask(self.checks[*index].operation))).collect())
            .await
    }

    /// Looks first. Where the call would be refused: the checks that would pass and be taken back, with what they would
    /// find. `None` for all others, which are to be asked.
    async fn foreseen_to_pass_in_vain(&self, refused: impl Fn(&[Decision]) -> bool) -> Vec<Option<Outcome>> {
        let all = 0..self.checks.len();
        let mut spared = vec![None; self.checks.len()];
        if !all.clone().any(|index| self.takes_back(index)) {
            return spared;
        }
        let looks = self.do_all(all.map(|index| (index, Deed::Ask(Operation::Peek))).collect()).await;
        let foresee =
            |(check, look): (&Check<'_>, &Outcome)| check.limit.predict(check.operation, &look.decision);
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
    ) -> Outcomes {
        let (asked, spared): (Vec<usize>, Vec<usize>) =
            (0..outcomes.len()).partition(|index| outcomes[*index].is_none());
        let answers = self.ask(&asked).await;
        for (index, answer) in asked.into_iter().zip(answers) {
            outcomes[index] = Some(answer);
        }
        let mut outcomes: Outcomes = outcomes.into_iter().flatten().collect();
        if !spared.is_empty() && !refused(&decisions(&outcomes)) {
            let answers = self.ask(&spared).await;
            for (index, answer) in spared.into_iter().zip(answers) {
                outcomes[index] = answer;
            }
        }
        outcomes
    }

    /// Takes back what is not to be charged by a call that is refused, and tells what is left then.
    async fn take_back(&self, outcomes: &mut [Outcome]) {
        let mut undone = Vec::new();
        let replica = &self.cluster.0;
        for (index, outcome) in outcomes.iter_mut().enumerate().filter(|(index, _)| self.takes_back(*index)) {
            let Check { key, limit, .. } = self.checks[index];
            let charged = std::mem::take(&mut outcome.charged);
            match (outcome.by, outcome.decision.receipt.take()) {
                (By::Holder, Some(receipt)) => undone.push((index, Deed::Undo(receipt))),
                (By::Lease, _) if 0 < charged => {
                    replica.with(|node, _| node.undo_lease(key, limit, charged));
                }
                (By::Degraded, Some(receipt)) => {
                    replica.with(|node, _| node.undo_share(key, limit, receipt, charged));
                }
                (By::Holder | By::Lease | By::Degraded, _) => {}
            }
        }
        let places: Vec<usize> = undone.iter().map(|(index, _)| *index).collect();
        for (index, look) in places.into_iter().zip(self.do_all(undone).await) {
            if look.by == By::Holder {
                let Decision { remaining, reset_after, .. } = look.decision;
                let outcome = &mut outcomes[index];
                outcome.decision = Decision { remaining, reset_after, ..outcome.decision };
            }
        }
    }
}

fn decisions(outcomes: &[Outcome]) -> SmallVec<[Decision; 2]> {
    outcomes.iter().map(|outcome| outcome.decision).collect()
}
