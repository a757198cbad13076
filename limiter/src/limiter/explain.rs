//! Explanations of decisions without charging them, and access to single counters, for operators.

use smallvec::{SmallVec, smallvec};
use tollgate_counter::{
    algorithm::{Admission, Classic, Decision, Limit, Operation, Verdict},
    descriptor::{Entry, Key},
    time::Timestamp,
};
use tollgate_remote::{Remote, RemoteExtent};
use tollgate_rules::{DisplayedLimit, KeyedDomain, LevelTrace, Rule, StoredTerms, Unit};
use tollgate_store::{
    Check, CheckDecision, Checks, CounterOperation, CounterState, Decisions, DryRun, HoldOutcome, OnRefusal,
    OperationOutcome, OwnLimitChange, OwnLimitOutcome, OwnLimitPage, OwnLimitPosition, OwnLimitState,
    OwnTerms, Refusal, Slot, SlotOwnLimits,
};

use crate::limiter::{
    ActiveView,
    answer::{self, Answer, LimiterError, Status},
    check_set::{AppliedLimit, CheckSet, applied_limits, drop_replaced},
    limit_source::CacheHits,
    request::{Charging, Descriptor, Request},
};

/// Whose limits of their own are listed. A shared store lists all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnLimitsOf {
    /// The limits of the counters that this replica owns.
    ThisReplica,
    /// The limits of the counters of all replicas.
    AllReplicas,
}

/// Slots whose limits of their own are read together: fewer at first, because they may fill a page.
const SLOTS_AT_ONCE_MIN: usize = 4;
const SLOTS_AT_ONCE_MAX: usize = 256;
/// The limits of their own that a part of their list looks at.
const LOOKED_AT_MAX: usize = 4_096;

/// The answer that a request would get, and the reasons.
#[derive(Clone, Debug)]
pub struct Explanation<'s> {
    /// The answer.
    pub answer: Answer<'s>,
    /// The instant of the answer.
    pub now: Timestamp,
    /// The reasons for each descriptor, in order; empty if the domain has no rules.
    pub parts: Vec<DescriptorExplanation<'s>>,
}

/// The reasons for the answer to one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorExplanation<'s> {
    /// The steps of the rule lookup; empty for an override, which needs none.
    pub levels: Vec<LevelTrace<'s>>,
    /// The rule that was found, even if it does not apply.
    pub rule: Option<&'s Rule>,
    /// The rules of the same request that replace this one, so that it does not apply.
    pub replaced_by: Vec<&'s Rule>,
    /// The limit that the store names for the key, unless the rule looks nothing up or the store names none.
    pub stored: Option<StoredTerms>,
    /// The check that decides, if any.
    pub check: Option<CheckExplanation>,
    /// The check of the candidate of the rule, if there is one.
    pub candidate: Option<CheckExplanation>,
}

/// A check and its decision.
#[derive(Clone, Debug)]
pub struct CheckExplanation {
    /// The counter.
    pub key: Key,
    /// The limit.
    pub limit: Limit,
    /// The counter before the check.
    pub before: CounterState,
    /// The decision.
    pub decision: Decision,
}

/// The counter of a descriptor under the active rules.
#[derive(Clone, Debug)]
pub struct CounterRef<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// The limit of the rule, or the one that a store names for the key.
    pub limit: Limit,
    /// The limit as displayed.
    pub displayed_limit: DisplayedLimit,
    /// The counter.
    pub key: Key,
    /// The instant of the view.
    pub now: Timestamp,
}

/// Why a descriptor has no counter to display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCounter {
    /// No valid rules have been loaded.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// The domain has no rules.
    #[error("no rules for this domain")]
    NoDomain,
    /// No rule matches the descriptor.
    #[error("no rule matches this descriptor; see /explain")]
    NoRule,
    /// The rule is unlimited.
    #[error("the rule for this descriptor is unlimited: it has no counter")]
    Unlimited,
    /// The owner of the counter cannot be reached.
    #[error("the owner of this counter cannot be reached; see /cluster")]
    Unreachable,
    /// The shared store cannot be used.
    #[error("the shared store cannot be used; see /readyz")]
    NoStore,
}

