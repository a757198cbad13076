//! The same decision without its consequences, told at length; and single counters, for operators.

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Limit, Operation, Verdict},
    cluster::{Cluster, State},
    descriptor::{Entry, Key},
    limiter::{
        ActiveView, Answer, AppliedLimit, Limiter, LimiterError, Request, Status, answer, applied_limit,
        drop_replaced, plan::Plan,
    },
    rules::{Allowance, LevelTrace, Rule},
    store::{Check, CounterState, Decisions, DryRun, OnRefusal, Replacement},
    time::Timestamp,
};

/// What a request would be answered, and why.
#[derive(Clone, Debug)]
pub struct Explanation<'s> {
    /// The answer.
    pub answer: Answer<'s>,
    /// The instant that it is for.
    pub now: Timestamp,
    /// One for each descriptor; empty where the domain has no rules.
    pub parts: Vec<DescriptorExplanation<'s>>,
}

/// Why a descriptor gets its answer.
#[derive(Clone, Debug)]
pub struct DescriptorExplanation<'s> {
    /// How its rule was looked for; empty where the caller brought a limit, so that none was.
    pub levels: Vec<LevelTrace<'s>>,
    /// The rule that was found, whether it applies or not.
    pub rule: Option<&'s Rule>,
    /// The rules of the same request that replace it, so that it does not apply.
    pub replaced_by: Vec<&'s Rule>,
    /// The check that decides, if any.
    pub check: Option<CheckExplanation>,
    /// The check of the rule's candidate, if it has one.
    pub candidate: Option<CheckExplanation>,
}

/// A check and its answer.
#[derive(Clone, Debug)]
pub struct CheckExplanation {
    /// Which counter.
    pub key: Key,
    /// The limit that it is held against.
    pub limit: Limit,
    /// Its counter as it is.
    pub before: CounterState,
    /// The answer.
    pub decision: Decision,
}

/// The counter of a descriptor under the rules in force.
#[derive(Clone, Debug)]
pub struct CounterRef<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// Its limit.
    pub limit: &'s Limit,
    /// Which counter.
    pub key: Key,
    /// The time now.
    pub now: Timestamp,
}

/// Why nothing is counted for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCounter {
    /// No rules were ever good.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// The domain is not known.
    #[error("no rules for this domain")]
    NoDomain,
    /// No rule matches.
    #[error("no rule matches this descriptor; /explain tells why")]
    NoRule,
    /// A rule says that nothing is limited.
    #[error("the rule for this descriptor is unlimited, so nothing is counted")]
    Unlimited,
    /// Another replica counts, and it cannot be reached.
    #[error("no replica that holds this counter can be reached from here; /cluster tells who is heard")]
    Unreachable,
}

impl Limiter {
    /// Those that keys are shared with, if any.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }
}

