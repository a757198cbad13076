//! The limiter inside a program beside other libraries: time of one decision for one key, for a million keys, and for a
//! million keys on two threads, and bytes per key. All have the same rate and burst (GCRA, nothing is refused), keys of
//! the same length that the caller owns, and read the clock for each decision. With the feature `tsc` our clock is the
//! counter of the processor, as governor's always is.
//!
//!     cargo bench -p tollgate-limiter --bench embedded --features tsc
//!     limiter/benches/count-embedded    # instructions and cache misses of one decision, by valgrind; also with limits of
//!                                       # keys, of which a store has named each, in the cache

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]
#![allow(clippy::ptr_arg, reason = "one of the libraries takes an owned key")]
#![allow(clippy::disallowed_methods, reason = "one of the libraries is told the time")]

use std::{
    hint::black_box,
    num::NonZeroU32,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use peak_alloc::PeakAlloc;
use throttlecrab::PeriodicStore;
use tollgate_counter::time::Stopwatch;
use tollgate_limiter::limiter::Limiter;
#[cfg(feature = "limits")]
use {
    std::{
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    },
    tollgate_limiter::limiter::{LimitCache, LimitCacheSettings, LookupAnswer},
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const KEYS: usize = 1_000_000;
/// Coprime with the number of keys, so that steps of this size visit every key once per round.
const STRIDE: usize = 611_953;
/// Slow, so that no counter is idle again during the measurement.
const PER_SECOND: u32 = 1;
/// High enough that nothing is refused.
const BURST: u32 = 1_000_000_000;

/// A library under test.
trait Library: Sync {
    const NAME: &str;

    fn new() -> Self;
    /// Decides keys in one thread.
    fn caller(&self) -> impl FnMut(&String) -> bool;

    /// Decides each key once, so that it is known.
    fn decide_each(&self, keys: &[String]) {
        assert!(keys.iter().all(self.caller()));
    }
}

struct Ours(Limiter);

/// The same by a rule whose keys may have limits of their own.
struct OursWithOwn(Limiter);

/// The same by a rule whose keys look up their limits, all of which are cached.
#[cfg(feature = "limits")]
struct OursCached(Limiter, Arc<LimitCache>);

/// The same with a descriptor that is prepared for any key.
struct OursPrepared(Ours);

/// The same with a descriptor that is prepared for one key.
struct OursPreparedKey(Ours);

/// A limiter with one rule, which has `more`.
fn limiter(more: &str) -> Limiter {
    let limit = format!(
        "{{unit: second, requests_per_unit: {PER_SECOND}, burst: {BURST}, algorithm: token_bucket{more}}}"
    );
    let rules = format!("domain: d\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n");
    Limiter::from_yaml(&rules).unwrap()
}

impl Library for Ours {
    const NAME: &str = "tollgate";

    fn new() -> Self {
        Self(limiter(""))
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        |key| self.0.check("d", &[("user", key)], 1).unwrap().passes
    }
}

impl Library for OursWithOwn {
    const NAME: &str = "tollgate, a rule with `own`";

    fn new() -> Self {
        Self(limiter(", own: {burst: {max: 2000000000}}"))
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        |key| self.0.check("d", &[("user", key)], 1).unwrap().passes
    }
}

#[cfg(feature = "limits")]
impl Library for OursCached {
    const NAME: &str = "tollgate, a cached limit";

    fn new() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        let settings =
            LimitCacheSettings { entries: 4 * KEYS, ttl: day, absent_ttl: day, wait: Duration::ZERO };
        let limiter = limiter(", own: {from: source}");
        let cache = Arc::new(LimitCache::new(settings, limiter.view().now()));
        Self(limiter.with_limits(Some(cache.clone())), cache)
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        |key| self.0.check("d", &[("user", key)], 1).unwrap().passes
    }

    fn decide_each(&self, keys: &[String]) {
        let json = format!("{{\"requests_per_unit\": {PER_SECOND}, \"burst\": {BURST}}}");
        let now = self.0.view().now();
        for some in keys.chunks(1_000) {
            assert!(some.iter().all(self.caller()));
            let taken = pin!(self.1.next_lookups(some.len()));
            let Poll::Ready(lookups) = taken.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("they are queued")
            };
            assert_eq!(lookups.len(), some.len());
            for lookup in lookups {
                let found = LookupAnswer::Value { json: json.clone().into_bytes(), etag: None };
                self.1.answer(lookup, found, now).unwrap();
            }
        }
        assert_eq!(self.1.len(), keys.len());
    }
}

impl Library for OursPrepared {
    const NAME: &str = "tollgate, prepared";

    fn new() -> Self {
        Self(Ours::new())
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        let mut user = self.0.0.prepare("d", &[], ["user"]);
        move |key| user.check([key], 1).unwrap().passes
    }
}

impl Library for OursPreparedKey {
    const NAME: &str = "tollgate, prepared for one key";