impl CounterRef<'_> {
    /// The window that the store names, as in a rule file; `None` if it is that of the rule.
    pub fn stored_window(&self) -> Option<String> {
        let is_stored = self.rule.limit()?.kind() != self.limit.kind();
        is_stored.then(|| format!("{}ms", self.limit.kind().window_nanos() / 1_000_000))
    }
}

impl ActiveView<'_> {
    /// The answer that [`ActiveView::decide`] would give now, with reasons. Charges nothing.
    ///
    /// For counters of other owners the verdict is predicted from a peek, and `retry_after` is the time until reset.
    /// Returns [`LimiterError::Remote`] if an owner, or [`LimiterError::NoStore`] if the shared store cannot be reached.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Explanation<'_>, LimiterError> {
        self.require_rules()?;
        let Some(domain) = self.rules.domain(request.domain) else {
            let answer = Answer::without_limits(request.descriptors.len());
            return Ok(Explanation { answer, now: self.now(), parts: Vec::new() });
        };
        let mut applied = AppliedLimit::for_each_descriptor(domain, request);
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
                rule: found.rule(),
                replaced_by: replacing(found, &applied),
                stored: None,
                check: None,
                candidate: None,
            })
            .collect();
        drop_replaced(&mut applied);
        self.until_limits_are_known(domain, request).await;
        self.limiter.limits.apply(domain, request, self.now(), CacheHits::Ignored, &mut applied);
        for (part, applied) in parts.iter_mut().zip(&applied) {
            part.stored = applied.stored_terms();
        }

        let set = CheckSet::new(domain, request, &applied);
        let modes = self.limiter.modes;
        let refusal = answer::refusal(modes, &applied, set.deciding());
        let dry_run = self.dry_run(&set.checks, refusal).await?;
        let checked = |index: usize| {
            let Check { key, limit, origin, .. } = set.checks[index];
            let before = dry_run.before[index].clone();
            let decision = dry_run.decisions[index].decision;
            let limit = origin.replaced_by(before.own_terms()).map_or(limit, |own| &own.limit).clone();
            CheckExplanation { key, limit, before, decision }
        };
        for (check, index) in set.deciding().iter().enumerate() {
            parts[*index].check = Some(checked(check));
        }
        for (check, index) in (set.deciding().len()..).zip(set.candidates()) {
            parts[*index].candidate = Some(checked(check));
        }
        let answer = Answer::fold(modes, &applied, &set, &dry_run.decisions);
        Ok(Explanation { answer, now: self.now(), parts })
    }

    /// The counter of a descriptor under the active rule, and the limit that its store names.
    pub async fn counter_ref(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
    ) -> Result<CounterRef<'_>, NoCounter> {
        self.rules.rules().ok_or(NoCounter::NoRules)?;
        let keyed = self.rules.domain(domain).ok_or(NoCounter::NoDomain)?;
        let descriptor = Descriptor { entries, operation: Operation::Peek, limit: None };
        let request = Request {
            domain,
            descriptors: smallvec![descriptor],
            timeout: None,
            turn_timeout: None,
            charging: Charging::AsRules,
        };
        self.until_limits_are_known(keyed, &request).await;
        let mut applied = [AppliedLimit::new(keyed, &descriptor, &request)];
        self.limiter.limits.apply(keyed, &request, self.now(), CacheHits::Ignored, &mut applied);
        let [applied] = applied;
        let rule = applied.rule().ok_or(NoCounter::NoRule)?;
        let check = applied.check(keyed, &descriptor).ok_or(NoCounter::Unlimited)?;
        let displayed_limit = applied.looked_up().map_or(rule.displayed_limit, |found| found.displayed_limit);
        let (key, limit) = (check.key, check.limit.clone());
        Ok(CounterRef { rule, limit, displayed_limit, key, now: self.now() })
    }

    /// Waits until the limits are known that the keys of a request look up, as long as a call does.
    async fn until_limits_are_known(&self, domain: KeyedDomain<'_>, request: &Request<'_>) {
        let mut applied = applied_limits(domain, request);
        self.limiter
            .limits
            .apply(domain, request, self.now(), CacheHits::Ignored, &mut applied)
            .ended(None)
            .await;
    }

    /// The state of a counter, on this replica or another.
    pub async fn peek(&self, counter_ref: &CounterRef<'_>) -> Result<CounterState, NoCounter> {
        let CounterRef { key, limit, now, .. } = counter_ref;
        let Some(remote) = &self.limiter.remote else {
            return Ok(self.limiter.memory.peek(*key, limit, *now));
        };
        let [peek] =
            remote.operate(*key, limit, [CounterOperation::Show]).await.ok_or_else(|| unreachable(remote))?;
        Ok(CounterState::from_outcome(limit, &peek, *now))
    }

    /// Replaces the counter by a fresh one with `hits` charged, above the limit if the algorithm can hold a debt. Returns
    /// the state before and after that.
    pub async fn replace(
        &self,
        counter_ref: &CounterRef<'_>,
        hits: u64,
    ) -> Result<[CounterState; 2], NoCounter> {
        let CounterRef { key, limit, now, .. } = counter_ref;
        let Some(remote) = &self.limiter.remote else {
            let memory = &self.limiter.memory;
            let before = memory.peek(*key, limit, *now);
            // Without a cluster this memory owns all slots.
            let _ = memory.operate(*key, limit, &CounterOperation::Set(hits), *now);
            return Ok([before, memory.peek(*key, limit, *now)]);
        };
        let operations = [CounterOperation::Show, CounterOperation::Set(hits)];
        let shown = remote.operate(*key, limit, operations).await.ok_or_else(|| unreachable(remote))?;
        Ok(shown.map(|outcome| CounterState::from_outcome(limit, &outcome, *now)))
    }

    /// Sets or removes the limit of its own of a counter, on this replica or another.
    pub async fn set_own_limit(
        &self,
        key: Key,
        limit: &Limit,
        change: OwnLimitChange,
    ) -> Result<OwnLimitOutcome, NoCounter> {
        let operation = CounterOperation::SetOwnLimit(Box::new(change));
        let outcome = match &self.limiter.remote {
            // Without a cluster this memory owns all slots, and nothing is leased.
            None => self.limiter.memory.operate(key, limit, &operation, self.now()).ok(),
            Some(remote) => remote.operate(key, limit, [operation]).await.map(|[outcome]| outcome),
        };
        match outcome.map(|outcome| outcome.hold) {
            Some(HoldOutcome::OwnLimit(outcome)) => Ok(*outcome),
            Some(_) | None => Err(self.limiter.remote.as_ref().map_or(NoCounter::Unreachable, unreachable)),
        }
    }

    /// A part of the list of the limits of their own, and where it continues: at most `most` that are `listed` after this
    /// position. Over a shared store it has those of about `most` counters.
    pub async fn own_limits<T>(
        &self,
        of: OwnLimitsOf,
        after: Option<OwnLimitPosition>,
        most: usize,
        listed: impl Fn(Key, &OwnLimitState) -> Option<T>,
    ) -> Result<(Vec<T>, Option<OwnLimitPosition>), NoCounter> {
        let remote = self.limiter.remote.as_ref();
        let in_store = remote.and_then(|remote| remote.own_limits(after, most));
        let remote = remote.filter(|_| of == OwnLimitsOf::AllReplicas);
        if let Some(page) = in_store {
            let OwnLimitPage { limits, next } = page.await.ok_or(NoCounter::NoStore)?;
            return Ok((limits.iter().filter_map(|(key, state)| listed(*key, state)).collect(), next));
        }
        let slots = self.limiter.memory.slots();
        let (mut limits, mut looked_at) = (Vec::new(), 0);
        let mut after = after.map(|OwnLimitPosition { slot, key }| (slot, key));
        let mut slot = 0;
        let mut at_once = SLOTS_AT_ONCE_MIN;
        'slots: while slot < slots {
            slot = after.map_or(slot, |(slot, _)| slot.index());
            let asked = (slot..slots.min(slot + at_once)).map(Slot::at);
            let found = self.slot_own_limits(remote, asked.clone(), after).await?;
            for (slot, SlotOwnLimits { limits: each, has_more }) in asked.zip(found) {
                for (key, state) in each {
                    limits.extend(listed(key, &state));
                    after = Some((slot, key));
                    looked_at += 1;
                    if limits.len() == most || looked_at == LOOKED_AT_MAX {
                        return Ok((limits, Some(OwnLimitPosition { slot, key })));
                    }
                }
                if has_more {
                    continue 'slots;
                }
            }
            (slot, after) = (slot + at_once, None);
            at_once = (at_once * 2).min(SLOTS_AT_ONCE_MAX);
        }
        Ok((limits, None))
    }

    /// Limits of their own of these slots, of the slot of `after` the next ones after its key.
    async fn slot_own_limits(
        &self,
        remote: Option<&Remote>,
        slots: impl Iterator<Item = Slot>,
        after: Option<(Slot, Key)>,
    ) -> Result<Vec<SlotOwnLimits>, NoCounter> {
        let memory = &self.limiter.memory;
        // The operation reads no counter.
        let limit = Limit::Classic(Classic::new(0, Unit::Second.window()));
        let operations = slots.map(|slot| {
            let after = after.filter(|(other, _)| *other == slot).map(|(_, key)| key);
            (slot.key(memory.slots(), 0), CounterOperation::ListOwnLimits(after))
        });
        let limits = |outcome: OperationOutcome| match outcome.hold {
            HoldOutcome::OwnLimits(limits) => Some(*limits),
            _ => None,
        };
        let Some(remote) = remote else {
            // A slot of another owner has none here.
            let list = |(key, operation)| {
                let outcome = memory.operate(key, &limit, &operation, self.now()).ok();
                outcome.and_then(limits).unwrap_or_default()
            };
            return Ok(operations.map(list).collect());
        };
        let listed = remote.operate_each(operations, &limit).await;
        let listed = listed.and_then(|listed| listed.into_iter().map(limits).collect());
        listed.ok_or_else(|| unreachable(remote))
    }

    /// Whether this process keeps no counters.
    pub fn has_no_counters(&self) -> bool {
        self.limiter.has_no_counters()
    }

    async fn dry_run(&self, checks: &Checks<'_>, refusal: Refusal) -> Result<DryRun, LimiterError> {
        let memory = &self.limiter.memory;
        let refused = |decisions: &[CheckDecision]| refusal.is_refused(decisions);
        let Some(remote) = &self.limiter.remote else {
            return Ok(memory.dry_run(checks, self.now(), refused));
        };
        if remote.is_joining() {
            return Err(LimiterError::Joining);
        }
        let is_here = |check: &Check<'_>| {
            remote.extent() == RemoteExtent::OtherOwners && memory.owns(memory.slot(check.key))
        };
        // Also for owned counters: a peek at an exhausted counter recalls its leases.
        let Some((shown, decisions)) = remote.dry_run(checks, refusal.clone()).await else {
            return Err(match remote.extent() {
                RemoteExtent::OtherOwners => LimiterError::Remote,
                RemoteExtent::All => LimiterError::NoStore,
            });
        };
        if decisions.is_none() && checks.iter().all(is_here) {
            return Ok(memory.dry_run(checks, self.now(), refused));
        }
        let state = |(outcome, check): (&OperationOutcome, &Check<'_>)| {
            CounterState::from_outcome(check.limit, outcome, self.now())
        };
        let before: SmallVec<[CounterState; 2]> = shown.iter().zip(checks).map(state).collect();
        let decisions = decisions.unwrap_or_else(|| predict(checks, &before, refused));
        Ok(DryRun { decisions, before })
    }
}

