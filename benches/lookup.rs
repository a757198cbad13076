//! What finding a rule costs, in few rules and in many.

#![allow(clippy::unwrap_used, reason = "a benchmark without its rules has nothing to measure")]

use std::{fmt::Write, hint::black_box};

use criterion::{Criterion, Throughput};
use tollgate::{descriptor::Entry, rules::Rules};

// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [usize; 3] = [10, 1_000, 100_000];
/// How many rules are looked up in turn. Three stay in the processor's first cache however many others there are.
const ASKED: [usize; 2] = [3, 1_000];

/// A way to write rules, and the entries that find them.
struct Sort {
    name: &'static str,
    rule: fn(usize) -> String,
    entry: fn(usize) -> (String, String),
}

const SORTS: [Sort; 3] = [
    Sort {
        name: "exact",
        rule: |n| format!("key: user, value: u{n:06}"),
        entry: |n| ("user".into(), format!("u{n:06}")),
    },
    Sort {
        name: "key only",
        rule: |n| format!("key: k{n:06}"),
        entry: |n| (format!("k{n:06}"), "any".into()),
    },
    Sort {
        name: "trailing star",
        rule: |n| format!("key: path, value: /p{n:06}/*"),
        entry: |n| ("path".into(), format!("/p{n:06}/any")),
    },
];

fn rules(sort: &Sort, size: usize) -> Rules {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for n in 0..size {
        let rule = (sort.rule)(n);
        writeln!(text, "  - {{{rule}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}").unwrap();
    }
    Rules::parse("bench", &text).unwrap()
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    group.throughput(Throughput::Elements(1));
    for sort in &SORTS {
        let mut visits = Vec::new();
        for size in SIZES {
            let rules = rules(sort, size);
            let domain = rules.domain("d").unwrap();
            for asked in ASKED.into_iter().filter(|asked| *asked <= size) {
                // Spread over all rules.
                let entries: Vec<_> = (0..asked).map(|turn| (sort.entry)(turn * 7_919 % size)).collect();
                for (key, value) in &entries {
                    let entries = [Entry { key, value }];
                    assert!(domain.find(&entries).is_some());
                    visits.push(domain.visits(&entries));
                }
                let mut turn = 0;
                group.bench_function(format!("{}/{size} rules, {asked} asked", sort.name), |bencher| {
                    bencher.iter(|| {
                        turn = (turn + 1) % asked;
                        let (key, value) = &entries[turn];
                        domain.find(black_box(&[Entry { key, value }])).is_some()
                    });
                });
            }
        }
        assert!(
            visits.windows(2).all(|pair| pair[0] == pair[1]),
            "{}: as many steps in any number",
            sort.name
        );
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    lookup(&mut criterion);
    criterion.final_summary();
}
