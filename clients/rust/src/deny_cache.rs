//! Refusals that are known, until the instant from which the same request may pass.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Decision, Source, request::CounterKey};

/// Remembers refusals.
pub(crate) struct DenyCache {
    keys_max: usize,
    time_max: Duration,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    keys: HashMap<CounterKey, Refusal>,
    // Invariant: has the keys by their numbers, the oldest first.
    order: BTreeMap<u64, CounterKey>,
    next: u64,
    // Invariant: has the keys of all `UnderWay`, and no other ones.
    under_way: HashMap<CounterKey, Checks>,
}

/// Checks of one key that are under way.
#[derive(Default)]
struct Checks {
    count: usize,
    /// Checks that were sent before this instant may have been decided before the last refund or change of limits.
    refunded: Option<Instant>,
}

struct Refusal {
    number: u64,
    /// Hits of each descriptor that were refused: as many or more are refused too.
    hits: Box<[u64]>,
    decision: Decision,
    /// The check was sent at this instant; times of the decision count from here or later.
    sent: Instant,
    /// The key is asked for again from this instant on.
    until: Instant,
}

impl DenyCache {
    /// An empty cache of at most `keys_max` keys, each of which is asked for again after at most `time_max`.
    pub(crate) fn new(keys_max: usize, time_max: Duration) -> Self {
        Self { keys_max, time_max, refusals: Mutex::default() }
    }

    /// The decision on a request that is certain to be refused at this instant.
    pub(crate) fn denied(&self, key: CounterKey, hits: &[u64], now: Instant) -> Option<Decision> {
        let refusals = self.lock();
        let refusal = refusals.keys.get(&key)?;
        let certain = now < refusal.until && covers(hits, &refusal.hits);
        let elapsed = now.saturating_duration_since(refusal.sent);
        certain.then(|| refusal.decision.later(Source::DenyCache, elapsed))
    }

    /// A check of this key that is about to be sent.
    pub(crate) fn begin(&self, key: CounterKey) -> UnderWay<'_> {
        self.lock().under_way.entry(key).or_default().count += 1;
        UnderWay { cache: self, key }
    }

    /// Forgets the refusal of a key whose hits are given back, when this is dropped: also without an answer, because the
    /// server may have given them back.
    pub(crate) fn refunding(&self, key: CounterKey) -> Forgetting<'_> {
        Forgetting { cache: self, key: Some(key) }
    }

    /// Forgets all refusals, when this is dropped: also without an answer, because the server may have changed limits.
    pub(crate) fn clearing(&self) -> Forgetting<'_> {
        Forgetting { cache: self, key: None }
    }

    /// Forgets the refusal of a key whose hits were given back at this instant.
    pub(crate) fn refund(&self, key: CounterKey, now: Instant) {
        let mut refusals = self.lock();
        refusals.remove(key);
        if let Some(checks) = refusals.under_way.get_mut(&key) {
            checks.refunded = Some(now);
        }
    }

    /// Forgets all refusals of checks that were sent before this instant.
    pub(crate) fn clear(&self, now: Instant) {
        let mut refusals = self.lock();
        refusals.keys.clear();
        refusals.order.clear();
        refusals.under_way.values_mut().for_each(|checks| checks.refunded = Some(now));
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that gives hits of a key back, or that changes limits, which ends when this is dropped.
pub(crate) struct Forgetting<'a> {
    cache: &'a DenyCache,
    /// The key whose refusal is forgotten; None for all keys.
    key: Option<CounterKey>,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        match self.key {
            Some(key) => self.cache.refund(key, Instant::now()),
            None => self.cache.clear(Instant::now()),
        }
    }
}

/// A check that is under way until this is dropped.
pub(crate) struct UnderWay<'a> {
    cache: &'a DenyCache,
    key: CounterKey,
}

impl UnderWay<'_> {
    /// Remembers the refusal, if it ends, of this check, which was sent at this instant.
    pub(crate) fn refuse(&self, hits: Box<[u64]>, decision: &Decision, sent: Instant) {
        let cache = self.cache;
        let Some(wait) = decision.retry_after.filter(|wait| cache.keys_max > 0 && !wait.is_zero()) else {
            return;
        };
        // The server decided after this instant, so the local refusal never outlasts its own.
        let Some(until) = sent.checked_add(wait.min(cache.time_max)) else { return };
        let mut refusals = cache.lock();
        let refunded = refusals.under_way.get(&self.key).and_then(|checks| checks.refunded);
        if refunded.is_none_or(|refunded| sent >= refunded) {
            let number = refusals.next;
            let refusal = Refusal { number, hits, decision: decision.clone(), sent, until };
            refusals.insert(self.key, refusal, cache.keys_max);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut refusals = self.cache.lock();
        if let Entry::Occupied(mut checks) = refusals.under_way.entry(self.key) {
            checks.get_mut().count -= 1;
            if checks.get().count == 0 {
                checks.remove();
            }
        }
    }
}

impl Refusals {
    /// Inserts the newest refusal. Drops the oldest one if there are too many.
    fn insert(&mut self, key: CounterKey, refusal: Refusal, keys_max: usize) {
        self.remove(key);
        if self.keys.len() >= keys_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.keys.remove(&oldest);
        }
        self.next += 1;
        self.order.insert(refusal.number, key);
        self.keys.insert(key, refusal);
    }

    fn remove(&mut self, key: CounterKey) {
        if let Some(refusal) = self.keys.remove(&key) {
            self.order.remove(&refusal.number);
        }
    }
}

/// Whether each number is as large as that of `other`.
fn covers(hits: &[u64], other: &[u64]) -> bool {
    hits.len() == other.len() && hits.iter().zip(other).all(|(hits, other)| hits >= other)
}
