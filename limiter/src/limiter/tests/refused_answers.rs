//! Refused answers say the same whatever the call was: alone, together with others, once by its id, or a reservation.

use super::*;
use tollgate_counter::algorithm::{Admission, Limit};
use tollgate_rules::Rule;
use tollgate_store::{HoldId, HoldTerms, OnExpiry};

/// Calls that charge nothing if they are refused. A limit with a penalty counts the refusal of the last one.
const TRACELESS: [Door; 3] = [Door::Reserve, Door::Once, Door::Together];
const TTL: Duration = Duration::from_secs(24 * 3_600);

/// How a charge is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// As Envoy sends it, and `tollgate.v1` a request that is decided by itself.
    Alone,
    Together,
    Once,
    Reserve,
}

/// The limit of a rule, without its number of hits.
fn limits() -> Vec<String> {
    let mut limits = vec![
        "unit: minute".to_owned(),
        "unit: minute, algorithm: leaky_queue, burst: 3".to_owned(),
        "algorithm: token_bucket, burst: 5, refill_amount: 2, refill_interval: 10s".to_owned(),
        "unit: minute, algorithm: sliding_window, sub_windows: 6".to_owned(),
    ];
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"] {
        for more in ["", ", count_denied: true", ", overdraft: true, overdraft_limit: 3"] {
            limits.push(format!("unit: minute, algorithm: {algorithm}{more}"));
        }
    }
    let with_penalty = |limit: &String| format!("{limit}, penalty: {{after: 2, first: 20s, max: 60s}}");
    let named = limits.iter().filter(|limit| limit.contains("algorithm"));
    let penalized: Vec<String> = named.map(with_penalty).collect();
    limits.extend(penalized);
    let requests = |limit: String| {
        if limit.contains("refill_amount") { limit } else { format!("{limit}, requests_per_unit: 4") }
    };
    let concurrency = "algorithm: concurrency, max_in_flight: 4, hold_max: 1h".to_owned();
    limits.into_iter().map(requests).chain([concurrency]).collect()
}

fn rules() -> String {
    let rule = |(index, limit)| format!("  - {{key: r{index}, rate_limit: {{{limit}}}}}\n");
    let each: String = limits().into_iter().enumerate().map(rule).collect();
    format!("domain: d\non_denied: charge_none\ndescriptors:\n{each}")
}

/// What an answer says.
struct Said {
    passes: bool,
    numbers: Vec<(bool, u64, Option<Duration>, Option<Duration>)>,
    limit: Option<Limit>,
    retry_after: Option<Duration>,
}

impl Said {
    fn new(view: &ActiveView<'_>, request: &Request<'_>, answer: &Answer<'_>) -> Self {
        let numbers =
            |status: &Status<'_>| (status.passes, status.remaining, status.reset_after, status.retry_after);
        Self {
            passes: answer.passes,
            numbers: answer.statuses.iter().map(numbers).collect(),
            limit: answer.statuses[0].rule.and_then(Rule::limit).cloned(),
            retry_after: answer.retry_after(view.limiter.modes(), request),
        }
    }

    fn remaining(&self) -> Vec<u64> {
        self.numbers.iter().map(|(_, remaining, _, _)| *remaining).collect()
    }
}

/// Charges the rules with these indices by these hits.
fn charge(view: &ActiveView<'_>, door: Door, each: &[(usize, u64)]) -> Said {
    send(view, door, each.iter().map(|(rule, hits)| (*rule, Operation::Charge(*hits))))
}