impl ActiveView<'_> {
    /// What [`ActiveView::decide`] would answer now, and why. Nothing is charged.
    ///
    /// Of counters that other replicas hold, what passes and what is left are foreseen from a look at them, and a
    /// refusal's wait is the look's time until reset. [`LimiterError::Remote`] where one cannot be reached.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Explanation<'_>, LimiterError> {
        request.validate()?;
        let rules = self.rules.as_deref().ok_or(LimiterError::NoRules)?;
        let Some(domain) = rules.domain(request.domain) else {
            let answer = Answer::without_limits(request.descriptors.len());
            return Ok(Explanation { answer, now: self.now(), parts: Vec::new() });
        };
        let each = |descriptor| applied_limit(domain, descriptor, request.timeout);
        let mut applied: SmallVec<[AppliedLimit<'_>; 2]> = request.descriptors.iter().map(each).collect();
        let mut parts: Vec<DescriptorExplanation<'_>> = request
            .descriptors
            .iter()
            .zip(&applied)
            .map(|(descriptor, found)| DescriptorExplanation {
                levels: match found {
                    AppliedLimit::Override(..) => Vec::new(),
                    AppliedLimit::Nothing | AppliedLimit::Unlimited(_) | AppliedLimit::Rule(..) => {
                        domain.trace(descriptor.entries)
                    }
                },
                rule: found.matched().map(|matched| &**matched.rule),
                replaced_by: replacing(found, &applied),
                check: None,
                candidate: None,
            })
            .collect();
        drop_replaced(&mut applied);

        let Plan { mut statuses, checks, status_indexes, candidate_indexes } =
            Plan::new(domain, request.descriptors, &applied, &self.secret);
        let modes = self.limiter.modes;
        let refused = |decisions: &[Decision]| answer::refuses(modes, &statuses, &status_indexes, decisions);
        let dry_run = self.dry_run(&checks, refused).await?;
        let checked = |index: usize| {
            let Check { key, limit, .. } = checks[index];
            let (before, decision) = (dry_run.before[index], dry_run.decisions[index]);
            CheckExplanation { key, limit: limit.clone(), before, decision }
        };
        for (index, place) in status_indexes.iter().enumerate() {
            parts[*place].check = Some(checked(index));
        }
        for (index, place) in candidate_indexes.iter().enumerate() {
            let checked = checked(status_indexes.len() + index);
            statuses[*place].candidate_refuses = !checked.decision.verdict.passes();
            parts[*place].candidate = Some(checked);
        }
        let answer = Answer::fold(modes, statuses, &status_indexes, &dry_run.decisions);
        Ok(Explanation { answer, now: self.now(), parts })
    }

    /// The counter of a descriptor under the rule in force.
    pub fn counter_ref(&self, domain: &str, entries: &[Entry<'_>]) -> Result<CounterRef<'_>, NoCounter> {
        let rules = self.rules.as_deref().ok_or(NoCounter::NoRules)?;
        let domain = rules.domain(domain).ok_or(NoCounter::NoDomain)?;
        let matched = domain.find(entries).ok_or(NoCounter::NoRule)?;
        match &matched.rule.allowance {
            Allowance::Unlimited => Err(NoCounter::Unlimited),
            Allowance::Limited(limit) => {
                let key = matched.key(domain, entries, limit.kind(), &self.secret);
                Ok(CounterRef { rule: matched.rule, limit, key, now: self.now() })
            }
        }
    }

    /// What is kept in it, wherever it is.
    pub async fn peek(&self, counter_ref: &CounterRef<'_>) -> Result<CounterState, NoCounter> {
        let CounterRef { key, limit, now, .. } = counter_ref;
        match &self.limiter.cluster {
            None => Ok(self.limiter.memory.peek(*key, limit, *now)),
            Some(cluster) => cluster.look(*key, limit).await.ok_or(NoCounter::Unreachable),
        }
    }

    /// Makes it a fresh counter to which `hits` are charged, beyond the limit too where it can hold a debt.
    pub async fn replace(&self, counter_ref: &CounterRef<'_>, hits: u64) -> Result<Replacement, NoCounter> {
        let CounterRef { key, limit, now, .. } = counter_ref;
        match &self.limiter.cluster {
            None => Ok(self.limiter.memory.replace(*key, limit, *now, hits)),
            Some(cluster) => cluster.replace(*key, limit, hits).await.ok_or(NoCounter::Unreachable),
        }
    }

    async fn dry_run(
        &self,
        checks: &[Check<'_>],
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> Result<DryRun, LimiterError> {
        let memory = &self.limiter.memory;
        if let Some(cluster) = &self.limiter.cluster {
            match cluster.state() {
                State::Joining => return Err(LimiterError::Joining),
                State::Serving | State::Draining => {}
            }
            // Also of counters that are held here: where nothing is left, a look calls back what was lent.
            let peeks = join_all(checks.iter().map(|check| cluster.look(check.key, check.limit))).await;
            let before: Option<SmallVec<[CounterState; 2]>> = peeks.into_iter().collect();
            let before = before.ok_or(LimiterError::Remote)?;
            if !checks.iter().all(|check| memory.owns(memory.slot(check.key))) {
                return Ok(DryRun { decisions: predict(checks, &before, refused), before });
            }
        }
        Ok(memory.dry_run(checks, self.now(), refused))
    }
}

/// What the checks of one call would be answered, as far as looks at their counters tell.
fn predict(
    checks: &[Check<'_>],
    before: &[CounterState],
    refused: impl FnOnce(&[Decision]) -> bool,
) -> Decisions {
    let mut each: SmallVec<[Decision; 2]> = SmallVec::new();
    for (index, check) in checks.iter().enumerate() {
        let mut peek = before[index].peek;
        // Two checks of one counter charge it twice.
        if let Some(earlier) = checks[..index].iter().rposition(|earlier| earlier.key == check.key) {
            peek.remaining = each[earlier].remaining;
        }
        each.push(predict_one(check, &peek));
    }
    let is_refused = 1 < checks.len() && refused(&each);
    let charged = checks.iter().zip(&mut each).zip(before).map(|((check, decision), before)| {
        let passes = decision.verdict.passes();
        if is_refused && passes && check.on_refusal == OnRefusal::TakeBack {
            decision.remaining = before.peek.remaining;
            return 0;
        }
        check.limit.charged(check.operation, passes)
    });
    let charged = charged.collect();
    Decisions::new(each, charged)
}

fn predict_one(check: &Check<'_>, peek: &Decision) -> Decision {
    let Check { limit, operation, .. } = check;
    let decision = limit.predict(*operation, peek);
    let passes = decision.verdict.passes();
    let unused = Decision { verdict: Verdict::Pass, remaining: limit.allowance(), ..*peek };
    let verdict = match (operation, limit) {
        (Operation::Peek, _) => peek.verdict,
        // Its turn comes when all before it have left.
        (Operation::Charge(_), Limit::LeakyQueue(_)) if passes && !peek.reset_after.is_zero() => {
            Verdict::Delay(peek.reset_after)
        }
        (Operation::Charge(_), _) if !passes && limit.predict(*operation, &unused).verdict.passes() => {
            Verdict::Refuse { retry_after: Some(peek.reset_after) }
        }
        (Operation::Charge(_) | Operation::Refund(_), _) => decision.verdict,
    };
    let remaining = match operation {
        Operation::Refund(hits) => peek.remaining.saturating_add(*hits).min(limit.allowance()),
        Operation::Peek | Operation::Charge(_) => {
            peek.remaining.saturating_sub(limit.charged(*operation, passes))
        }
    };
    Decision { verdict, remaining, ..decision }
}

/// The rules of the request that replace the one found.
fn replacing<'s>(found: &AppliedLimit<'s>, all: &[AppliedLimit<'s>]) -> Vec<&'s Rule> {
    let Some(name) = found.matched().and_then(|matched| matched.rule.name.as_ref()) else {
        return Vec::new();
    };
    let mut by: Vec<&'s Rule> = all
        .iter()
        .filter_map(AppliedLimit::matched)
        .map(|matched| &**matched.rule)
        .filter(|rule| rule.replaces.contains(name))
        .collect();
    by.dedup_by(|one, other| std::ptr::eq(*one, *other));
    by
}

impl Explanation<'_> {
    /// The statuses with why they are so, one for each descriptor.
    pub fn descriptors(&self) -> impl Iterator<Item = (&Status<'_>, Option<&DescriptorExplanation<'_>>)> {
        self.answer.statuses.iter().enumerate().map(|(index, status)| (status, self.parts.get(index)))
    }
}
