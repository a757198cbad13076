use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    descriptor::Entry,
    limiter::{Descriptor, Limiter, Modes, embedded::at_once},
    rules::{ActiveRules, Rules},
    store::{Memory, OnExpiry, OnFull, SettleOutcome},
    time::{Clock, SECOND, Timestamp},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const RULES: &str = "\
domain: d
descriptors:
  - {key: classic, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window, count_denied: true}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100, algorithm: token_bucket}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
";

fn limiter(modes: Modes) -> Limiter {
    let active_rules = Arc::new(ActiveRules::of(Rules::parse("test", RULES).unwrap(), NOW));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    Limiter::new(active_rules, memory, Clock::manual(NOW)).with_modes(modes)
}

/// Calls `call` with a request that charges these hits to each key.
fn with_request<R>(each: &[(&str, u64)], call: impl FnOnce(&Request<'_>) -> R) -> R {
    let entries: Vec<[Entry<'_>; 1]> = each.iter().map(|&(key, _)| [Entry { key, value: "a" }]).collect();
    let descriptors = entries.iter().zip(each).map(|(entries, (_, hits))| Descriptor {
        entries,
        operation: Operation::Charge(*hits),
        limit: None,
    });
    call(&Request::new("d", descriptors, None).unwrap())
}

fn reserve(limiter: &Limiter, each: &[(&str, u64)], id: &str) -> Result<bool, HoldError> {
    let id = HoldId::new(id.as_bytes()).unwrap();
    let terms = HoldTerms::new(id, Duration::from_secs(60), OnExpiry::Release).unwrap();
    with_request(each, |request| {
        let (view, connection) = (limiter.view(), Caller::default());
        at_once(view.reserve(request, &terms, &connection)).map(|answer| answer.is_held)
    })
}

fn settle(limiter: &Limiter, each: &[(&str, u64)], id: &str) -> Vec<Option<Settled>> {
    let id = HoldId::new(id.as_bytes()).unwrap();
    with_request(each, |request| {
        let (view, connection) = (limiter.view(), Caller::default());
        at_once(view.settle(request, &id, &connection)).unwrap().settled.to_vec()
    })
}

fn left(limiter: &Limiter, key: &str) -> u64 {
    let entries = [Entry { key, value: "a" }];
    let descriptor = Descriptor { entries: &entries, operation: Operation::Peek, limit: None };
    let request = Request::new("d", [descriptor], None).unwrap();
    limiter.view().decide_here(&request).unwrap().statuses[0].remaining
}

#[test]
fn refused_reservation_changes_no_counter() {
    let limiter = limiter(Modes::default());
    for refused in ["classic", "denied"] {
        assert_eq!(reserve(&limiter, &[("tokens", 10), (refused, 4)], "a"), Ok(false));
        assert_eq!((left(&limiter, "tokens"), left(&limiter, refused)), (100, 3), "{refused}");
    }
}

#[test]
fn reservation_by_descriptor_is_settled_by_descriptor() {
    let limiter = limiter(Modes::default());
    assert_eq!(reserve(&limiter, &[("classic", 1), ("tokens", 80), ("none", 1)], "a"), Ok(true));
    assert_eq!((left(&limiter, "classic"), left(&limiter, "tokens")), (2, 20));
    let settled = settle(&limiter, &[("classic", 1), ("tokens", 30), ("none", 1)], "a");
    assert_eq!((left(&limiter, "classic"), left(&limiter, "tokens")), (2, 70));
    let outcome = |settled: &Option<Settled>| settled.map(|settled| (settled.outcome, settled.remaining));
    let open = SettleOutcome::Open;
    let outcomes: Vec<_> = settled.iter().map(outcome).collect();
    assert_eq!(outcomes, [Some((open, 2)), Some((open, 70)), None]);
}

#[test]
fn repeated_settlement_answers_as_the_first_and_changes_nothing() {
    let limiter = limiter(Modes::default());
    assert_eq!(reserve(&limiter, &[("tokens", 80)], "a"), Ok(true));
    let first = settle(&limiter, &[("tokens", 30)], "a");
    assert_eq!(settle(&limiter, &[("tokens", 5)], "a"), first);
    assert_eq!(reserve(&limiter, &[("tokens", 80)], "a"), Ok(true));
    assert_eq!(left(&limiter, "tokens"), 70);
}

#[test]
fn more_than_reserved_is_charged_as_far_as_the_limit_goes() {
    let limiter = limiter(Modes::default());
    assert_eq!(reserve(&limiter, &[("tokens", 80)], "a"), Ok(true));
    let settled = settle(&limiter, &[("tokens", 130)], "a")[0].unwrap();
    assert_eq!((settled.reserved, settled.uncharged, settled.remaining), (80, 30, 0));
}

#[test]
fn unknown_id_is_charged_and_named() {
    let limiter = limiter(Modes::default());
    let settled = settle(&limiter, &[("tokens", 30)], "never")[0].unwrap();
    assert_eq!((settled.outcome, settled.reserved, settled.remaining), (SettleOutcome::Unknown, 0, 70));
}

#[test]
fn shadow_modes_pass_without_holding_what_they_refuse() {
    let limiter_with_rule = limiter(Modes::default());
    assert_eq!(reserve(&limiter_with_rule, &[("shadow", 4), ("tokens", 10)], "a"), Ok(true));
    assert_eq!((left(&limiter_with_rule, "shadow"), left(&limiter_with_rule, "tokens")), (3, 90));
    let limiter_in_shadow = limiter(Modes { shadow_mode: true, quota_mode: false });
    assert_eq!(reserve(&limiter_in_shadow, &[("tokens", 101)], "a"), Ok(false));
    assert_eq!(left(&limiter_in_shadow, "tokens"), 100);
}

#[test]
fn peek_and_refund_are_no_reservations() {
    let limiter = limiter(Modes::default());
    let entries = [Entry { key: "tokens", value: "a" }];
    for operation in [Operation::Peek, Operation::Refund(1)] {
        let request =
            Request::new("d", [Descriptor { entries: &entries, operation, limit: None }], None).unwrap();
        let (view, connection) = (limiter.view(), Caller::default());
        let error = at_once(view.settle(&request, &HoldId::random(), &connection)).unwrap_err();
        assert_eq!(error, HoldError::NotCharge { descriptor: 0 });
    }
}