    fn new() -> Self {
        Self(Ours::new())
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        let [only] = &keys(1)[..] else { unreachable!("one key") };
        let mut only = self.0.0.prepare("d", &[("user", only)], []);
        move |_| only.check([], 1).unwrap().passes
    }
}

impl Library for DefaultKeyedRateLimiter<String> {
    const NAME: &str = "governor, keyed";

    fn new() -> Self {
        let number = |number| NonZeroU32::new(number).unwrap();
        RateLimiter::keyed(Quota::per_second(number(PER_SECOND)).allow_burst(number(BURST)))
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        |key| self.check_key(key).is_ok()
    }
}

/// It decides one call at a time.
struct Throttlecrab(Mutex<throttlecrab::RateLimiter<PeriodicStore>>);

impl Library for Throttlecrab {
    const NAME: &str = "throttlecrab, behind a mutex";

    fn new() -> Self {
        let store = PeriodicStore::builder().capacity(KEYS).build();
        Self(Mutex::new(throttlecrab::RateLimiter::new(store)))
    }

    fn caller(&self) -> impl FnMut(&String) -> bool {
        let (burst, rate) = (i64::from(BURST), i64::from(PER_SECOND));
        move |key| self.0.lock().unwrap().rate_limit(key, burst, rate, 1, 1, SystemTime::now()).unwrap().0
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("user-{number:07x}")).collect()
}

/// Measures `decisions` of each library, which holds these keys.
fn measure<L: Library>(group: &mut BenchmarkGroup<'_, WallTime>, keys: &[String], threads: usize) {
    let library = L::new();
    library.decide_each(keys);
    let next = AtomicUsize::new(0);
    group.bench_function(L::NAME, |bencher| {
        bencher.iter_custom(|decisions| {
            let each = decisions.div_ceil(threads as u64);
            let run = || {
                let mut index = next.fetch_add(KEYS / 2 + 1, Ordering::Relaxed) % keys.len();
                let mut passes = library.caller();
                for _ in 0..each {
                    black_box(passes(&keys[index]));
                    index = (index + STRIDE) % keys.len();
                }
            };
            let watch = Stopwatch::start();
            thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
            watch.elapsed()
        });
    });
}

/// Makes so many decisions; `count-embedded` compares two numbers of them.
fn decide<L: Library>(keys: &[String], decisions: usize) {
    let library = L::new();
    library.decide_each(keys);
    let mut passes = library.caller();
    for number in 0..decisions {
        black_box(passes(&keys[number * STRIDE % keys.len()]));
    }
}

fn decide_by_name(library: &str, keys: &[String], decisions: usize) {
    match library {
        "check" => decide::<Ours>(keys, decisions),
        "check, own" => decide::<OursWithOwn>(keys, decisions),
        #[cfg(feature = "limits")]
        "check, cached limit" => decide::<OursCached>(keys, decisions),
        "prepared" => decide::<OursPrepared>(keys, decisions),
        "prepared for one key" => decide::<OursPreparedKey>(keys, decisions),
        "governor" => decide::<DefaultKeyedRateLimiter<String>>(keys, decisions),
        "throttlecrab" => decide::<Throttlecrab>(keys, decisions),
        other => panic!("no library {other}"),
    }
}

fn bytes_per_key<L: Library>(keys: &[String]) {
    let before = ALLOCATOR.current_usage();
    let library = L::new();
    library.decide_each(keys);
    let bytes = (ALLOCATOR.current_usage() - before) as f64 / keys.len() as f64;
    println!("{}: {bytes:.1} bytes per key", L::NAME);
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, count, library, keys_count, decisions, ..] = &arguments[..]
        && count == "--count"
    {
        return decide_by_name(library, &keys(keys_count.parse().unwrap()), decisions.parse().unwrap());
    }
    let (one, many) = (keys(1), keys(KEYS));
    let mut criterion = Criterion::default()
        .measurement_time(Duration::from_secs(3))
        .warm_up_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    for (name, keys, threads) in
        [("one key", &one, 1), ("a million keys", &many, 1), ("a million keys, two threads", &many, 2)]
    {
        let mut group = criterion.benchmark_group(name);
        measure::<Ours>(&mut group, keys, threads);
        measure::<OursPrepared>(&mut group, keys, threads);
        if keys.len() == 1 {
            measure::<OursPreparedKey>(&mut group, keys, threads);
        }
        measure::<DefaultKeyedRateLimiter<String>>(&mut group, keys, threads);
        measure::<Throttlecrab>(&mut group, keys, threads);
    }
    // `cargo test --benches` only checks that the benchmark compiles and starts.
    if arguments.iter().any(|argument| argument == "--bench") {
        bytes_per_key::<Ours>(&many);
        bytes_per_key::<DefaultKeyedRateLimiter<String>>(&many);
        bytes_per_key::<Throttlecrab>(&many);
    }
    criterion.final_summary();
}
