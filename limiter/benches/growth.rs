//! What counters cost as their number grows: bytes and time of each while they are created, a decision on a cold one,
//! the sweep, a snapshot, the transfer of slots, and eviction at the memory limit.
//!
//!     cargo bench -p tollgate-limiter --bench growth -- [--keys N]

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::{fs, hint::black_box, time::Duration};

use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, Span, Window},
    descriptor::Key,
    time::{SECOND, Stopwatch, Timestamp},
};
use tollgate_store::{Check, Epoch, LimitOrigin, Memory, OnFull, OnRefusal, SWEEP_PARTS, SlotData};

// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
/// Cold decisions that are measured.
const DECISIONS: u64 = 4_000_000;
const RUNS: usize = 3;
/// A prime, so that steps of this size visit every key once per round.
const STRIDE: u64 = 611_953;

/// The key with this number. Its halves look random (SplitMix64).
fn key(number: u64) -> Key {
    let half = |state: u64| {
        let mut mixed = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    Key::from_halves(half(2 * number + 1), half(2 * number + 2))
}

fn charge(memory: &Memory, limit: &Limit, number: u64, now: Timestamp) -> bool {
    let (operation, on_refusal) = (Operation::Charge(1), OnRefusal::Keep);
    let check = Check { key: key(number), limit, operation, on_refusal, origin: LimitOrigin::Rule };
    memory.apply_single(&check, now).unwrap().decision.verdict.passes()
}

/// A limit of a window that is never used up. All counters of 16 bytes cost the same.
fn limit() -> Limit {
    let window = Window::Aligned(Span::from_nanos(3_600 * SECOND).unwrap());
    Limit::FixedWindow(FixedWindow { limit: 1_000_000, window, excess: Excess::Refuse })
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The value of the argument `--name N`, or `default`.
fn argument(name: &str, default: u64) -> u64 {
    let value = std::env::args().skip_while(|argument| argument != name).nth(1);
    value.map_or(default, |value| value.replace('_', "").parse().expect("a number"))
}

/// The time that each step of `0..steps` takes: the mean, and the longest.
fn each(steps: u64, mut step: impl FnMut(u64)) -> (Duration, Duration) {
    let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
    for number in 0..steps {
        let stopwatch = Stopwatch::start();
        step(number);
        let elapsed = stopwatch.elapsed();
        all += elapsed;
        longest = longest.max(elapsed);
    }
    (all.div_f64(steps as f64), longest)
}

/// Creates the counters; prints bytes and time of each.
fn fill(memory: &Memory, limit: &Limit, keys: u64) {
    let (before, mut worst) = (resident(), 0.0_f64);
    let stopwatch = Stopwatch::start();
    for number in 0..keys {
        charge(memory, limit, number, NOW);
        if number >= keys / 2 && number % (keys / 128).max(1) == 0 {
            worst = worst.max(memory.stats().bytes as f64 / (number + 1) as f64);
        }
    }
    let nanos = stopwatch.elapsed().as_secs_f64() * 1e9 / keys as f64;
    assert_eq!(memory.stats().live as u64, keys);
    let now = memory.stats().bytes as f64 / keys as f64;
    let resident = (resident() - before) as f64 / keys as f64;
    println!("  bytes of each: {worst:.1} at worst, {now:.1} at the end, {resident:.1} resident");
    println!("  a new counter: {nanos:.0} ns");
}

fn decisions(memory: &Memory, limit: &Limit, keys: u64) {
    let run = |step: u64| {
        let (mut number, stopwatch) = (0, Stopwatch::start());
        for _ in 0..DECISIONS {
            number = (number + step) % keys;
            black_box(charge(memory, limit, number, NOW));
        }
        stopwatch.elapsed().as_secs_f64() * 1e9 / DECISIONS as f64
    };
    let least = |step| (0..RUNS).map(|_| run(step)).fold(f64::INFINITY, f64::min);
    println!("  a decision: {:.0} ns hot, {:.0} ns cold", least(0), least(STRIDE));
}

fn sweep(memory: &Memory) {
    let (mean, longest) = each(SWEEP_PARTS as u64, |part| memory.sweep_part(part as usize, NOW));
    let slots = (memory.slots() / SWEEP_PARTS) as f64;
    println!(
        "  a turn of the sweep: {:.0} us, at most {:.0}, of {slots} slots ({:.1} us each)",
        micros(mean),
        micros(longest),
        micros(mean) / slots
    );
}

/// What a snapshot costs one core, without its file: copies, which are made under the lock of a slot, their encoding,
/// and the start from them.
fn snapshot(memory: &Memory, bytes_max: u64) {
    let (restored, mut bytes, mut longest) = (Memory::new(bytes_max, OnFull::Deny), 0, Duration::ZERO);
    let [mut copies, mut encoding, mut restoring] = [Duration::ZERO; 3];
    for slot in memory.each_slot() {
        let stopwatch = Stopwatch::start();
        let copy = memory.copy(slot, Epoch::default());
        let elapsed = stopwatch.elapsed();
        (copies, longest) = (copies + elapsed, longest.max(elapsed));
        let stopwatch = Stopwatch::start();
        let encoded = copy(NOW).encode(NOW).unwrap();
        encoding += stopwatch.elapsed();
        bytes += encoded.data.len();
        let stopwatch = Stopwatch::start();
        restored.restore(encoded.decode(NOW).unwrap().data, NOW);
        restoring += stopwatch.elapsed();
    }
    let counters = memory.stats().live;
    assert_eq!(restored.stats().live, counters);
    println!(
        "  a snapshot: copies in {:.2} s ({:.0} us of a slot, at most {:.0}), encoded in {:.2} s, restored in {:.2} s, \
         {:.1} bytes of each counter",
        copies.as_secs_f64(),
        micros(copies) / memory.slots() as f64,
        micros(longest),
        encoding.as_secs_f64(),
        restoring.as_secs_f64(),
        bytes as f64 / counters as f64
    );
}

/// Transfers all slots to another store, as a hand-off does.
fn transfer(limit: &Limit, bytes_max: u64, keys: u64) {
    let [from, to] = [(); 2].map(|()| Memory::new(bytes_max, OnFull::Deny).shared());
    from.each_slot().for_each(|slot| from.acquire(slot, SlotData::default(), NOW));
    (0..keys).for_each(|number| _ = black_box(charge(&from, limit, number, NOW)));
    let (mut bytes, mut times) = (0, [Duration::ZERO; 4]);
    for slot in from.each_slot() {
        let mut lap = 0;
        let mut timed = |elapsed| {
            times[lap] += elapsed;
            lap += 1;
        };
        let stopwatch = Stopwatch::start();
        let (data, _) = from.release(slot).unwrap();
        timed(stopwatch.elapsed());
        let stopwatch = Stopwatch::start();
        let encoded = data.encode(NOW);
        drop(data);
        timed(stopwatch.elapsed());
        let stopwatch = Stopwatch::start();
        let decoded = SlotData::decode(&encoded, NOW).unwrap();
        timed(stopwatch.elapsed());
        let stopwatch = Stopwatch::start();
        to.acquire(slot, decoded, NOW);
        timed(stopwatch.elapsed());
        bytes += encoded.len();
    }
    assert_eq!(to.stats().live as u64, keys);
    let [release, encode, decode, acquire] = times.map(|time| time.as_secs_f64());
    println!(
        "  transfer of all slots: {:.2} s (release {release:.2}, encode {encode:.2}, decode {decode:.2}, \
         acquire {acquire:.2}), {:.1} bytes of each counter",
        release + encode + decode + acquire,
        bytes as f64 / keys as f64
    );
}

/// New keys at the memory limit: each evicts another one.
fn evict(limit: &Limit, keys: u64) {
    let memory = Memory::new(keys * 40, OnFull::Deny);
    (0..keys + keys / 2).for_each(|number| _ = black_box(charge(&memory, limit, number, NOW)));
    let (before, new) = (memory.stats(), keys / 4);
    let (mean, longest) = each(new, |number| _ = black_box(charge(&memory, limit, 2 * keys + number, NOW)));
    let after = memory.stats();
    println!(
        "  eviction: {} ns for a new key, at most {:.0} us; {} of {new} keys evicted another one, {} counters kept",
        mean.as_nanos(),
        micros(longest),
        after.evicted_unexpired - before.evicted_unexpired,
        after.live
    );
}

fn main() {
    // `cargo test --benches` only checks that the benchmark compiles and starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let (keys, limit) = (argument("--keys", 1_000_000), limit());
    let bytes_max = keys * 80 + (1 << 24);
    println!("{keys} counters");
    let memory = Memory::new(bytes_max, OnFull::Deny);
    fill(&memory, &limit, keys);
    decisions(&memory, &limit, keys);
    sweep(&memory);
    snapshot(&memory, bytes_max);
    drop(memory);
    transfer(&limit, bytes_max, keys);
    evict(&limit, keys);
}
