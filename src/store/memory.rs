//! Counters in the memory of this process.

use std::{
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    time::Duration,
};

use dashmap::DashMap;
use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Counter, Decision, Verdict},
    descriptor::Key,
    store::{
        Check, Decisions, OnFull, OnRefusal,
        budget::Budget,
        cell::Cell,
        table::{self, Means, Rest, Tally},
    },
    time::{Clock, Timestamp},
};

mod by_hand;

pub use by_hand::{Kept, Rehearsal, Replaced};

/// Parts of the table. A sweep looks at one part at a time.
const PARTS: usize = 64;
/// Locks in each part, so that a sweep holds up few callers, and those briefly.
const SHARDS: usize = 16;
/// A full round of sweeps takes about this long.
const SWEEP_ROUND: Duration = Duration::from_secs(10);

/// All counters of this process, each under the lock of its shard, within a budget of bytes.
#[derive(Debug)]
pub struct Memory {
    parts: Box<[Part]>,
    // One for each shard.
    rests: Box<[Rest]>,
    means: Means,
    on_full: OnFull,
    refused_full: Tally,
}

type Part = DashMap<Key, Cell, BuildHasherDefault<KeyHasher>>;

/// What is done to the counter of a check.
type Deed<'d> = dyn FnMut(&Check<'_>, &mut Counter) -> Decision + 'd;

/// What there is, and what became of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Counters that are kept, idle ones that were not swept yet included.
    pub live: usize,
    /// The bytes that they take.
    pub bytes: usize,
    /// Counters forgotten because they were idle, since the start.
    pub evicted_idle: u64,
    /// Counters forgotten for want of memory although they were not idle.
    pub evicted_unexpired: u64,
    /// Charges to keys for which there was no memory.
    pub refused_full: u64,
}

/// Where a key's lock is. Locks are always taken in this order, so no two callers wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    part: usize,
    shard: usize,
}

impl Memory {
    /// No counters yet; at most `bytes_max` for them, and what becomes of new keys when that is not enough.
    pub fn new(bytes_max: u64, on_full: OnFull) -> Self {
        let part = || DashMap::with_hasher_and_shard_amount(BuildHasherDefault::default(), SHARDS);
        let means = Means {
            budget: Budget::new(bytes_max),
            evicted_idle: Tally::default(),
            evicted_unexpired: Tally::default(),
        };
        Self {
            parts: (0..PARTS).map(|_| part()).collect(),
            rests: (0..PARTS * SHARDS).map(|_| Rest::default()).collect(),
            means,
            on_full,
            refused_full: Tally::default(),
        }
    }

    /// What there is now.
    pub fn figures(&self) -> Figures {
        Figures {
            live: self.parts.iter().map(DashMap::len).sum(),
            bytes: self.means.budget.taken(),
            evicted_idle: self.means.evicted_idle.get(),
            evicted_unexpired: self.means.evicted_unexpired.get(),
            refused_full: self.refused_full.get(),
        }
    }

    /// All counters, a part at a time, as they are when their part's turn comes.
    pub(super) fn each_part<E>(
        &self,
        mut take: impl FnMut(Vec<(Key, Cell)>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.parts.iter().try_for_each(|part| {
            // Copied first, so that no lock is held while they are taken.
            take(part.iter().map(|entry| (*entry.key(), entry.value().clone())).collect())
        })
    }

    /// Keeps counters of a former process, as many as there is memory for.
    pub(super) fn restore(&self, cells: Vec<(Key, Cell)>, now: Timestamp) {
        for (key, cell) in cells.into_iter().filter(|(_, cell)| now < cell.idle_at()) {
            let place = self.place(key);
            let shard = &mut *self.parts[place.part].shards()[place.shard].write();
            if !table::insert(shard, key, cell, now, &self.means, &self.rests[place.index()]) {
                self.refused_full.add(1);
            }
        }
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

        // What `decide` says to the counter of a check, and whether that is kept; a new counter that is idle need
        // not be.
        let mut each = |index: usize, decide: &mut Deed<'_>| {
            let (check, place) = (&checks[index], places[index]);
            // Every place is among the locked ones.
            let shard = &mut *shards[locked.partition_point(|other| *other < place)];
            if let Some(cell) = table::get_mut(shard, check.key) {
                let before = cell.heap_bytes();
                let decision = cell.update(check.limit, |counter| decide(check, counter));
                self.means.budget.change(before, cell.heap_bytes());
                return (decision, true);
            }
            let mut counter = check.limit.fresh();
            let decision = decide(check, &mut counter);
            if check.limit.idle_at(&counter) <= now {
                return (decision, true);
            }
            let (cell, rest) = (Cell::new(check.limit, counter, &decision), &self.rests[place.index()]);
            if table::insert(shard, check.key, cell, now, &self.means, rest) {
                return (decision, true);
            }
            self.refused_full.add(1);
            (self.on_full.in_place_of(decision), false)
        };

        settle(checks, now, refused, &mut each)
    }

