//! What one decision costs: the whole path below the wire, and the algorithm alone.

#![allow(clippy::unwrap_used, reason = "a benchmark without its rules has nothing to measure")]

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput};
use tollgate::{
    algorithm::{Ask, Limit},
    descriptor::{Entry, Secret},
    limiter::{Descriptor, Limiter, Request},
    rules::{Allowance, Book, Rules},
    store::{Memory, OnFull},
    time::{Clock, SECOND, Timestamp},
};

// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const KEYS: usize = 1_000_000;
/// Coprime with the number of keys, so that steps of it visit each once before any twice.
const STRIDE: usize = 611_953;

const ALGORITHMS: [(&str, &str); 3] = [
    ("classic", ""),
    ("fixed_window", ", algorithm: fixed_window"),
    ("token_bucket", ", algorithm: token_bucket"),
];

/// One rule with a counter for each user, high enough that nothing is refused.
fn rules(algorithm: &str) -> Rules {
    let limit = format!("{{unit: hour, requests_per_unit: 1000000000{algorithm}}}");
    Rules::parse("bench", &format!("domain: d\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n")).unwrap()
}

fn charge(limiter: &Limiter, user: &str) -> bool {
    let entries = [Entry { key: "user", value: user }];
    let descriptors = [Descriptor { entries: &entries, ask: Ask::Charge(1), limit: None }];
    let snapshot = limiter.snapshot();
    snapshot.decide(&Request { domain: "d", descriptors: &descriptors, patience: None }).unwrap().passes
}

fn whole(criterion: &mut Criterion) {
    let users: Vec<String> = (0..KEYS).map(|user| format!("user-{user:07}")).collect();
    let mut group = criterion.benchmark_group("decision");
    group.throughput(Throughput::Elements(1));
    for (name, algorithm) in ALGORITHMS {
        let book = Arc::new(Book::of(rules(algorithm), NOW));
        let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny));
        let limiter = Limiter::new(book, memory.clone(), Clock::manual(NOW), Secret::from_bytes([7; 16]));
        group.bench_function(format!("{name}/hot key"), |bencher| {
            bencher.iter(|| charge(&limiter, black_box("user-0000000")));
        });
        for user in &users {
            charge(&limiter, user);
        }
        assert_eq!(memory.figures().live, KEYS);
        let mut next = 0;
        group.bench_function(format!("{name}/1M cold keys"), |bencher| {
            bencher.iter(|| {
                next = (next + STRIDE) % KEYS;
                charge(&limiter, black_box(&users[next]))
            });
        });
    }
}

fn alone(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("algorithm alone");
    group.throughput(Throughput::Elements(1));
    for (name, algorithm) in ALGORITHMS {
        let rules = rules(algorithm);
        let rule = rules.domain("d").unwrap().rules().next().unwrap();
        let limit: &Limit = match &rule.allowance {
            Allowance::Limited(limit) => limit,
            Allowance::Unlimited => continue,
        };
        let mut counter = limit.fresh();
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(limit).decide(&mut counter, black_box(NOW), Ask::Charge(1)).remaining);
        });
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    alone(&mut criterion);
    whole(&mut criterion);
    criterion.final_summary();
}
