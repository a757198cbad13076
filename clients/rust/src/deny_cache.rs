//! Refusals that are known, until the instant from which the same request may pass.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

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
    /// Those that were sent before this instant may have been decided before the last refund.
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

    /// Forgets the refusal of a key whose hits were given back at this instant.
    pub(crate) fn refund(&self, key: CounterKey, now: Instant) {
        let mut refusals = self.lock();
        refusals.remove(key);
        if let Some(checks) = refusals.under_way.get_mut(&key) {
            checks.refunded = Some(now);
        }
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Some(wait) = decision.retry_after.filter(|_| cache.keys_max > 0) else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Descriptor, Request, Source, decision::tests::refusal, request::KeyHasher};

    const HOUR: Duration = Duration::from_secs(3600);

    /// A cache, whose times count from its start.
    struct Subject {
        cache: DenyCache,
        hasher: KeyHasher,
        start: Instant,
    }

    impl Subject {
        fn new(keys_max: usize, time_max: Duration) -> Self {
            let cache = DenyCache::new(keys_max, time_max);
            Self { cache, hasher: KeyHasher::default(), start: Instant::now() }
        }

        fn key(&self, user: &str) -> CounterKey {
            self.hasher.key_of(&Request::new("edge", [Descriptor::new([("user", user)])]))
        }

        fn refuse(&self, user: &str, hits: u64, wait: Duration, at: Duration) {
            let check = self.cache.begin(self.key(user));
            check.refuse([hits].into(), &refusal(wait), self.start + at);
        }

        fn refund(&self, user: &str, at: Duration) {
            self.cache.refund(self.key(user), self.start + at);
        }

        fn denied(&self, user: &str, hits: u64, at: Duration) -> Option<Decision> {
            self.cache.denied(self.key(user), &[hits], self.start + at)
        }
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn refused_key_is_denied_until_its_retry_after() {
        let subject = Subject::new(10, HOUR);
        subject.refuse("ann", 1, seconds(3), Duration::ZERO);
        assert!(subject.denied("ann", 1, seconds(3) - Duration::from_nanos(1)).is_some());
        assert!(subject.denied("ann", 1, seconds(3)).is_none());
        assert!(subject.denied("bob", 1, Duration::ZERO).is_none());
    }

    #[test]
    fn local_denial_has_the_rest_of_its_times() {
        let subject = Subject::new(10, HOUR);
        subject.refuse("ann", 1, seconds(3), Duration::ZERO);
        let decision = subject.denied("ann", 1, seconds(1)).unwrap();
        assert_eq!((decision.source, decision.retry_after), (Source::DenyCache, Some(seconds(2))));
        let limit = &decision.limits[0];
        assert_eq!((limit.reset_after, limit.retry_after), (seconds(2), Some(seconds(2))));
    }

    #[test]
    fn fewer_hits_than_refused_are_asked_for() {
        let subject = Subject::new(10, HOUR);
        subject.refuse("ann", 5, seconds(60), Duration::ZERO);
        let denied = [4, 5, 6].map(|hits| subject.denied("ann", hits, Duration::ZERO).is_some());
        assert_eq!(denied, [false, true, true]);
    }

    #[test]
    fn long_refusal_ends_at_the_maximum() {
        let subject = Subject::new(10, seconds(1));
        subject.refuse("ann", 1, HOUR, Duration::ZERO);
        assert!(subject.denied("ann", 1, seconds(1) - Duration::from_nanos(1)).is_some());
        assert!(subject.denied("ann", 1, seconds(1)).is_none());
    }

    #[test]
    fn refusal_without_retry_after_is_not_cached() {
        let subject = Subject::new(10, HOUR);
        let forever = Decision { retry_after: None, ..refusal(HOUR) };
        subject.cache.begin(subject.key("ann")).refuse([1].into(), &forever, subject.start);
        assert!(subject.denied("ann", 1, Duration::ZERO).is_none());
    }

    #[test]
    fn refund_ends_refusals_that_were_sent_before_it() {
        let subject = Subject::new(10, HOUR);
        subject.refuse("ann", 1, seconds(60), Duration::ZERO);
        let early = subject.cache.begin(subject.key("ann"));
        subject.refund("ann", seconds(2));
        assert!(subject.denied("ann", 1, seconds(3)).is_none());

        early.refuse([1].into(), &refusal(seconds(60)), subject.start + seconds(1));
        assert!(
            subject.denied("ann", 1, seconds(3)).is_none(),
            "the server may have refused before the refund"
        );

        subject.refuse("ann", 1, seconds(60), seconds(2));
        assert!(subject.denied("ann", 1, seconds(3)).is_some());
    }

    #[test]
    fn refund_of_unknown_key_takes_no_place() {
        let subject = Subject::new(3, HOUR);
        for user in ["a", "b", "c"] {
            subject.refuse(user, 1, seconds(60), Duration::ZERO);
        }
        let _check = subject.cache.begin(subject.key("d"));
        for user in ["d", "e", "f"] {
            subject.refund(user, seconds(1));
        }
        let denied = ["a", "b", "c"].map(|user| subject.denied(user, 1, seconds(2)).is_some());
        assert_eq!(denied, [true; 3]);
    }

    #[test]
    fn last_check_of_key_ends_its_record() {
        let subject = Subject::new(3, HOUR);
        let checks = [0; 2].map(|_| subject.cache.begin(subject.key("ann")));
        for (check, records) in checks.into_iter().zip([1, 0]) {
            drop(check);
            assert_eq!(subject.cache.lock().under_way.len(), records);
        }
    }

    #[test]
    fn full_cache_drops_the_oldest_key() {
        let subject = Subject::new(3, HOUR);
        for user in ["a", "b", "c", "a", "d"] {
            subject.refuse(user, 1, seconds(60), Duration::ZERO);
        }
        let denied = ["a", "b", "c", "d"].map(|user| subject.denied(user, 1, Duration::ZERO).is_some());
        assert_eq!(denied, [true, false, true, true]);
        let refusals = subject.cache.lock();
        assert_eq!((refusals.keys.len(), refusals.order.len()), (3, 3));
    }

    #[test]
    fn cache_without_keys_remembers_nothing() {
        let subject = Subject::new(0, HOUR);
        subject.refuse("ann", 1, seconds(60), Duration::ZERO);
        assert!(subject.denied("ann", 1, Duration::ZERO).is_none());
        assert!(subject.cache.lock().keys.is_empty());
    }
}
