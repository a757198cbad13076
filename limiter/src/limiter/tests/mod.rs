use std::{
    future::ready,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::Operation,
    descriptor::{Entry, Secret},
    lock::lock,
    resilience::Caller,
    time::{SECOND, Timestamp},
};
use tollgate_remote::{
    CounterChecks, DecidedBy, LocalShare, LocalShareBasis, Outcomes, RemoteOutcome, Submission,
    SubmissionMode, Submit,
};
use tollgate_rules::Rules;
use tollgate_store::OnFull;

mod peeks;
mod refused_answers;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const KEYS: [&str; 11] =
    ["classic", "fixed", "bucket", "queue", "shadow", "quota", "late", "tried", "gold", "free", "nothing"];
const RULES: &str = "\
domain: d
descriptors:
  - {key: classic, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: fixed, rate_limit: {unit: second, requests_per_unit: 3, algorithm: fixed_window, overdraft: true}}
  - {key: bucket, value: a*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_queue, burst: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: late, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_queue, burst: 3}}
  - {key: tried, rate_limit: {unit: minute, requests_per_unit: 3, candidate: {unit: minute, requests_per_unit: 2}}}
  - {key: gold, rate_limit: {name: gold, replaces: [{name: basic}], unit: minute, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: other, rate_limit: {unlimited: true}}
  - key: plan
    value: a
    descriptors:
      - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_window}}
      - {key: fixed_ab, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: bucket, rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket}}
";

fn limiter(modes: Modes) -> Limiter {
    let active_rules = ActiveRules::from_rules(Rules::parse("test", RULES).unwrap(), NOW);
    // Equal keys lie in equal slots, so that equal counters take equal memory.
    active_rules.set_secret(Secret::from_bytes([7; 16]));
    let memory = Memory::new(1 << 20, OnFull::Deny);
    Limiter::new(Arc::new(active_rules), Arc::new(memory), Clock::manual(NOW)).with_modes(modes)
}

/// The owner of all counters, which answers at once.
#[derive(Debug)]
struct Owner {
    memory: Memory,
    clock: Clock,
    local_share: Mutex<LocalShare>,
}

impl Submit for Owner {
    fn submit(&self, Submission { checks, mode, .. }: Submission<'_>) -> Option<Outcomes> {
        let SubmissionMode::Each = mode else { return None };
        let outcomes = checks.iter().map(|check| {
            let outcome = self.memory.operate_by(
                check.key,
                (&check.limit, check.origin),
                &check.operation,
                self.clock.now(),
            );
            RemoteOutcome { outcome: outcome.expect("each slot is here"), decided_by: DecidedBy::Counter }
        });
        Some(Box::pin(ready(outcomes.collect())))
    }

    fn send(&self, _: CounterChecks) {
        unreachable!("no caller goes away");
    }

    fn local_share(&self) -> MutexGuard<'_, LocalShare> {
        lock(&self.local_share)
    }

    fn local_share_basis(&self) -> LocalShareBasis {
        LocalShareBasis { replicas: 2, now: self.clock.now() }
    }

    fn extent(&self) -> RemoteExtent {
        RemoteExtent::OtherOwners
    }

    fn is_joining(&self) -> bool {
        false
    }

    fn budget_max(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A limiter of a replica that owns no counter.
fn limiter_without_counters(modes: Modes) -> Limiter {
    let Limiter { active_rules, clock, .. } = limiter(modes);
    let owned = Memory::new(1 << 20, OnFull::Deny);
    let owner = Owner { memory: owned, clock: clock.clone(), local_share: Mutex::default() };
    let memory = Arc::new(Memory::new(1 << 20, OnFull::Deny).shared());
    Limiter::new(active_rules, memory, clock)
        .with_modes(modes)
        .with_remote(Some(Remote::new(Arc::new(owner))))
}

/// What `limiter` answers, also if another owns the counters.
fn answered(limiter: &Limiter, request: &Request<'_>) -> String {
    let view = limiter.view();
    let mut plan = match view.decide(request).unwrap() {
        AnswerOrPlan::Answer(answer) => return answer_text(answer),
        AnswerOrPlan::Plan(plan) => plan,
    };
    let outcomes = at_once(plan.outcomes(limiter, &Caller::default())).unwrap();
    plan.answer(limiter, &outcomes, |_, _, held| answer_text(held.answer.clone()))
}

/// The result of what waits for nothing: the owner answers at once.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the owner answers at once"),
    }
}

/// The answer with the status of the first descriptor only, as text.
fn answer_text(mut answer: Answer<'_>) -> String {
    answer.statuses.truncate(1);
    let path = answer.statuses[0].rule.take().map(|rule| &rule.path);
    format!("{answer:?} {path:?}")
}

