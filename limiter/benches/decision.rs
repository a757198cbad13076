//! The cost of one decision: alone, with stats and response, each of its parts, and the algorithm alone.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput};
use tollgate_counter::{
    algorithm::{AlgorithmName, Limit, Operation},
    descriptor::{Entry, Key, Secret},
    time::{Clock, SECOND, Timestamp},
};
use tollgate_limiter::limiter::{ActiveView, Descriptor, Limiter, Request};
use tollgate_rules::{ActiveRules, Allowance, KeyedDomain, KeyedRules, Rule, Rules};
use tollgate_store::{Check, LimitOrigin, Memory, OnFull, OnRefusal};

// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const KEYS: usize = 1_000_000;
/// Coprime with the number of keys, so that steps of this size visit every key once per round.
const STRIDE: usize = 611_953;
/// A rate that is never used up.
const RATE: &str = "unit: hour, requests_per_unit: 1000000000";

/// The keys of algorithms that need others.
const OWN_KEYS: [(AlgorithmName, &str); 2] = [
    (AlgorithmName::Concurrency, "max_in_flight: 10000"),
    (AlgorithmName::LeakyQueue, "unit: hour, requests_per_unit: 1000000000, burst: 1000000000"),
];

/// Every algorithm, with its text in a rule.
fn algorithms() -> impl Iterator<Item = (&'static str, String)> {
    let named = AlgorithmName::ALL.into_iter().map(|algorithm| {
        let own = OWN_KEYS.iter().find(|(of, _)| *of == algorithm);
        let rate = own.map_or(RATE, |(_, keys)| keys);
        (algorithm.name(), format!("{rate}, algorithm: {}", algorithm.name()))
    });
    std::iter::once(("classic", RATE.to_owned())).chain(named)
}

/// One rule with a counter for each user, high enough that nothing is refused. (A concurrency limit refuses the hot key
/// after 10,000 calls.)
fn rules_of(limit: &str) -> Rules {
    let limit = format!("{{{limit}}}");
    Rules::parse("bench", &format!("domain: d\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n")).unwrap()
}

fn keyed(limit: &str) -> KeyedRules {
    KeyedRules::new(Some(rules_of(limit).into()), Secret::from_bytes([7; 16]))
}

/// The name of a user, written into a buffer that is in the cache, as the bytes of a received request are.
fn user_name(buffer: &mut [u8; 12], user: usize) -> &str {
    *buffer = *b"user-0000000";
    for (place, digit) in buffer[5..].iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[user >> (4 * place) & 15];
    }
    std::str::from_utf8(buffer).unwrap()
}

/// Looks the rule up, hashes the key and decides the check.
fn decide(domain: KeyedDomain<'_>, memory: &Memory, user: &str) -> bool {
    let entries = [Entry::new("user", user)];
    let found = domain.find(&entries).unwrap();
    let limit = limit_of(found.rule);
    let key = found.key(&entries, limit);
    let check = Check {
        key,
        limit,
        operation: Operation::Charge(1),
        on_refusal: OnRefusal::Keep,
        origin: LimitOrigin::Rule,
    };
    memory.apply(&[check], NOW, |_| false).unwrap()[0].verdict.passes()
}

/// The same with stats and response. (The server takes one view for all calls that it reads together, so that is not
/// included.)
fn answer(snapshot: &ActiveView<'_>, user: &str) -> bool {
    let entries = [Entry::new("user", user)];
    let descriptor = Descriptor { entries: &entries, operation: Operation::Charge(1), limit: None };
    snapshot.decide(&Request::new("d", [descriptor], None).unwrap()).unwrap().answer().unwrap().passes
}