    /// Forgets what is idle in one of the table's parts, and gives memory back that it no longer needs.
    fn sweep_part(&self, number: usize, now: Timestamp) {
        let part = &self.parts[number];
        let (mut forgotten, mut heap) = (0, 0);
        part.retain(|_, cell| {
            let stays = now < cell.idle_at();
            if !stays {
                forgotten += 1;
                heap += cell.heap_bytes();
            }
            stays
        });
        self.means.evicted_idle.add(forgotten);
        self.means.budget.change(heap, 0);
        for (shard, rest) in part.shards().iter().zip(&self.rests[number * SHARDS..]) {
            let table = &mut *shard.write();
            // Counters that were kept in time may have grown since.
            if self.means.budget.is_short_of(0) {
                table::clear(table, now, &self.means, rest);
            }
            table::shrink(table, &self.means);
        }
    }

    fn place(&self, key: Key) -> Place {
        // The parts go by the upper half of the key, shards and slots within one by the lower half.
        let part = (key.high() >> (u64::BITS - PARTS.ilog2())) as usize;
        let shard = self.parts[part].determine_shard(key.low() as usize);
        Place { part, shard }
    }
}

/// Decides the checks of one call one after the other, and takes charges back where the call is refused. `each` does
/// a deed to the counter of the check at that index, and says whether that is kept.
fn settle(
    checks: &[Check<'_>],
    now: Timestamp,
    refused: impl FnOnce(&[Decision]) -> bool,
    each: &mut impl FnMut(usize, &mut Deed<'_>) -> (Decision, bool),
) -> Decisions {
    let (mut decisions, mut charged) = (SmallVec::<[Decision; 2]>::new(), SmallVec::<[u64; 2]>::new());
    for (index, check) in checks.iter().enumerate() {
        let (decision, kept) = each(index, &mut |check, counter| check.limit.decide(counter, now, check.ask));
        charged.push(if kept { check.limit.charged(check.ask, decision.verdict.passes()) } else { 0 });
        decisions.push(decision);
    }
    if 1 < checks.len() && refused(&decisions) {
        let look = |check: &Check<'_>, counter: &mut Counter| check.limit.decide(counter, now, Ask::Look);
        // Newest first, so that two charges to one counter come off in turn.
        for (index, decision) in decisions.iter_mut().enumerate().rev() {
            if checks[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                charged[index] = 0;
                each(index, &mut |check, counter| {
                    check.limit.undo(counter, receipt, now);
                    look(check, counter)
                });
            }
        }
        for (index, decision) in decisions.iter_mut().enumerate() {
            if decision.verdict.passes() {
                let (left, _) = each(index, &mut |check, counter| look(check, counter));
                (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
            }
        }
    }
    Decisions { each: decisions, charged }
}

impl Place {
    /// Its number among all places.
    fn index(self) -> usize {
        self.part * SHARDS + self.shard
    }
}

impl OnFull {
    /// What is answered in place of `decision`, which could not be kept.
    fn in_place_of(self, decision: Decision) -> Decision {
        let verdict = match self {
            _ if !decision.verdict.passes() => decision.verdict,
            Self::Allow => Verdict::Pass,
            Self::Deny => Verdict::Refuse { retry_after: None },
        };
        let remaining = if verdict.passes() { decision.remaining } else { 0 };
        Decision { verdict, remaining, receipt: None, ..decision }
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
mod tests;
