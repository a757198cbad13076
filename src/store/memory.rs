//! Counters in the memory of this process.

use std::{
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    time::Duration,
};

use dashmap::{DashMap, SharedValue};
use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Counter, Decision},
    descriptor::Key,
    store::{Check, Decisions},
    time::{Clock, Timestamp},
};

/// Parts of the table. A sweep looks at one part at a time.
const PARTS: usize = 64;
/// Locks in each part, so that a sweep holds up few callers, and those briefly.
const SHARDS: usize = 16;
/// A full round of sweeps takes about this long.
const SWEEP_ROUND: Duration = Duration::from_secs(10);

/// All counters of this process, each under the lock of its shard.
#[derive(Debug)]
pub struct Memory {
    parts: Box<[Part]>,
}

type Part = DashMap<Key, Held, BuildHasherDefault<KeyHasher>>;

#[derive(Debug)]
struct Held {
    counter: Counter,
    /// From then on, forgetting the counter changes no answer.
    idle_at: Timestamp,
}

/// Where a key's lock is. Locks are always taken in this order, so no two callers wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    part: usize,
    shard: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// No counters yet.
    pub fn new() -> Self {
        let part = || DashMap::with_hasher_and_shard_amount(BuildHasherDefault::default(), SHARDS);
        Self { parts: (0..PARTS).map(|_| part()).collect() }
    }

    /// How many counters are kept, idle ones that were not swept yet included.
    pub fn len(&self) -> usize {
        self.parts.iter().map(DashMap::len).sum()
    }

    /// Whether no counter is kept.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(DashMap::is_empty)
    }

    /// Answers all checks of one call as one: nobody else's check falls between them.
    ///
    /// Where `refused` says that the call as a whole is refused for what was decided, the charges that passed are
    /// taken back before anybody sees them; their decisions then tell what is left without them.
    pub fn apply(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl FnOnce(&[Decision]) -> bool,
    ) -> Decisions {
        let places: SmallVec<[Place; 2]> = checks.iter().map(|check| self.place(check.key)).collect();
        let mut locked = places.clone();
        locked.sort_unstable();
        locked.dedup();
        // Each lock once, and in order.
        let mut shards: SmallVec<[_; 2]> =
            locked.iter().map(|place| self.parts[place.part].shards()[place.shard].write()).collect();

        let mut each = |index: usize, with: &mut dyn FnMut(&Check<'_>, &mut Counter)| {
            let (check, place) = (&checks[index], places[index]);
            // Every place is among the locked ones.
            let shard = &mut shards[locked.partition_point(|other| *other < place)];
            let hash = check.key.low();
            if let Some((_, held)) = shard.get_mut(hash, |(key, _)| *key == check.key) {
                let held = held.get_mut();
                with(check, &mut held.counter);
                held.idle_at = check.limit.idle_at(&held.counter);
                return;
            }
            let mut counter = check.limit.fresh();
            with(check, &mut counter);
            let idle_at = check.limit.idle_at(&counter);
            if now < idle_at {
                let held = SharedValue::new(Held { counter, idle_at });
                shard.insert(hash, (check.key, held), |(key, _)| key.low());
            }
        };

        let mut decisions = Decisions::new();
        for index in 0..checks.len() {
            each(index, &mut |check, counter| decisions.push(check.limit.decide(counter, now, check.ask)));
        }
        if 1 < checks.len() && refused(&decisions) {
            // Newest first, so that two charges to one counter come off in turn.
            for (index, decision) in decisions.iter_mut().enumerate().rev() {
                if let Some(receipt) = decision.receipt.take() {
                    each(index, &mut |check, counter| check.limit.undo(counter, receipt, now));
                }
            }
            for (index, decision) in decisions.iter_mut().enumerate() {
                each(index, &mut |check, counter| {
                    if decision.verdict.passes() {
                        let look = check.limit.decide(counter, now, Ask::Look);
                        (decision.remaining, decision.reset_after) = (look.remaining, look.reset_after);
                    }
                });
            }
        }
        decisions
    }

    /// Forgets what is idle in one of the table's parts, and gives memory back that it no longer needs.
    fn sweep_part(&self, part: usize, now: Timestamp) {
        let part = &self.parts[part];
        part.retain(|_, held| now < held.idle_at);
        if part.len() < part.capacity() / 4 {
            part.shrink_to_fit();
        }
    }

    fn place(&self, key: Key) -> Place {
        // The parts go by the upper half of the key, shards and slots within one by the lower half.
        let part = (key.high() >> (u64::BITS - PARTS.ilog2())) as usize;
        let shard = self.parts[part].determine_shard(key.low() as usize);
        Place { part, shard }
    }
}

/// Forgets idle counters, a little at a time, for as long as it is polled.
pub async fn sweep(memory: Arc<Memory>, clock: Clock) {
    let pause = SWEEP_ROUND / PARTS as u32;
    for part in (0..PARTS).cycle() {
        tokio::time::sleep(pause).await;
        memory.sweep_part(part, clock.now());
    }
}

/// Keys are hashes already.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Never used: a [`Key`] hashes as one number.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}