fn hot_and_cold(
    criterion: &mut Criterion,
    what: &str,
    algorithm_name: &str,
    memory: &Memory,
    decide: impl Fn(&str) -> bool,
) {
    let mut group = criterion.benchmark_group(what);
    group.throughput(Throughput::Elements(1));
    group.bench_function(format!("{algorithm_name}/hot key"), |bencher| {
        bencher.iter(|| decide(black_box("user-0000000")));
    });
    let mut buffer = [0; 12];
    // The first user may have used up its places by now.
    for user in 1..KEYS {
        assert!(decide(user_name(&mut buffer, user)));
    }
    assert_eq!(memory.stats().live, KEYS);
    let mut next = 0;
    group.bench_function(format!("{algorithm_name}/1M cold keys"), |bencher| {
        bencher.iter(|| {
            next = (next + STRIDE) % KEYS;
            decide(black_box(user_name(&mut buffer, next)))
        });
    });
}

fn whole(criterion: &mut Criterion) {
    for (algorithm_name, algorithm) in algorithms() {
        let memory = || Arc::new(Memory::new(1 << 30, OnFull::Deny));
        let (rules, alone) = (keyed(&algorithm), memory());
        let domain = rules.domain("d").unwrap();
        hot_and_cold(criterion, "decision", algorithm_name, &alone, |user| decide(domain, &alone, user));
        drop(alone);

        let (active_rules, counted) =
            (Arc::new(ActiveRules::from_rules(rules_of(&algorithm), NOW)), memory());
        let limiter = Limiter::new(active_rules, counted.clone(), Clock::manual(NOW));
        let snapshot = limiter.view();
        hot_and_cold(criterion, "answer", algorithm_name, &counted, |user| answer(&snapshot, user));
    }
}

/// The key of a user's counter.
fn key_of(rules: &KeyedRules, user: &str) -> Key {
    let entries = [Entry::new("user", user)];
    let found = rules.domain("d").unwrap().find(&entries).unwrap();
    found.key(&entries, limit_of(found.rule))
}

fn limit_of(rule: &Rule) -> &Limit {
    match &rule.allowance {
        Allowance::Limited(limit) => limit,
        Allowance::Unlimited => unreachable!("every rule here has a limit"),
    }
}

fn parts(criterion: &mut Criterion) {
    let (rules, mut buffer) = (keyed(RATE), [0; 12]);
    let limit = limit_of(rules.rules().unwrap().domain("d").unwrap().rules().next().unwrap());
    let keys: Vec<Key> = (0..KEYS).map(|user| key_of(&rules, user_name(&mut buffer, user))).collect();
    let memory = Memory::new(1 << 30, OnFull::Deny);
    let charge = |key: Key| {
        let check = Check {
            key,
            limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::Keep,
            origin: LimitOrigin::Rule,
        };
        memory.apply(&[check], NOW, |_| false).unwrap()[0].remaining
    };
    let mut group = criterion.benchmark_group("part of a classic decision");
    group.throughput(Throughput::Elements(1));
    group.bench_function("name of the user", |bencher| {
        bencher.iter(|| user_name(&mut buffer, black_box(KEYS / 2)).len());
    });
    group.bench_function("rule", |bencher| {
        bencher.iter(|| {
            let entries = [Entry::new("user", black_box("user-0000000"))];
            rules.domain(black_box("d")).and_then(|domain| domain.find(&entries)).is_some()
        });
    });
    group.bench_function("counter/hot key", |bencher| bencher.iter(|| charge(black_box(keys[0]))));
    keys.iter().for_each(|key| {
        charge(*key);
    });
    let mut next = 0;
    // (The keys are read from memory too: four of them share a cache line.)
    group.bench_function("counter/1M cold keys", |bencher| {
        bencher.iter(|| {
            next = (next + STRIDE) % KEYS;
            charge(keys[next])
        });
    });
}

fn alone(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("algorithm alone");
    group.throughput(Throughput::Elements(1));
    for (name, algorithm) in algorithms() {
        let rules = rules_of(&algorithm);
        let limit = limit_of(rules.domain("d").unwrap().rules().next().unwrap());
        let mut counter = limit.fresh();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                black_box(limit).decide(&mut counter, black_box(NOW), Operation::Charge(1)).remaining
            });
        });
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    alone(&mut criterion);
    parts(&mut criterion);
    whole(&mut criterion);
    criterion.final_summary();
}