/// Why a counter elsewhere cannot be displayed or changed.
fn unreachable(remote: &Remote) -> NoCounter {
    match remote.extent() {
        RemoteExtent::OtherOwners => NoCounter::Unreachable,
        RemoteExtent::All => NoCounter::NoStore,
    }
}

/// Predicts the decisions of a check set from peeks at the counters.
fn predict<'c>(
    checks: &[Check<'c>],
    before: &'c [CounterState],
    refused: impl FnOnce(&[CheckDecision]) -> bool,
) -> Decisions {
    let mut decisions = Decisions::new();
    let by_own = |(check, before): (&Check<'c>, &'c CounterState)| {
        let limit = check.origin.replaced_by(before.own_terms()).map_or(check.limit, |own| &own.limit);
        Check { limit, ..*check }
    };
    let checks: Checks<'c> = checks.iter().zip(before).map(by_own).collect();
    for (index, check) in checks.iter().enumerate() {
        let mut peek = before[index].peek;
        // Two checks of one counter charge it twice.
        if let Some(earlier) = checks[..index].iter().rposition(|earlier| earlier.key == check.key) {
            peek.remaining = decisions[earlier].remaining;
        }
        let decision = predict_one(check, &peek);
        let own = check.origin.replaced_by(before[index].own_terms());
        let decision = if own.is_some_and(OwnTerms::is_unlimited) { peek } else { decision };
        decisions.push(CheckDecision { decision, charged: 0, own: own.map(|own| own.requests_per_unit) });
    }
    let is_refused = checks.len() > 1 && refused(&decisions);
    for ((check, CheckDecision { decision, charged, .. }), before) in
        checks.iter().zip(&mut decisions).zip(before)
    {
        let passes = decision.verdict.passes();
        let is_taken_back =
            check.on_refusal == OnRefusal::TakeBack && check.operation.is_taken_back(before.peek.remaining);
        if is_refused && passes && is_taken_back {
            decision.remaining = before.peek.remaining;
        } else {
            *charged = check.limit.charged(check.operation, passes);
        }
    }
    decisions
}