fn send(view: &ActiveView<'_>, door: Door, each: impl Iterator<Item = (usize, Operation)>) -> Said {
    let (keys, operations): (Vec<String>, Vec<Operation>) =
        each.map(|(rule, operation)| (format!("r{rule}"), operation)).unzip();
    let entries: Vec<[Entry<'_>; 1]> = keys.iter().map(|key| [Entry::new(key, "a")]).collect();
    let descriptors = entries.iter().zip(operations);
    let descriptors = descriptors.map(|(entries, operation)| Descriptor { entries, operation, limit: None });
    let mut request = Request::new("d", descriptors, None).unwrap();
    if door == Door::Together {
        request = Request::together(std::slice::from_ref(&request)).unwrap();
    }
    let caller = Caller::default();
    let terms = HoldTerms::new(HoldId::random(), TTL, OnExpiry::Charge).unwrap();
    let decided = match door {
        Door::Alone | Door::Together => match view.decide(&request).unwrap() {
            AnswerOrPlan::Answer(answer) => AnswerOrPlan::Answer(answer.into()),
            AnswerOrPlan::Plan(plan) => AnswerOrPlan::Plan(plan),
        },
        Door::Once => view.hold(&request, HoldRequest::ChargeOnce(terms), &caller).unwrap(),
        Door::Reserve => view.hold(&request, HoldRequest::Reserve(terms), &caller).unwrap(),
    };
    match decided {
        AnswerOrPlan::Answer(held) => Said::new(view, &request, &held.answer),
        AnswerOrPlan::Plan(mut plan) => {
            let outcomes = at_once(plan.outcomes(view.limiter, &caller)).unwrap();
            plan.answer(view.limiter, &outcomes, |view, request, held| Said::new(view, request, &held.answer))
        }
    }
}

/// What is left of the rules.
fn left(view: &ActiveView<'_>, each: &[(usize, u64)]) -> Vec<u64> {
    let peek = |(rule, _): &(usize, u64)| {
        send(view, Door::Alone, [(*rule, Operation::Peek)].into_iter()).remaining()[0]
    };
    each.iter().map(peek).collect()
}

/// Asserts what a refused answer says of what is left, and when the call passes.
fn require_true(limiter: &Limiter, now: Timestamp, door: Door, each: &[(usize, u64)]) -> bool {
    let view = limiter.view();
    let said = charge(&view, door, each);
    if said.passes {
        return false;
    }
    assert_eq!(said.remaining(), left(&view, each), "{door:?} {each:?}");
    let [(rule, hits)] = *each else { return true };
    let limit = said.limit.unwrap();
    let passes_sometime = limit.can_pass(Operation::Charge(hits));
    let is_known = passes_sometime && limit.admission() != Admission::InFlight;
    assert_eq!(said.retry_after.is_some(), is_known, "{door:?} of {hits} to r{rule}");
    if let Some(after) = said.retry_after {
        let first = now.after(after);
        for (at, passes) in [(first.minus(1), false), (first, true)] {
            limiter.clock.set(at);
            // A refused reservation leaves no trace.
            let view = limiter.view();
            let later = charge(&view, Door::Reserve, each);
            assert_eq!(later.passes, passes, "{door:?} of {hits} to r{rule}, {after:?} later");
        }
    }
    true
}

fn any_door() -> impl Strategy<Value = Door> {
    prop::sample::select(vec![Door::Alone, Door::Together, Door::Once, Door::Reserve])
}

fn any_call() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let of_one_rule = (0..limits().len(), prop::collection::vec(1..7_u64, 1..3));
    let of_one_rule =
        of_one_rule.prop_map(|(rule, each)| each.into_iter().map(|hits| (rule, hits)).collect());
    let of_any = prop::collection::vec((0..limits().len(), 1..7_u64), 2..4);
    prop_oneof![3 => of_one_rule, 1 => of_any]
}

proptest! {
    #[test]
    fn refused_answers_agree_with_a_peek_and_with_time(
        (is_elsewhere, rule) in (any::<bool>(), 0..limits().len()),
        steps in prop::collection::vec(
            (any_door(), prop_oneof![3 => (1..7_u64).prop_map(Some), 1 => Just(None)], 0..20 * SECOND), 1..12),
        (last, others) in (any_door(), any_call()),
    ) {
        let base = if is_elsewhere { limiter_without_counters(Modes::default()) } else { limiter(Modes::default()) };
        base.active_rules.replace(Rules::parse("test", &rules()).unwrap(), NOW);
        let mut now = NOW;
        for (door, hits, pause) in steps {
            now = now.plus(pause);
            base.clock.set(now);
            let call = [(rule, hits.unwrap_or(1))];
            if hits.is_none() {
                send(&base.view(), Door::Alone, [(rule, Operation::Refund(1))].into_iter());
                continue;
            }
            let view = base.view();
            let first = charge(&view, Door::Reserve, &call);
            if !first.passes {
                let has_penalty = limits()[rule].contains("penalty");
                let others = TRACELESS.into_iter().filter(|door| !has_penalty || *door != Door::Together);
                for other in others {
                    let said = charge(&view, other, &call);
                    prop_assert_eq!(said.numbers, first.numbers.clone(), "{:?} {:?}", other, call);
                }
            }
            if require_true(&base, now, door, &call) {
                now = base.clock.now();
            }
        }
        let each: Vec<(usize, u64)> = [(rule, 3)].into_iter().chain(others).collect();
        require_true(&base, now, last, &each);
    }
}