/// The metrics of everything but the rule `other`.
fn metrics_text(limiter: &Limiter) -> String {
    let LimiterMetrics { unknown_domains, unmatched, shadow_passes, overrides, denied, .. } =
        &*limiter.metrics;
    let plain = [unknown_domains, unmatched, shadow_passes].map(|counter| counter.get());
    let mut rules = limiter.active_rules.current().rules().map(Rules::totals).unwrap_or_default();
    rules.retain(|(series, _)| series.rule != "d.other");
    format!("{plain:?} {:?} {:?} {rules:?}", overrides.totals(), denied.entries(99))
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::Peek),
        (0..5_u64).prop_map(Operation::Charge),
        (0..3_u64).prop_map(Operation::Refund),
    ]
}

/// The rules, or others in which some limits, shadow modes and keys differ.
fn rules(are_others: bool) -> Rules {
    let others =
        RULES.replace("requests_per_unit: 3", "requests_per_unit: 2").replace("key: tried", "key: late_a");
    Rules::parse("test", if are_others { &others } else { RULES }).unwrap()
}

proptest! {
    #[test]
    fn prepared_descriptor_is_answered_like_any_other(
        (quota, shadow) in any::<(bool, bool)>(),
        steps in prop::collection::vec(
            (0..KEYS.len(), "(a[bc]?)?", any_operation(), 0..SECOND, 0..3_u8, any::<Option<bool>>()),
            1..60,
        ),
    ) {
        let [mut asked, mut prepared] = [limiter(Modes { quota_mode: quota, shadow_mode: shadow }), limiter(Modes { quota_mode: quota, shadow_mode: shadow })];
        let mut open: Vec<_> = KEYS.iter().map(|key| prepared.prepare("d", &[], [key])).collect();
        let mut nested: Vec<_> = KEYS.iter().map(|key| prepared.prepare("d", &[("plan", "a")], [key])).collect();
        let mut now = NOW;
        for (key, value, operation, pass, form, other_rules) in steps {
            now = now.plus(pass);
            for limiter in [&mut asked, &mut prepared] {
                limiter.clock.set(now);
                if let Some(are_others) = other_rules {
                    limiter.active_rules.replace(rules(are_others), now);
                }
            }
            let (last, plan) = ((KEYS[key], &*value), ("plan", "a"));
            let (entries, answer) = match form {
                0 => (vec![last], open[key].ask([&value], operation)),
                1 => (vec![plan, last], nested[key].ask([&value], operation)),
                _ => (vec![last], prepared.prepare("d", &[last], []).ask([], operation)),
            };
            prop_assert_eq!(answer, asked.ask("d", &entries, operation), "{:?}", entries);
        }
        prop_assert_eq!(metrics_text(&prepared), metrics_text(&asked));
        prop_assert_eq!(prepared.memory.stats(), asked.memory.stats());
    }

    #[test]
    fn descriptor_is_decided_alike_alone_and_beside_an_unlimited_one(
        (quota, shadow) in any::<(bool, bool)>(),
        steps in prop::collection::vec((0..KEYS.len(), "a[bc]?", any_operation(), 0..SECOND, any::<bool>()), 1..60),
    ) {
        let [alone, beside] = [limiter(Modes { quota_mode: quota, shadow_mode: shadow }), limiter(Modes { quota_mode: quota, shadow_mode: shadow })];
        let mut now = NOW;
        for (key, value, operation, pass, patient) in steps {
            now = now.plus(pass);
            [&alone, &beside].into_iter().for_each(|limiter| limiter.clock.set(now));
            let (entries, other) = ([Entry::new(KEYS[key], &value)], [Entry::new("other", "x")]);
            let [descriptor, unlimited] =
                [&entries, &other].map(|entries| Descriptor { entries, operation, limit: None });
            let timeout = patient.then_some(Duration::from_millis(700));
            let answers = [(&alone, vec![descriptor]), (&beside, vec![descriptor, unlimited])].map(
                |(limiter, descriptors)| {
                    let request = Request::new("d", descriptors, timeout).unwrap();
                    answered(limiter, &request)
                },
            );
            prop_assert_eq!(&answers[0], &answers[1]);
        }
        prop_assert_eq!(metrics_text(&alone), metrics_text(&beside));
        prop_assert_eq!(alone.memory.stats(), beside.memory.stats());
    }

    #[test]
    fn descriptor_is_decided_alike_here_and_elsewhere(
        (quota, shadow) in any::<(bool, bool)>(),
        steps in prop::collection::vec((0..KEYS.len(), "a[bc]?", any_operation(), 0..SECOND, any::<bool>()), 1..60),
    ) {
        let modes = Modes { quota_mode: quota, shadow_mode: shadow };
        let [here, elsewhere] = [limiter(modes), limiter_without_counters(modes)];
        let mut now = NOW;
        for (key, value, operation, pass, patient) in steps {
            now = now.plus(pass);
            [&here, &elsewhere].into_iter().for_each(|limiter| limiter.clock.set(now));
            let entries = [Entry::new(KEYS[key], &value)];
            let descriptor = Descriptor { entries: &entries, operation, limit: None };
            let timeout = patient.then_some(Duration::from_millis(700));
            let request = Request::new("d", [descriptor], timeout).unwrap();
            prop_assert_eq!(answered(&elsewhere, &request), answered(&here, &request));
        }
        prop_assert_eq!(metrics_text(&elsewhere), metrics_text(&here));
    }
}
