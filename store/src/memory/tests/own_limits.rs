//! Laws of limits of their own.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, laws::every_limit},
    time::SECOND,
};

use crate::{
    OwnTerms,
    check::{Check, LimitOrigin, OnFull, OnRefusal},
    decisions::CheckDecision,
    memory::{
        Memory,
        tests::{BYTES, NOW, key},
    },
    operation::{CounterOperation, HoldOutcome, UnknownId},
    reservation::{HoldId, HoldTerms, OnExpiry},
    side_data::own::{OwnLimitChange, OwnLimitOutcome, OwnLimitRefusal},
};

/// What happens to two counters: one has a limit of its own, the other a rule with that limit.
#[derive(Clone, Debug)]
enum Step {
    // The factor is that of the period, if the counter does not depend on it.
    Own(u64, u64),
    Clear,
    Charge(u64),
    Together(u64),
    Peek,
    Refund(u64),
    Reserve(u8, u64),
    Settle(u8, u64),
    Withdraw(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1..60_u64, 1..4_u64).prop_map(|(allowance, factor)| Step::Own(allowance, factor)),
        1 => Just(Step::Clear),
        6 => (1..8_u64).prop_map(Step::Charge),
        2 => (1..8_u64).prop_map(Step::Together),
        1 => Just(Step::Peek),
        2 => (1..8_u64).prop_map(Step::Refund),
        2 => (0..4_u8, 1..8_u64).prop_map(|(id, hits)| Step::Reserve(id, hits)),
        2 => (0..4_u8, 0..8_u64).prop_map(|(id, hits)| Step::Settle(id, hits)),
        1 => (0..4_u8).prop_map(Step::Withdraw),
    ]
}

fn own(limit: &Limit, replaces: Option<u64>) -> CounterOperation {
    let terms = Some(OwnTerms { limit: limit.clone(), requests_per_unit: 1 });
    let record = Box::default();
    CounterOperation::SetOwnLimit(Box::new(OwnLimitChange { terms, expires_after: None, record, replaces }))
}

fn cleared() -> CounterOperation {
    let change = OwnLimitChange { terms: None, expires_after: None, record: Box::default(), replaces: None };
    CounterOperation::SetOwnLimit(Box::new(change))
}

fn without_receipt(decision: Decision) -> Decision {
    Decision { receipt: None, ..decision }
}

proptest! {
    #[test]
    fn key_with_own_limit_decides_as_a_rule_with_that_limit(
        index in 0..every_limit(20, SECOND).len(),
        steps in prop::collection::vec((any_step(), 0..SECOND), 1..50),
    ) {
        let rule = &every_limit(20, SECOND)[index];
        let [memory, model] = [(); 2].map(|()| Memory::new(BYTES, OnFull::Deny));
        let [name, other] = [key("one"), key("other")];
        let mut limit = rule.clone();
        let mut now = NOW;
        for (step, pause) in steps {
            now = now.plus(pause);
            let set = |memory: &Memory, limit: &Limit, hits| {
                let check = |key| Check {
                    key, limit, operation: Operation::Charge(hits), on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule,
                };
                let refused = |each: &[CheckDecision]| each.iter().any(|decision| !decision.verdict.passes());
                let other = Check { limit: rule, ..check(other) };
                let decisions = memory.apply(&[check(name), other], now, refused).unwrap();
                decisions.iter().map(|each| without_receipt(each.decision)).collect::<Vec<_>>()
            };
            if matches!(step, Step::Own(..) | Step::Clear) {
                // A hold that has expired is given back under the limit before. Its units are rounded under another one.
                model.operate(name, &limit, &CounterOperation::Show, now).unwrap();
            }
            let operation = match step {
                Step::Own(allowance, factor) => {
                    let is_free = matches!(
                        rule.plain(), Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::LeakyQueue(_),
                    );
                    let span = if is_free { factor * SECOND } else { SECOND };
                    limit = every_limit(allowance, span)[index].clone();
                    memory.operate(name, rule, &own(&limit, None), now).unwrap();
                    continue;
                }
                Step::Clear => {
                    limit = rule.clone();
                    memory.operate(name, rule, &cleared(), now).unwrap();
                    continue;
                }
                Step::Together(hits) => {
                    prop_assert_eq!(set(&memory, rule, hits), set(&model, &limit, hits));
                    continue;
                }
                Step::Charge(hits) => CounterOperation::Decide(Operation::Charge(hits)),
                Step::Peek => CounterOperation::Show,
                Step::Refund(hits) => CounterOperation::Decide(Operation::Refund(hits)),
                Step::Reserve(id, hits) => {
                    let id = HoldId::new(&[id]).unwrap();
                    let terms = HoldTerms::new(id, Duration::from_secs(2), OnExpiry::Release).unwrap();
                    CounterOperation::Reserve { terms: Box::new(terms), hits }
                }
                Step::Settle(id, actual) => CounterOperation::Settle {
                    id: HoldId::new(&[id]).unwrap(), actual, unknown: UnknownId::Remember,
                },
                Step::Withdraw(id) => CounterOperation::Withdraw { id: HoldId::new(&[id]).unwrap(), attempt: 0 },
            };
            let [with_own, with_rule] = [(&memory, rule), (&model, &limit)].map(|(memory, limit)| {
                let outcome = memory.operate(name, limit, &operation, now).unwrap();
                (without_receipt(outcome.decision), outcome.charged, outcome.hold)
            });
            if let (HoldOutcome::Shown(with_own), HoldOutcome::Shown(with_rule)) = (&with_own.2, &with_rule.2) {
                prop_assert_eq!(&with_own.holds, &with_rule.holds);
            } else {
                prop_assert_eq!(&with_own, &with_rule, "{:?}", operation);
            }
            let [explained, expected] = [(&memory, rule), (&model, &limit)]
                .map(|(memory, limit)| without_receipt(memory.peek(name, limit, now).peek));
            prop_assert_eq!(explained, expected);
        }
    }
}

