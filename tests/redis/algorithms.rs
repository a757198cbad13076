//! The store decides as memory does, under every algorithm.

use std::{num::NonZeroU64, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tollgate_counter::{
    algorithm::{
        Decision, Excess, FixedWindow, Limit, Operation, Rate, SlidingLog, SlidingWindow, Span,
        SteppedBucket, TokenBucket, Verdict, Window, laws,
    },
    time::{Clock, Timestamp},
};
use tollgate_rules::OnOwnerUnavailable;
use tollgate_store::{CheckDecision, Checks, HoldId, HoldTerms, Memory, OnExpiry, OnFull, UnknownId};

use crate::{
    replica::{Replica, check, key, refusal, settings},
    server::Server,
};

const HOUR: u64 = 3_600 * 1_000_000_000;

fn limits() -> Vec<Limit> {
    let nanos = |nanos| NonZeroU64::new(nanos).unwrap();
    let span = Span::from_nanos(HOUR).unwrap();
    let rate = Rate::new(nanos(10), nanos(HOUR));
    let mut all = laws::every_limit(10, HOUR);
    for excess in [Excess::Count, Excess::Overdraft(20)] {
        all.extend([
            Limit::FixedWindow(FixedWindow { limit: 10, window: Window::Aligned(span), excess }),
            Limit::SlidingWindow(SlidingWindow { limit: 10, span, excess }),
            Limit::SlidingLog(SlidingLog { limit: 10, span, sub_window: nanos(1), excess }),
            Limit::SlidingLog(SlidingLog { limit: 10, span, sub_window: nanos(HOUR / 60), excess }),
            Limit::TokenBucket(TokenBucket { rate, burst: 10, excess }),
            Limit::LeakyBucket(TokenBucket { rate, burst: 10, excess }),
            Limit::SteppedBucket(SteppedBucket {
                amount: nanos(2),
                interval: nanos(HOUR / 5),
                burst: 10,
                excess,
            }),
        ]);
    }
    all
}

fn limits_with_penalty() -> Vec<Limit> {
    laws::every_limit(10, HOUR).into_iter().map(|limit| laws::with_penalty(limit, HOUR)).collect()
}

fn without_receipt(decision: Decision) -> (Verdict, u64, std::time::Duration) {
    (decision.verdict, decision.remaining, decision.reset_after)
}

/// A decision without its receipt, and the hits that it has charged.
fn with_charge(decision: &CheckDecision) -> ((Verdict, u64, Duration), u64) {
    (without_receipt(decision.decision), decision.charged)
}

/// A decision as far as it is exact: a replica may refuse by what it knew, before another one charged more.
fn shown(decision: Decision) -> Option<(Verdict, u64, Duration)> {
    Some(without_receipt(decision)).filter(|(verdict, ..)| verdict.passes())
}

#[tokio::test]
async fn store_decides_every_algorithm_as_memory_does() {
    let server = Server::start(&[]);
    let clock = Clock::manual(Timestamp::from_nanos(1_790_000_040 * 1_000_000_000));
    // The second one has to learn what the first one charged.
    let replicas = [
        Replica::ready_with(settings(&[server.url()]), clock.clone()).await,
        Replica::ready_with(settings(&[server.url()]), clock.clone()).await,
    ];
    let mut random = StdRng::seed_from_u64(7);
    for (number, limit) in limits().into_iter().chain(limits_with_penalty()).enumerate() {
        let memory = Memory::new(1 << 24, OnFull::Deny);
        let names = [key(&format!("{number} a")), key(&format!("{number} b"))];
        for step in 0..60 {
            clock.set(clock.now().plus(random.random_range(0..HOUR / 20)));
            let operation = match random.random_range(0..8) {
                0 => Operation::Peek,
                1 => Operation::Refund(random.random_range(0..4)),
                _ => Operation::Charge(random.random_range(0..5)),
            };
            let both = random.random_range(0..3) == 0;
            let checks: Vec<_> = names
                .iter()
                .take(if both { 2 } else { 1 })
                .map(|name| check(*name, &limit, operation))
                .collect();
            let shared = replicas[0].decide_with(&checks, OnOwnerUnavailable::Deny, None).await;
            let refusal = refusal(&checks);
            let set: Checks<'_> = checks.iter().copied().collect();
            let local = memory.apply(&set, clock.now(), |decisions| refusal.is_refused(decisions)).unwrap();
            let expected: Vec<_> = local.iter().map(with_charge).collect();
            let decided: Vec<_> = shared.decisions.iter().map(with_charge).collect();
            assert_eq!(decided, expected, "{limit:?}: {operation:?} in step {step}");
            assert!(!shared.degraded[0]);
        }
        for name in names {
            let peek = replicas[1].check(name, &limit, Operation::Peek).await;
            assert_eq!(peek, memory.peek(name, &limit, clock.now()).peek, "{limit:?}");
        }
    }
}

#[tokio::test]
async fn store_holds_every_algorithm_as_memory_does() {
    assert_holds_as_memory(limits()).await;
}

// Apart, because both wait for the server most of the time.
#[tokio::test]
async fn store_holds_every_penalised_algorithm_as_memory_does() {
    assert_holds_as_memory(limits_with_penalty()).await;
}

async fn assert_holds_as_memory(limits: Vec<Limit>) {
    let server = Server::start(&[]);
    let clock = Clock::manual(Timestamp::from_nanos(1_790_000_040 * 1_000_000_000));
    let replicas = [
        Replica::ready_with(settings(&[server.url()]), clock.clone()).await,
        Replica::ready_with(settings(&[server.url()]), clock.clone()).await,
    ];
    let mut random = StdRng::seed_from_u64(11);
    for (number, limit) in limits.into_iter().enumerate() {
        let memory = Memory::new(1 << 24, OnFull::Deny);
        let names = [key(&format!("{number} a")), key(&format!("{number} b"))];
        for step in 0..40 {
            clock.set(clock.now().plus(random.random_range(0..HOUR / 40)));
            memory.sweep(clock.now());
            let replica = &replicas[random.random_range(0..2)];
            let operation = Operation::Charge(random.random_range(0..5));
            let checks: Checks<'_> = names
                .iter()
                .take(random.random_range(1..3))
                .map(|name| check(*name, &limit, operation))
                .collect();
            let id = format!("{}", random.random_range(0..12));
            let what = format!("{limit:?}: {operation:?} of {id} in step {step}");
            match random.random_range(0..5) {
                0 | 1 => {
                    let ttl = Duration::from_secs(random.random_range(1..600));
                    let on_expiry = [OnExpiry::Release, OnExpiry::Charge][random.random_range(0..2)];
                    let terms = HoldTerms::new(HoldId::new(id.as_bytes()).unwrap(), ttl, on_expiry).unwrap();
                    let shared = replica.reserve(&checks, &terms).await.unwrap();
                    let refused = |decisions: &[CheckDecision]| refusal(&checks).is_refused(decisions);
                    let local = memory.reserve(&checks, &terms, clock.now(), refused).unwrap().unwrap();
                    assert_eq!(shared.is_held, local.is_held, "{what}");
                    let [decided, expected] = [&shared, &local]
                        .map(|reserved| reserved.decisions.iter().map(with_charge).collect::<Vec<_>>());
                    assert_eq!(decided, expected, "{what}");
                }
                2 | 3 => {
                    let local = memory.settle(
                        &checks,
                        &HoldId::new(id.as_bytes()).unwrap(),
                        UnknownId::Remember,
                        clock.now(),
                    );
                    let shared = replica.settle(&checks, &id).await.unwrap();
                    assert_eq!(shared, local.unwrap().into_vec(), "{what}");
                }
                _ => {
                    let refused = |decisions: &[CheckDecision]| refusal(&checks).is_refused(decisions);
                    let local = memory.apply(&checks, clock.now(), refused).unwrap();
                    let shared = replica.decide(&checks).await;
                    let expected: Vec<_> = local.iter().map(|each| shown(each.decision)).collect();
                    let decided: Vec<_> = shared.decisions.iter().map(|each| shown(each.decision)).collect();
                    assert_eq!(decided, expected, "{what}");
                }
            }
            for name in names {
                let peek = replica.check(name, &limit, Operation::Peek).await;
                assert_eq!(shown(peek), shown(memory.peek(name, &limit, clock.now()).peek), "{what}");
            }
        }
    }
}
