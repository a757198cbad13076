//! A flood of ten million new keys against a small memory budget, and the memory that a million counters take.
//!
//! Prints counts, not times: they are the same on every machine. Exits with an error if a bound is exceeded.
//!
//!     cargo bench -p tollgate-limiter --bench flood -- [--keys N]

use std::num::NonZeroU64;

use peak_alloc::PeakAlloc;
use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, Rate, SlidingWindow, Span, TokenBucket, Window},
    descriptor::{Entry, Key, KeyText, Secret},
    time::Timestamp,
};
use tollgate_store::{Check, LimitOrigin, Memory, OnFull, OnRefusal};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const SECOND: u64 = 1_000_000_000;
const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const BUDGET: u64 = 64 * 1024 * 1024;

fn key(limit: &Limit, value: u64) -> Key {
    let value = value.to_string();
    let mut text = KeyText::new("flood");
    text.entry(Entry::new("client", &value));
    text.key(&limit.kind().bytes(), &Secret::from_bytes([7; 16]))
}

fn passes(memory: &Memory, limit: &Limit, value: u64) -> bool {
    let check = Check {
        key: key(limit, value),
        limit,
        operation: Operation::Charge(1),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    };
    memory.apply(&[check], NOW, |_| false).expect("the store owns all slots")[0].verdict.passes()
}

fn limits() -> [(&'static str, Limit); 3] {
    let span = Span::from_nanos(3_600 * SECOND).expect("an hour is a span");
    let hour = NonZeroU64::new(span.nanos()).expect("an hour is not 0");
    let pace = Rate::new(NonZeroU64::MIN, hour);
    let excess = Excess::Refuse;
    [
        ("fixed_window", Limit::FixedWindow(FixedWindow { limit: 3, window: Window::Aligned(span), excess })),
        ("sliding_window", Limit::SlidingWindow(SlidingWindow { limit: 3, span, excess })),
        ("token_bucket", Limit::TokenBucket(TokenBucket { rate: pace, burst: 3, excess })),
    ]
}

fn main() {
    // `cargo test --benches` only checks that the benchmark compiles and starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let keys = argument("--keys", 10_000_000);
    println!(
        "| limit | allocated bytes a counter, 1M, worst | after {keys} keys: allocated of a budget of {} MiB | by its own count | counters kept | refused for want of memory |",
        BUDGET >> 20
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, limit) in limits() {
        let worst = bytes_a_counter(&limit);
        assert!(worst <= 40.0, "{worst} bytes a counter");
        let before = PeakAlloc.current_usage();
        let memory = Memory::new(BUDGET, OnFull::Deny);
        let exhausted = u64::MAX;
        while passes(&memory, &limit, exhausted) {}
        for value in 0..keys {
            passes(&memory, &limit, value);
        }
        let (figures, allocated) = (memory.stats(), PeakAlloc.current_usage() - before);
        assert!(!passes(&memory, &limit, exhausted), "a refused key stays refused");
        assert!(figures.bytes as u64 <= BUDGET);
        assert!((figures.live as u64) < keys, "{keys} keys fit: nothing was evicted");
        let share = |bytes: usize| 100.0 * bytes as f64 / BUDGET as f64;
        let (allocated, own) = (share(allocated), share(figures.bytes));
        assert!((allocated - own).abs() < 2.0, "{own} % by its own count, {allocated} % by the allocator's");
        println!(
            "| {name} | {worst:.1} | {allocated:.0} % | {own:.0} % | {} | {} |",
            figures.live, figures.refused_full
        );
    }
}

/// The value of the argument `--name N`, or `default`.
fn argument(name: &str, default: u64) -> u64 {
    let value = std::env::args().skip_while(|argument| argument != name).nth(1);
    value.map_or(default, |value| value.replace('_', "").parse().expect("a number"))
}

/// The most allocated bytes per counter while a million of them are created.
fn bytes_a_counter(limit: &Limit) -> f64 {
    let before = PeakAlloc.current_usage();
    let memory = Memory::new(1 << 30, OnFull::Deny);
    let mut worst = 0.0_f64;
    for value in 0..1_000_000_u64 {
        passes(&memory, limit, value);
        if value >= 500_000 && value % 1_000 == 0 {
            worst = worst.max((PeakAlloc.current_usage() - before) as f64 / (value + 1) as f64);
        }
    }
    worst
}