#[test]
fn own_limit_of_another_version_stays() {
    let [rule, other] = [20, 30].map(|hits| every_limit(hits, SECOND).swap_remove(0));
    let (memory, name) = (Memory::new(BYTES, OnFull::Deny), key("one"));
    let set = |limit, replaces| {
        let outcome = memory.operate(name, &rule, &own(limit, replaces), NOW).unwrap();
        let HoldOutcome::OwnLimit(outcome) = outcome.hold else { panic!("{outcome:?}") };
        let OwnLimitOutcome { refusal, state } = *outcome;
        (refusal, state.map(|state| state.version))
    };
    let (refusal, first) = set(&rule, Some(0));
    assert_eq!(refusal, None);
    assert_eq!(set(&rule, Some(0)), (Some(OwnLimitRefusal::OtherVersion), first), "there is one already");
    let (refusal, second) = set(&other, first);
    assert_eq!(refusal, None);
    assert!(first < second);
    assert_eq!(set(&other, first), (Some(OwnLimitRefusal::OtherVersion), second));
    memory.operate(name, &rule, &cleared(), NOW).unwrap();
    let (refusal, third) = set(&rule, Some(0));
    assert_eq!(refusal, None, "it was removed");
    assert!(second < third);
}

#[test]
fn own_limit_without_memory_is_refused_and_changes_nothing() {
    let rule = &every_limit(20, SECOND)[0];
    let memory = Memory::new(1 << 20, OnFull::Deny).with_slots(4);
    let set = |number: u32| {
        let name = key(&number.to_string());
        let outcome = memory.operate(name, rule, &own(rule, None), NOW).unwrap();
        let HoldOutcome::OwnLimit(outcome) = outcome.hold else { panic!("{outcome:?}") };
        outcome.refusal
    };
    let refused = (0..10_000).find(|number| set(*number).is_some()).unwrap();
    assert!(refused > 100);
    assert_eq!(set(refused), Some(OwnLimitRefusal::NoMemory));
    assert!(memory.stats().bytes <= 1 << 20);
    assert_eq!(memory.peek(key(&refused.to_string()), rule, NOW).details.own_limit, None);
    // Counters are evicted, limits of their own are not.
    for number in 0..100_000 {
        let name = key(&format!("other {number}"));
        let operation = Operation::Charge(1);
        let check = Check {
            key: name,
            limit: rule,
            operation,
            on_refusal: OnRefusal::Keep,
            origin: LimitOrigin::Rule,
        };
        memory.apply_single(&check, NOW).unwrap();
    }
    for number in 0..refused {
        let state = memory.peek(key(&number.to_string()), rule, NOW);
        assert!(state.details.own_limit.is_some(), "{number}");
    }
}

#[test]
fn own_limit_ends_at_its_expiry() {
    let [rule, larger] = [20, 40].map(|allowance| every_limit(allowance, 3_600 * SECOND)[0].clone());
    let (memory, name) = (Memory::new(BYTES, OnFull::Deny), key("one"));
    let CounterOperation::SetOwnLimit(mut change) = own(&larger, None) else { unreachable!() };
    change.expires_after = Some(Duration::from_secs(10));
    memory.operate(name, &rule, &CounterOperation::SetOwnLimit(change), NOW).unwrap();
    let remaining = |now| memory.peek(name, &rule, now).peek.remaining;
    assert_eq!(remaining(NOW.plus(10 * SECOND - 1)), 40);
    assert_eq!(remaining(NOW.plus(10 * SECOND)), 20);
    memory.sweep(NOW.plus(10 * SECOND));
    assert_eq!(memory.stats().bytes, 0);
}

