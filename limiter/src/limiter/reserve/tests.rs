use std::{sync::Arc, time::Duration};

use super::*;
use tollgate_counter::{
    algorithm::Operation,
    descriptor::Entry,
    time::{Clock, SECOND, Timestamp},
};
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{HoldId, Memory, OnExpiry, OnFull};

use crate::limiter::{Limiter, request::Descriptor};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const RULES: &str = "\
domain: d
descriptors:
  - {key: classic, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window, count_denied: true}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100, algorithm: token_bucket}}
";

fn limiter() -> Limiter {
    let active_rules = Arc::new(ActiveRules::from_rules(Rules::parse("test", RULES).unwrap(), NOW));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    Limiter::new(active_rules, memory, Clock::manual(NOW))
}

fn reserve(limiter: &Limiter, each: &[(&str, u64)]) -> Result<bool, HoldError> {
    let entries: Vec<[Entry<'_>; 1]> = each.iter().map(|&(key, _)| [Entry::new(key, "a")]).collect();
    let descriptors = entries.iter().zip(each).map(|(entries, (_, hits))| Descriptor {
        entries,
        operation: Operation::Charge(*hits),
        limit: None,
    });
    let request = Request::new("d", descriptors, None).unwrap();
    let terms = HoldTerms::new(HoldId::random(), Duration::from_secs(60), OnExpiry::Release).unwrap();
    let view = limiter.view();
    let held = view.hold(&request, HoldRequest::Reserve(terms), &Caller::default())?;
    Ok(held.answer()?.is_held)
}

fn left(limiter: &Limiter, key: &str) -> u64 {
    let entries = [Entry::new(key, "a")];
    let descriptor = Descriptor { entries: &entries, operation: Operation::Peek, limit: None };
    let request = Request::new("d", [descriptor], None).unwrap();
    limiter.view().decide(&request).unwrap().answer().unwrap().statuses[0].remaining
}

#[test]
fn refused_reservation_changes_no_counter() {
    let limiter = limiter();
    for refused in ["classic", "denied"] {
        assert_eq!(reserve(&limiter, &[("tokens", 10), (refused, 4)]), Ok(false));
        assert_eq!((left(&limiter, "tokens"), left(&limiter, refused)), (100, 3), "{refused}");
    }
}

#[test]
fn peek_and_refund_are_no_reservations() {
    let limiter = limiter();
    let entries = [Entry::new("tokens", "a")];
    for operation in [Operation::Peek, Operation::Refund(1)] {
        let request =
            Request::new("d", [Descriptor { entries: &entries, operation, limit: None }], None).unwrap();
        let view = limiter.view();
        let settle = HoldRequest::Settle(HoldId::random());
        let error = view.hold(&request, settle, &Caller::default()).unwrap_err();
        assert_eq!(error, HoldError::NotCharge { descriptor: 0 });
    }
}
