//! The same decision without its consequences, told at length; and single counters, for operators.

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Decision, Limit, Verdict},
    cluster::{Cluster, MemberState},
    descriptor::{Entry, Key},
    limiter::{
        Answer, Applies, Limiter, Request, Snapshot, Status, Unanswered, answer, drop_replaced, plan::Plan,
        what_applies,
    },
    rules::{Allowance, LevelTrace, Rule},
    store::{Check, Decisions, Kept, OnRefusal, Rehearsal, Replaced},
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
    pub parts: Vec<Part<'s>>,
}

/// Why a descriptor gets its answer.
#[derive(Clone, Debug)]
pub struct Part<'s> {
    /// How its rule was looked for; empty where the caller brought a limit, so that none was.
    pub levels: Vec<LevelTrace<'s>>,
    /// The rule that was found, whether it applies or not.
    pub rule: Option<&'s Rule>,
    /// The rules of the same request that replace it, so that it does not apply.
    pub replaced_by: Vec<&'s Rule>,
    /// The check that decides, if any.
    pub check: Option<Checked>,
    /// The check of the rule's candidate, if it has one.
    pub candidate: Option<Checked>,
}

/// A check and its answer.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Which counter.
    pub key: Key,
    /// The limit that it is held against.
    pub limit: Limit,
    /// Its counter as it is.
    pub before: Kept,
    /// The answer.
    pub decision: Decision,
}

/// The counter of a descriptor under the rules in force.
#[derive(Clone, Debug)]
pub struct Counted<'s> {
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
pub enum Uncounted {
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

impl Snapshot<'_> {
    /// What [`Snapshot::decide`] would answer now, and why. Nothing is charged.
    ///
    /// Of counters that other replicas hold, what passes and what is left are foreseen from a look at them, and a
    /// refusal's wait is the look's time until reset. [`Unanswered::Elsewhere`] where one cannot be reached.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Explanation<'_>, Unanswered> {
        request.is_sound()?;
        let rules = self.rules.as_deref().ok_or(Unanswered::NoRules)?;
        let Some(domain) = rules.domain(request.domain) else {
            let answer = Answer::without_limits(request.descriptors.len());
            return Ok(Explanation { answer, now: self.now(), parts: Vec::new() });
        };
        let each = |descriptor| what_applies(domain, descriptor, request.patience);
        let mut applies: SmallVec<[Applies<'_>; 2]> = request.descriptors.iter().map(each).collect();
        let mut parts: Vec<Part<'_>> = request
            .descriptors
            .iter()
            .zip(&applies)
            .map(|(descriptor, found)| Part {
                levels: match found {
                    Applies::Override(..) => Vec::new(),
                    Applies::Nothing | Applies::Unlimited(_) | Applies::Rule(..) => {
                        domain.trace(descriptor.entries)
                    }
                },
                rule: found.matched().map(|matched| &**matched.rule),
                replaced_by: replacing(found, &applies),
                check: None,
                candidate: None,
            })
            .collect();
        drop_replaced(&mut applies);

        let Plan { mut statuses, checks, places, tried } =
            Plan::draw(domain, request.descriptors, &applies, &self.secret);
        let modes = self.limiter.modes;
        let refused = |decisions: &[Decision]| answer::refuses(modes, &statuses, &places, decisions);
        let rehearsal = self.rehearse(&checks, refused).await?;
        let checked = |index: usize| {
            let Check { key, limit, .. } = checks[index];
            let (before, decision) = (rehearsal.before[index], rehearsal.decisions[index]);
            Checked { key, limit: limit.clone(), before, decision }
        };
        for (index, place) in places.iter().enumerate() {
            parts[*place].check = Some(checked(index));
        }
        for (index, place) in tried.iter().enumerate() {
            let checked = checked(places.len() + index);
            statuses[*place].candidate_refuses = !checked.decision.verdict.passes();
            parts[*place].candidate = Some(checked);
        }
        let answer = Answer::fold(modes, statuses, &places, &rehearsal.decisions);
        Ok(Explanation { answer, now: self.now(), parts })
    }

    /// The counter of a descriptor under the rule in force.
    pub fn counted(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Counted<'_>, Uncounted> {
        let rules = self.rules.as_deref().ok_or(Uncounted::NoRules)?;
        let domain = rules.domain(domain).ok_or(Uncounted::NoDomain)?;
        let matched = domain.find(entries).ok_or(Uncounted::NoRule)?;
        match &matched.rule.allowance {
            Allowance::Unlimited => Err(Uncounted::Unlimited),
            Allowance::Limited(limit) => {
                let key = matched.key(domain, entries, limit.kind(), &self.secret);
                Ok(Counted { rule: matched.rule, limit, key, now: self.now() })
            }
        }
    }

