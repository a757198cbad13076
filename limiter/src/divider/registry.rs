//! The dividers of this process, each beside the counter that it divides.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    algorithm::{Granted, Limit},
    descriptor::Key,
    divider::{
        Assignment, Divider, Outcome, SubscriberId, Subscribers, Usage, assignment::end_of_assignment,
    },
    metrics::{Counter, Histogram, micros},
    store::{CounterView, Memory, Turn},
    time::Timestamp,
};

/// Dividers are spread over so many locks.
const SHARDS: usize = 64;
/// Turns without a report that one call makes at most for each lock.
const TURNS_MAX: usize = 1_000;

/// Bounds of the times until shares are adjusted. A smaller share is in force after half a second, and one of a client
/// that has gone ends after 16 s.
const CONVERGENCE_BOUNDS: [Duration; 12] = micros([
    100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 17_500_000,
    30_000_000, 60_000_000,
]);

/// Assignments for subscribers.
pub type Assignments = Vec<(SubscriberId, Assignment)>;

/// The dividers of counters in memory.
#[derive(Debug)]
pub struct Dividers {
    memory: Arc<Memory>,
    shards: Box<[Mutex<Shard>]>,
    learns_until: Timestamp,
    stats: DividerStats,
}

/// What has happened to dividers.
#[derive(Debug)]
pub struct DividerStats {
    /// Hits that clients have let pass and that were charged.
    pub used: Counter,
    /// Hits that passed at clients without having been granted.
    pub beyond_grant: Counter,
    /// Times from changes of demand or of clients until all shares were adjusted.
    pub convergence: Histogram,
}

impl Default for DividerStats {
    fn default() -> Self {
        let (used, beyond_grant) = (Counter::default(), Counter::default());
        Self { used, beyond_grant, convergence: Histogram::new(&CONVERGENCE_BOUNDS) }
    }
}

#[derive(Debug, Default)]
struct Shard {
    dividers: HashMap<Key, Placed>,
    // The next turn of each divider that has one.
    due: BTreeSet<(Timestamp, Key)>,
}

#[derive(Debug)]
struct Placed {
    divider: Divider,
    next_at: Option<Timestamp>,
}

impl Dividers {
    /// Dividers beside the counters of `memory`. What an earlier process has granted may be in force for a while.
    pub fn new(memory: Arc<Memory>, now: Timestamp) -> Self {
        Self {
            memory,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            learns_until: end_of_assignment(now),
            stats: DividerStats::default(),
        }
    }

    /// What has happened.
    pub fn stats(&self) -> &DividerStats {
        &self.stats
    }

    /// The number of counters that are divided.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).dividers.len()).sum()
    }

    /// Whether no counter is divided.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is granted of all counters.
    pub fn granted(&self, now: Timestamp) -> Granted {
        let mut all = Granted::default();
        for shard in &self.shards {
            let keys: Vec<Key> = lock(shard).dividers.keys().copied().collect();
            for key in keys {
                let Granted { rate, hits } = self.memory.grants().granted(key, now);
                all.rate = all.rate.plus(rate);
                all.hits = all.hits.saturating_add(hits);
            }
        }
        all
    }

    /// Takes the report of a subscriber of the counter of `key`, and returns the assignments that follow.
    pub fn report(
        &self,
        key: Key,
        limit: &Limit,
        id: SubscriberId,
        usage: Usage,
        now: Timestamp,
    ) -> Assignments {
        let mut shard = self.shard(key);
        let placed = shard.dividers.entry(key).or_insert_with(|| Placed {
            divider: Divider::new(limit.clone(), self.learns_until, now),
            next_at: None,
        });
        placed.divider.set_limit(limit, now);
        self.divide(&mut shard, key, now, |divider, view| divider.report(id, usage, view, now))
    }

    /// Sets the limit of a counter that is divided, and returns the assignments that follow.
    pub fn set_limit(&self, key: Key, limit: &Limit, now: Timestamp) -> Assignments {
        let mut shard = self.shard(key);
        if !shard.dividers.get_mut(&key).is_some_and(|placed| placed.divider.set_limit(limit, now)) {
            return Assignments::new();
        }
        self.divide(&mut shard, key, now, |divider, view| divider.turn(view, now))
    }

    /// The subscribers of the counter of `key` at `now`, at most `max` of them; `None` if it is not divided.
    pub fn subscribers(&self, key: Key, max: usize, now: Timestamp) -> Option<Subscribers> {
        let shard = self.shard(key);
        shard.dividers.get(&key).map(|placed| placed.divider.subscribers(max, now))
    }

    /// Ends a subscriber. What it has is in force until its time is over.
    pub fn leave(&self, key: Key, id: SubscriberId) {
        if let Some(placed) = self.shard(key).dividers.get_mut(&key) {
            placed.divider.leave(id);
        }
    }

    /// Makes the turns that are due at `now`, and returns the assignments that follow.
    pub fn turn(&self, now: Timestamp) -> Assignments {
        let mut all = Assignments::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            for _ in 0..TURNS_MAX {
                let Some((_, key)) = shard.due.first().copied().filter(|(at, _)| *at <= now) else { break };
                all.extend(self.divide(&mut shard, key, now, |divider, view| divider.turn(view, now)));
            }
        }
        all
    }

    fn divide(
        &self,
        shard: &mut Shard,
        key: Key,
        now: Timestamp,
        divide: impl FnOnce(&mut Divider, CounterView) -> Outcome,
    ) -> Assignments {
        let Some(placed) = shard.dividers.get_mut(&key) else { return Assignments::new() };
        let (limit, mut outcome) = (placed.divider.limit().clone(), Outcome::default());
        self.memory.grants().turn(key, &limit, now, |view| {
            outcome = divide(&mut placed.divider, view);
            outcome.turn
        });
        let Turn { used, granted } = outcome.turn;
        self.stats.used.add(used);
        self.stats.beyond_grant.add(outcome.beyond_grant);
        if let Some(time) = outcome.converged_after {
            self.stats.convergence.record(time);
        }
        if let Some(at) = placed.next_at.take() {
            shard.due.remove(&(at, key));
        }
        if placed.divider.is_empty() && granted.is_nothing() {
            self.memory.grants().end(key, now);
            shard.dividers.remove(&key);
        } else if let Some(at) = outcome.next_at {
            placed.next_at = Some(at);
            shard.due.insert((at, key));
        }
        outcome.assignments
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.memory.slot(key).index() % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Every change leaves a shard consistent, so a poisoned lock is harmless.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