#[test]
fn unlimited_key_passes_everything_and_is_counted() {
    let rule = &every_limit(3, 3_600 * SECOND)[0];
    let (memory, name) = (Memory::new(BYTES, OnFull::Deny), key("one"));
    let terms = Some(OwnTerms {
        limit: every_limit(1_000_000, 3_600 * SECOND)[0].clone(),
        requests_per_unit: OwnTerms::UNLIMITED,
    });
    let change = OwnLimitChange { terms, expires_after: None, record: Box::default(), replaces: None };
    memory.operate(name, rule, &CounterOperation::SetOwnLimit(Box::new(change)), NOW).unwrap();
    let operation = Operation::Charge(2_000_000);
    let check =
        Check { key: name, limit: rule, operation, on_refusal: OnRefusal::Keep, origin: LimitOrigin::Rule };
    let decided = memory.apply_single(&check, NOW).unwrap();
    assert!(decided.decision.verdict.passes());
    assert_eq!((decided.decision.remaining, decided.own), (u64::MAX, Some(OwnTerms::UNLIMITED)));
    let charge = Check { operation: Operation::Charge(2), ..check };
    memory.apply_single(&charge, NOW).unwrap();
    memory.operate(name, rule, &cleared(), NOW).unwrap();
    assert!(!memory.apply_single(&charge, NOW).unwrap().decision.verdict.passes(), "it has used 2 of 3");
}

#[test]
fn limit_of_a_request_decides_in_place_of_own_limit() {
    let [rule, own_one, sent] = [20, 2, 5].map(|allowance| every_limit(allowance, 3_600 * SECOND)[0].clone());
    for own_limit in [own(&own_one, None), own(&rule, None)] {
        let [memory, model] = [(); 2].map(|()| Memory::new(BYTES, OnFull::Deny));
        let [name, other] = [key("one"), key("other")];
        memory.operate(name, &rule, &own_limit, NOW).unwrap();
        let check = |operation| Check {
            key: name,
            limit: &sent,
            operation,
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Request,
        };
        let id = HoldId::new(b"id").unwrap();
        let terms = HoldTerms::new(id.clone(), Duration::from_secs(2), OnExpiry::Release).unwrap();
        let both = |operation: CounterOperation| {
            let by = (&sent, LimitOrigin::Request);
            let [with_own, without] =
                [&memory, &model].map(|memory| memory.operate_by(name, by, &operation, NOW).unwrap());
            assert_eq!(
                (with_own.own, without_receipt(with_own.decision)),
                (None, without_receipt(without.decision))
            );
            assert_eq!(with_own.charged, without.charged, "{operation:?}");
        };
        both(CounterOperation::Reserve { terms: Box::new(terms), hits: 2 });
        both(CounterOperation::Settle { id, actual: 1, unknown: UnknownId::Remember });
        for _ in 0..5 {
            both(CounterOperation::Decide(Operation::Charge(1)));
        }
        both(CounterOperation::Decide(Operation::Refund(4)));
        both(CounterOperation::Show);
        let set = |memory: &Memory| {
            let checks = [check(Operation::Charge(2)), Check { key: other, ..check(Operation::Charge(6)) }];
            let refused = |each: &[CheckDecision]| each.iter().any(|decision| !decision.verdict.passes());
            let decisions = memory.apply(&checks, NOW, refused).unwrap();
            let dry_run = memory.dry_run(&checks.into_iter().collect(), NOW, refused);
            assert_eq!((decisions[0].own, dry_run.decisions[0].own), (None, None));
            let each = decisions.iter().chain(&dry_run.decisions).map(|each| without_receipt(each.decision));
            each.chain([without_receipt(dry_run.before[0].peek)]).collect::<Vec<_>>()
        };
        assert_eq!(set(&memory), set(&model));
    }
}

#[test]
fn own_limits_of_slots_are_listed_in_parts_without_those_of_others() {
    let rule = &every_limit(20, SECOND)[0];
    let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2);
    let mut keys: Vec<_> = (0..100).map(|number: u32| key(&number.to_string())).collect();
    for name in &keys {
        let CounterOperation::SetOwnLimit(mut change) = own(rule, None) else { unreachable!() };
        change.record = vec![b'x'; 1_024].into();
        memory.operate(*name, rule, &CounterOperation::SetOwnLimit(change), NOW).unwrap();
    }
    let mut listed = Vec::new();
    for slot in memory.each_slot() {
        let mut after = None;
        loop {
            let list = CounterOperation::ListOwnLimits(after);
            let outcome = memory.operate(slot.key(2, 0), rule, &list, NOW).unwrap();
            let HoldOutcome::OwnLimits(part) = outcome.hold else { panic!("{outcome:?}") };
            assert!((1..=17).contains(&part.limits.len()), "{}", part.limits.len());
            assert!(part.limits.iter().all(|(key, _)| memory.slot(*key) == slot));
            listed.extend(part.limits.iter().map(|(key, _)| *key));
            after = listed.last().copied();
            if !part.has_more {
                break;
            }
        }
    }
    keys.sort_unstable_by_key(|key| (memory.slot(*key), *key));
    assert_eq!(listed, keys);
    let list = CounterOperation::ListOwnLimits(None);
    let not_owned = Memory::new(BYTES, OnFull::Deny).with_slots(2).shared();
    assert!(not_owned.operate(keys[0], rule, &list, NOW).is_err());
}