    /// What is kept in it, wherever it is.
    pub async fn look(&self, counted: &Counted<'_>) -> Result<Kept, Uncounted> {
        let Counted { key, limit, now, .. } = counted;
        match &self.limiter.cluster {
            None => Ok(self.limiter.memory.look(*key, limit, *now)),
            Some(cluster) => cluster.peek(*key, limit).await.ok_or(Uncounted::Unreachable),
        }
    }

    /// Makes it a fresh counter to which `hits` are charged, beyond the limit too where it can hold a debt.
    pub async fn replace(&self, counted: &Counted<'_>, hits: u64) -> Result<Replaced, Uncounted> {
        let Counted { key, limit, now, .. } = counted;
        match &self.limiter.cluster {
            None => Ok(self.limiter.memory.replace(*key, limit, *now, hits)),
            Some(cluster) => cluster.replace(*key, limit, hits).await.ok_or(Uncounted::Unreachable),
        }
    }

    async fn rehearse(
        &self,
        checks: &[Check<'_>],
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> Result<Rehearsal, Unanswered> {
        let memory = &self.limiter.memory;
        if let Some(cluster) = &self.limiter.cluster {
            match cluster.state() {
                MemberState::Joining => return Err(Unanswered::Joining),
                MemberState::Serving | MemberState::Draining => {}
            }
            // Also of counters that are held here: where nothing is left, a look calls back what was lent.
            let looks = join_all(checks.iter().map(|check| cluster.peek(check.key, check.limit))).await;
            let before: Option<SmallVec<[Kept; 2]>> = looks.into_iter().collect();
            let before = before.ok_or(Unanswered::Elsewhere)?;
            if !checks.iter().all(|check| memory.holds(memory.slot(check.key))) {
                return Ok(Rehearsal { decisions: foreseen(checks, &before, refused), before });
            }
        }
        Ok(memory.rehearse(checks, self.now(), refused))
    }
}

/// What the checks of one call would be answered, as far as looks at their counters tell.
fn foreseen(checks: &[Check<'_>], before: &[Kept], refused: impl FnOnce(&[Decision]) -> bool) -> Decisions {
    let mut each: SmallVec<[Decision; 2]> = SmallVec::new();
    for (index, check) in checks.iter().enumerate() {
        let mut look = before[index].look;
        // Two checks of one counter charge it twice.
        if let Some(earlier) = checks[..index].iter().rposition(|earlier| earlier.key == check.key) {
            look.remaining = each[earlier].remaining;
        }
        each.push(foreseen_of_one(check, &look));
    }
    let is_refused = 1 < checks.len() && refused(&each);
    let charged = checks.iter().zip(&mut each).zip(before).map(|((check, decision), before)| {
        let passes = decision.verdict.passes();
        if is_refused && passes && check.on_refusal == OnRefusal::TakeBack {
            decision.remaining = before.look.remaining;
            return 0;
        }
        check.limit.charged(check.ask, passes)
    });
    let charged = charged.collect();
    Decisions::new(each, charged)
}

fn foreseen_of_one(check: &Check<'_>, look: &Decision) -> Decision {
    let Check { limit, ask, .. } = check;
    let decision = limit.foreseen(*ask, look);
    let passes = decision.verdict.passes();
    let unused = Decision { verdict: Verdict::Pass, remaining: limit.allowance(), ..*look };
    let verdict = match (ask, limit) {
        (Ask::Look, _) => look.verdict,
        // Its turn comes when all before it have left.
        (Ask::Charge(_), Limit::LeakyQueue(_)) if passes && !look.reset_after.is_zero() => {
            Verdict::Delay(look.reset_after)
        }
        (Ask::Charge(_), _) if !passes && limit.foreseen(*ask, &unused).verdict.passes() => {
            Verdict::Refuse { retry_after: Some(look.reset_after) }
        }
        (Ask::Charge(_) | Ask::Refund(_), _) => decision.verdict,
    };
    let remaining = match ask {
        Ask::Refund(hits) => look.remaining.saturating_add(*hits).min(limit.allowance()),
        Ask::Look | Ask::Charge(_) => look.remaining.saturating_sub(limit.charged(*ask, passes)),
    };
    Decision { verdict, remaining, ..decision }
}

/// The rules of the request that replace the one found.
fn replacing<'s>(found: &Applies<'s>, all: &[Applies<'s>]) -> Vec<&'s Rule> {
    let Some(name) = found.matched().and_then(|matched| matched.rule.name.as_ref()) else {
        return Vec::new();
    };
    let mut by: Vec<&'s Rule> = all
        .iter()
        .filter_map(Applies::matched)
        .map(|matched| &**matched.rule)
        .filter(|rule| rule.replaces.contains(name))
        .collect();
    by.dedup_by(|one, other| std::ptr::eq(*one, *other));
    by
}

impl Explanation<'_> {
    /// The statuses with why they are so, one for each descriptor.
    pub fn told(&self) -> impl Iterator<Item = (&Status<'_>, Option<&Part<'_>>)> {
        self.answer.statuses.iter().enumerate().map(|(index, status)| (status, self.parts.get(index)))
    }
}
