//! Refusals that are known, until the instant from which the same request may pass.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{Decision, request::CounterKey};

/// Remembers refusals.
pub(crate) struct DenyCache {
    keys_max: usize,
    time_max: Duration,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    keys: HashMap<CounterKey, Entry>,
    // Invariant: has the keys by their numbers, the oldest first.
    order: BTreeMap<u64, CounterKey>,
    next: u64,
}

/// What is known of one key.
#[derive(Default)]
struct Entry {
    number: u64,
    refusal: Option<Refusal>,
    /// Checks that were sent before this instant may have been decided before the last refund.
    refunded: Option<Instant>,
}

struct Refusal {
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
        let refusal = refusals.keys.get(&key)?.refusal.as_ref()?;
        let certain = now < refusal.until && covers(hits, &refusal.hits);
        certain.then(|| refusal.decision.later(now.saturating_duration_since(refusal.sent)))
    }

    /// Remembers a refusal, if it ends, of a check that was sent at this instant.
    pub(crate) fn refuse(&self, key: CounterKey, hits: Box<[u64]>, decision: &Decision, sent: Instant) {
        let Some(wait) = decision.retry_after.filter(|_| self.keys_max > 0) else { return };
        // The server decided after this instant, so the local refusal never outlasts its own.
        let Some(until) = sent.checked_add(wait.min(self.time_max)) else { return };
        let mut refusals = self.lock();
        let entry = refusals.renew(key, self.keys_max);
        if entry.refunded.is_none_or(|refunded| sent >= refunded) {
            entry.refusal = Some(Refusal { hits, decision: decision.clone(), sent, until });
        }
    }

    /// Forgets the refusals of a key whose hits were given back at this instant.
    pub(crate) fn refund(&self, key: CounterKey, now: Instant) {
        if self.keys_max == 0 {
            return;
        }
        let mut refusals = self.lock();
        let entry = refusals.renew(key, self.keys_max);
        entry.refusal = None;
        entry.refunded = Some(now);
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Refusals {
    /// The entry of a key as the newest one. Drops the oldest one if there are too many.
    fn renew(&mut self, key: CounterKey, keys_max: usize) -> &mut Entry {
        if let Some(entry) = self.keys.get(&key) {
            self.order.remove(&entry.number);
        } else if self.keys.len() >= keys_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.keys.remove(&oldest);
        }
        self.next += 1;
        self.order.insert(self.next, key);
        let entry = self.keys.entry(key).or_default();
        entry.number = self.next;
        entry
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
            self.cache.refuse(self.key(user), [hits].into(), &refusal(wait), self.start + at);
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
        subject.cache.refuse(subject.key("ann"), [1].into(), &forever, subject.start);
        assert!(subject.denied("ann", 1, Duration::ZERO).is_none());
    }

    #[test]
    fn refund_ends_refusals_that_were_sent_before_it() {
        let subject = Subject::new(10, HOUR);
        subject.refuse("ann", 1, seconds(60), Duration::ZERO);
        subject.cache.refund(subject.key("ann"), subject.start + seconds(2));
        assert!(subject.denied("ann", 1, seconds(3)).is_none());

        subject.refuse("ann", 1, seconds(60), seconds(1));
        assert!(
            subject.denied("ann", 1, seconds(3)).is_none(),
            "the server may have refused before the refund"
        );

        subject.refuse("ann", 1, seconds(60), seconds(2));
        assert!(subject.denied("ann", 1, seconds(3)).is_some());
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
        subject.cache.refund(subject.key("ann"), subject.start);
        assert!(subject.denied("ann", 1, Duration::ZERO).is_none());
        assert!(subject.cache.lock().keys.is_empty());
    }
}
