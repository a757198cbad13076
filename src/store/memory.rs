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
    store::{Check, Decisions, OnRefusal},
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
    /// taken back before anybody sees them, if their checks say so; their decisions then tell what is left without
    /// them.
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
                if checks[index].on_refusal == OnRefusal::TakeBack
                    && let Some(receipt) = decision.receipt.take()
                {
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

#[cfg(test)]
mod tests {
    use std::{
        num::NonZeroU64,
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use super::*;
    use crate::{
        algorithm::{Excess, FixedWindow, Limit, Pace, TokenBucket, Verdict, Window},
        descriptor::{Entry, KeyText, Secret},
        time::SECOND,
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    fn key(name: &str) -> Key {
        let mut text = KeyText::new("test");
        text.entry(Entry { key: "name", value: name });
        text.key(&[], &Secret::from_bytes([1; 16]))
    }

    fn window(limit: u64) -> Limit {
        let window = Window::of_nanos(3_600 * SECOND).unwrap();
        Limit::FixedWindow(FixedWindow { limit, window, excess: Excess::Refuse })
    }

    fn bucket(burst: u64) -> Limit {
        let pace = Pace::new(NonZeroU64::new(1).unwrap(), NonZeroU64::new(3_600 * SECOND).unwrap());
        Limit::TokenBucket(TokenBucket { pace, burst, excess: Excess::Refuse })
    }

    fn any_refused(decisions: &[Decision]) -> bool {
        decisions.iter().any(|decision| !decision.verdict.passes())
    }

    fn left(memory: &Memory, key: Key, limit: &Limit) -> u64 {
        memory.apply(&[Check { key, limit, ask: Ask::Look, on_refusal: OnRefusal::TakeBack }], NOW, |_| false)
            [0]
        .remaining
    }

    fn race(callers: u64, call: impl Fn(u64) -> bool + Sync) -> u64 {
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for caller in 0..callers {
                let (passed, call) = (&passed, &call);
                scope.spawn(move || passed.fetch_add(call(caller).into(), Ordering::Relaxed));
            }
        });
        passed.into_inner()
    }

    #[test]
    fn of_racing_callers_exactly_the_limit_pass() {
        for limit in [window(100), bucket(100)] {
            let memory = Memory::new();
            let check = Check {
                key: key("one"),
                limit: &limit,
                ask: Ask::Charge(1),
                on_refusal: OnRefusal::TakeBack,
            };
            let passed = race(256, |_| memory.apply(&[check], NOW, |_| false)[0].verdict.passes());
            assert_eq!(passed, 100);
        }
    }

    #[test]
    fn of_racing_callers_of_several_counters_exactly_the_tightest_limit_pass_and_the_others_lose_nothing() {
        let (memory, group, user) = (Memory::new(), window(100), bucket(30));
        let passed = race(300, |caller| {
            let user_key = key(&format!("user {}", caller % 5));
            let mut checks = [
                Check {
                    key: key("group"),
                    limit: &group,
                    ask: Ask::Charge(1),
                    on_refusal: OnRefusal::TakeBack,
                },
                Check { key: user_key, limit: &user, ask: Ask::Charge(1), on_refusal: OnRefusal::TakeBack },
            ];
            if caller % 2 == 0 {
                checks.reverse();
            }
            !any_refused(&memory.apply(&checks, NOW, any_refused))
        });
        assert_eq!(passed, 100);
        assert_eq!(left(&memory, key("group"), &group), 0);
        let users = (0..5).map(|user_index| 30 - left(&memory, key(&format!("user {user_index}")), &user));
        assert_eq!(users.sum::<u64>(), 100);
    }

    #[test]
    fn a_refused_call_tells_what_is_left_without_it() {
        let (memory, wide, narrow) = (Memory::new(), window(10), window(1));
        let checks = [
            Check { key: key("wide"), limit: &wide, ask: Ask::Charge(1), on_refusal: OnRefusal::TakeBack },
            Check {
                key: key("narrow"),
                limit: &narrow,
                ask: Ask::Charge(1),
                on_refusal: OnRefusal::TakeBack,
            },
        ];
        assert!(!any_refused(&memory.apply(&checks, NOW, any_refused)));
        let refused = memory.apply(&checks, NOW, any_refused);
        assert_eq!((refused[0].verdict, refused[0].remaining), (Verdict::Pass, 9));
        assert_eq!(refused[1].remaining, 0);
        assert_eq!(left(&memory, key("wide"), &wide), 9);
    }

    #[test]
    fn two_checks_of_one_counter_charge_it_twice_or_not_at_all() {
        let (memory, limit) = (Memory::new(), window(3));
        let twice =
            [Check { key: key("one"), limit: &limit, ask: Ask::Charge(1), on_refusal: OnRefusal::TakeBack };
                2];
        assert!(!any_refused(&memory.apply(&twice, NOW, any_refused)));
        assert!(any_refused(&memory.apply(&twice, NOW, any_refused)));
        assert_eq!(left(&memory, key("one"), &limit), 1);
    }

    #[test]
    fn a_call_may_involve_every_lock_there_is() {
        let (memory, limit) = (Memory::new(), window(1));
        let checks: Vec<_> = (0..10_000)
            .map(|index| Check {
                key: key(&index.to_string()),
                limit: &limit,
                ask: Ask::Charge(1),
                on_refusal: OnRefusal::TakeBack,
            })
            .collect();
        assert!(!any_refused(&memory.apply(&checks, NOW, any_refused)));
        assert!(memory.apply(&checks, NOW, any_refused).iter().all(|decision| !decision.verdict.passes()));
    }

    #[test]
    fn a_look_keeps_no_counter() {
        let (memory, limit) = (Memory::new(), window(1));
        assert_eq!(left(&memory, key("one"), &limit), 1);
        assert!(memory.is_empty());
    }

    #[test]
    fn a_sweep_forgets_what_is_idle_and_nothing_else() {
        let (memory, window, bucket) = (Memory::new(), window(1), bucket(4));
        for index in 0..1_000 {
            let key = key(&index.to_string());
            let (limit, hits) = if index % 2 == 0 { (&window, 1) } else { (&bucket, 4) };
            memory.apply(
                &[Check { key, limit, ask: Ask::Charge(hits), on_refusal: OnRefusal::TakeBack }],
                NOW,
                |_| false,
            );
        }
        let sweep = |hours: u64| {
            (0..PARTS).for_each(|part| memory.sweep_part(part, NOW.plus(hours * 3_600 * SECOND)))
        };
        sweep(0);
        assert_eq!(memory.len(), 1_000);
        sweep(1);
        assert_eq!(memory.len(), 500, "buckets take four hours to fill");
        sweep(4);
        assert!(memory.is_empty());
        assert!(
            memory.parts.iter().map(DashMap::capacity).sum::<usize>() < 100,
            "and their memory is given back"
        );
    }
}