fn predict_one(check: &Check<'_>, peek: &Decision) -> Decision {
    let Check { limit, operation, .. } = check;
    let decision = limit.predict(*operation, peek);
    let passes = decision.verdict.passes();
    let unused = Decision { verdict: Verdict::Pass, remaining: limit.allowance(), ..*peek };
    let verdict = match (operation, limit.admission()) {
        (Operation::Peek, _) => peek.verdict,
        // The delay is the time until all earlier hits have left.
        (Operation::Charge(_), Admission::Delayed) if passes && !peek.reset_after.is_zero() => {
            Verdict::Delay(peek.reset_after)
        }
        (Operation::Charge(_), Admission::AtOnce | Admission::Delayed)
            if !passes && limit.predict(*operation, &unused).verdict.passes() =>
        {
            Verdict::Refuse { retry_after: Some(peek.reset_after) }
        }
        (Operation::Charge(_), Admission::AtOnce | Admission::Delayed | Admission::InFlight)
        | (Operation::Refund(_), _) => decision.verdict,
    };
    let remaining = match operation {
        Operation::Refund(hits) => peek.remaining.saturating_add(*hits).min(limit.allowance()),
        Operation::Peek | Operation::Charge(_) => {
            peek.remaining.saturating_sub(limit.charged(*operation, passes))
        }
    };
    Decision { verdict, remaining, ..decision }
}

/// The rules of the request that replace the rule of `found`.
fn replacing<'s>(found: &AppliedLimit<'s>, all: &[AppliedLimit<'s>]) -> Vec<&'s Rule> {
    let Some(name) = found.rule().and_then(|rule| rule.options().name.as_ref()) else {
        return Vec::new();
    };
    let mut by: Vec<&'s Rule> = all
        .iter()
        .filter_map(AppliedLimit::rule)
        .filter(|rule| rule.options().replaces.contains(name))
        .collect();
    by.dedup_by(|one, other| std::ptr::eq(*one, *other));
    by
}

impl Explanation<'_> {
    /// The statuses with their explanations, one for each descriptor.
    pub fn descriptors(&self) -> impl Iterator<Item = (&Status<'_>, Option<&DescriptorExplanation<'_>>)> {
        self.answer.statuses.iter().enumerate().map(|(index, status)| (status, self.parts.get(index)))
    }
}
