//! The cost of a rule lookup among few and among many rules.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::{
    fmt::Write,
    hint::black_box,
    net::{Ipv4Addr, Ipv6Addr},
};

use criterion::{Criterion, Throughput};
use tollgate_counter::descriptor::{Entry, Secret};
use tollgate_rules::{KeyedRules, Rules};

// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [usize; 3] = [10, 1_000, 100_000];
/// How many rules are looked up in turn. Three stay in the first-level cache whatever the number of rules.
const LOOKED_UP: [usize; 2] = [3, 1_000];

/// A form of rule, and the entries that match it.
struct RuleForm {
    name: &'static str,
    rule: fn(usize) -> String,
    entry: fn(usize) -> (String, String),
}

const FORMS: [RuleForm; 5] = [
    RuleForm {
        name: "exact",
        rule: |n| format!("key: user, value: u{n:06}"),
        entry: |n| ("user".into(), format!("u{n:06}")),
    },
    RuleForm {
        name: "key only",
        rule: |n| format!("key: k{n:06}"),
        entry: |n| (format!("k{n:06}"), "any".into()),
    },
    RuleForm {
        name: "trailing star",
        rule: |n| format!("key: path, value: /p{n:06}/*"),
        entry: |n| ("path".into(), format!("/p{n:06}/any")),
    },
    RuleForm {
        name: "IPv4 network",
        rule: |n| {
            // Every other network is a single address, so both prefix lengths are tried.
            let length = if n % 2 == 0 { 24 } else { 32 };
            format!("key: ip, match: cidr, value: {}/{length}", ipv4(n, 0))
        },
        entry: |n| ("ip".into(), ipv4(n - n % 2, 7)),
    },
    RuleForm {
        name: "IPv6 network",
        rule: |n| format!("key: ip, match: cidr, value: '{}/64'", ipv6(n, 0)),
        entry: |n| ("ip".into(), ipv6(n, 7)),
    },
];

/// An address of the `n`th network.
fn ipv4(n: usize, host: u32) -> String {
    Ipv4Addr::from_bits(0x0a00_0000 + ((n as u32) << 8) + host).to_string()
}

fn ipv6(n: usize, host: u128) -> String {
    Ipv6Addr::from_bits((0x2001_0db8 << 96) + ((n as u128) << 64) + host).to_string()
}

fn rules(form: &RuleForm, size: usize) -> KeyedRules {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for n in 0..size {
        let rule = (form.rule)(n);
        writeln!(text, "  - {{{rule}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}").unwrap();
    }
    KeyedRules::new(Some(Rules::parse("bench", &text).unwrap().into()), Secret::from_bytes([7; 16]))
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    group.throughput(Throughput::Elements(1));
    for form in &FORMS {
        let mut visits = Vec::new();
        for size in SIZES {
            let rules = rules(form, size);
            let domain = rules.domain("d").unwrap();
            for looked_up in LOOKED_UP.into_iter().filter(|looked_up| *looked_up <= size) {
                // The looked-up rules are spread over all rules.
                let entries: Vec<_> = (0..looked_up).map(|turn| (form.entry)(turn * 7_919 % size)).collect();
                for (key, value) in &entries {
                    let entries = [Entry::new(key, value)];
                    assert!(domain.find(&entries).is_some());
                    visits.push(domain.visits(&entries));
                }
                let mut turn = 0;
                group.bench_function(format!("{}/{size} rules, {looked_up} asked", form.name), |bencher| {
                    bencher.iter(|| {
                        turn = (turn + 1) % looked_up;
                        let (key, value) = &entries[turn];
                        domain.find(black_box(&[Entry::new(key, value)])).is_some()
                    });
                });
            }
        }
        assert!(
            visits.windows(2).all(|pair| pair[0] == pair[1]),
            "{}: the number of steps depends on the number of rules",
            form.name
        );
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    lookup(&mut criterion);
    criterion.final_summary();
}
