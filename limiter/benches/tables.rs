//! The table of counters beside hashbrown (the map of the standard library) and dashmap: bytes a counter, and the time
//! of a lookup that finds its counter in the processor's caches (hot) or in main memory (cold).
//!
//! All three have as many parts as the store has slots, each behind a lock, and use the key as its own hash. The table
//! is compiled from the store's source.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    hint::black_box,
    sync::Mutex,
};

use dashmap::DashMap;
use peak_alloc::PeakAlloc;
use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, Window},
    packed_counter::PackedCounter,
    time::{SECOND, Stopwatch, Timestamp},
};
use tollgate_store::SLOTS;

#[path = "../../store/src/table/hash_table.rs"]
#[allow(dead_code, reason = "the benchmark uses a part of it")]
mod hash_table;

use hash_table::HashTable;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The key of a counter, with its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key(u64, u64);

const COUNTERS: usize = 1_000_000;
const LOOKUPS: usize = 4_000_000;
const RUNS: usize = 5;

/// The key, which is random, as its own hash.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("a key consists of two words")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(32) ^ word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Hash = BuildHasherDefault<KeyHasher>;

trait Map {
    fn new() -> Self;
    fn insert(&self, key: Key, counter: PackedCounter);
    /// Adds a hit and returns the hits of the counter.
    fn charge(&self, key: Key) -> u32;
}

fn slot(key: Key) -> usize {
    key.0 as usize % SLOTS
}

fn hit(counter: &mut PackedCounter) -> u32 {
    let PackedCounter::Window { count, .. } = counter else { unreachable!("all counters are of windows") };
    *count += 1;
    *count
}

/// The counter of a window with one hit.
fn counter() -> PackedCounter {
    let limit = Limit::FixedWindow(FixedWindow {
        limit: 100,
        window: Window::from_nanos(SECOND).expect("a second is a window"),
        excess: Excess::default(),
    });
    let mut counter = limit.fresh();
    let decision = limit.decide(&mut counter, Timestamp::from_nanos(SECOND), Operation::Charge(1));
    PackedCounter::new(&limit, counter, &decision)
}

struct Tables(Vec<Mutex<HashTable>>);

impl Map for Tables {
    fn new() -> Self {
        Self((0..SLOTS).map(|_| Mutex::default()).collect())
    }

    fn insert(&self, key: Key, counter: PackedCounter) {
        let mut table = self.0[slot(key)].lock().unwrap();
        if table.is_full() {
            let buckets = hash_table::next_after(table.bucket_count());
            table.resize(buckets);
        }
        table.put(key.1, counter);
    }

    fn charge(&self, key: Key) -> u32 {
        hit(self.0[slot(key)].lock().unwrap().get_mut(key.1).unwrap())
    }
}

struct Hashbrown(Vec<Mutex<HashMap<Key, PackedCounter, Hash>>>);

impl Map for Hashbrown {
    fn new() -> Self {
        Self((0..SLOTS).map(|_| Mutex::default()).collect())
    }

    fn insert(&self, key: Key, counter: PackedCounter) {
        self.0[slot(key)].lock().unwrap().insert(key, counter);
    }

    fn charge(&self, key: Key) -> u32 {
        hit(self.0[slot(key)].lock().unwrap().get_mut(&key).unwrap())
    }
}

impl Map for DashMap<Key, PackedCounter, Hash> {
    fn new() -> Self {
        Self::with_hasher_and_shard_amount(Hash::default(), SLOTS)
    }

    fn insert(&self, key: Key, counter: PackedCounter) {
        DashMap::insert(self, key, counter);
    }

    fn charge(&self, key: Key) -> u32 {
        hit(&mut self.get_mut(&key).unwrap())
    }
}

/// Numbers that look random (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The least time of a charge over several runs, in nanoseconds.
fn nanos(map: &impl Map, keys: impl Fn(usize) -> Key) -> f64 {
    let run = || {
        let stopwatch = Stopwatch::start();
        for lookup in 0..LOOKUPS {
            black_box(map.charge(keys(lookup)));
        }
        stopwatch.elapsed().as_secs_f64() * SECOND as f64 / LOOKUPS as f64
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn measure<M: Map>(name: &str, keys: &[Key]) {
    let before = PeakAlloc.current_usage();
    let map = M::new();
    let mut bytes: f64 = 0.0;
    for (number, key) in keys.iter().enumerate() {
        map.insert(*key, counter());
        if number + 1 >= COUNTERS / 2 {
            bytes = bytes.max((PeakAlloc.current_usage() - before) as f64 / (number + 1) as f64);
        }
    }
    let (hot, cold) =
        (nanos(&map, |_| keys[COUNTERS / 3]), nanos(&map, |lookup| keys[lookup * 7_919 % COUNTERS]));
    println!("{name:>9}: {bytes:5.1} bytes a counter at worst, {hot:5.1} ns hot, {cold:5.1} ns cold");
}

fn main() {
    let mut state = 1;
    let keys: Vec<Key> = (0..COUNTERS).map(|_| Key(random(&mut state), random(&mut state))).collect();
    measure::<Tables>("own", &keys);
    measure::<Hashbrown>("hashbrown", &keys);
    measure::<DashMap<Key, PackedCounter, Hash>>("dashmap", &keys);
}
