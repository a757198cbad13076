//! Limits that a store names for keys: a cache of them, and the look-ups that fill it.
//!
//! It has no input or output: [`LimitCache::next_lookups`] says what is to be read, and [`LimitCache::answer`] takes what
//! was read. Keys are those of the counters of the rules, so a cached key costs no text.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use quick_cache::{
    OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use tokio::sync::{Notify, watch};
use tollgate_counter::{descriptor::Key, metrics::MetricCounter, time::Timestamp};
use tollgate_rules::{OwnBounds, StoredLimit, StoredTerms};
use tollgate_store::KeyHash;

/// The memory of an entry that the settings count on, in bytes.
pub const ENTRY_BYTES: u64 = 120;
/// The memory of a key, and of its place in the tables of the cache with those of evicted keys, in bytes.
const KEY_BYTES: u64 = 72;
/// Evicted keys that are remembered, as part of all: a key that returns soon stays longer.
const GHOSTS: f64 = 0.1;
/// The keys whose look-ups are waiting or under way. Others are decided by what is known of them.
const UNDER_WAY_MAX: usize = 8_192;
/// The time after which a look-up that failed is repeated, if its key is asked for.
const RETRY: Duration = Duration::from_secs(1);
/// The resolution of times in the cache, in nanoseconds.
const TICK_NANOS: u64 = 100_000_000;

/// The bounds of the cache and of waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitCacheSettings {
    /// The entries that fit, of [`ENTRY_BYTES`] each.
    pub entries: usize,
    /// The time after which a limit is read again.
    pub ttl: Duration,
    /// The time after which a key without a limit is looked up again.
    pub absent_ttl: Duration,
    /// The longest time that a call waits for a key that is not cached.
    pub wait: Duration,
}

/// The cached limits of keys.
pub struct LimitCache {
    pub(super) settings: LimitCacheSettings,
    // Times in the cache are ticks since then.
    since: Timestamp,
    entries: Cache<Key, CachedLimit, EntryWeight, KeyHash>,
    pending: Mutex<PendingLookups>,
    queued: Notify,
    /// What is counted.
    pub stats: LimitCacheStats,
}

/// What became of look-ups, and of decisions.
#[derive(Debug, Default)]
pub struct LimitCacheStats {
    /// The store named a limit.
    pub found: MetricCounter,
    /// The store named none.
    pub absent: MetricCounter,
    /// The limit is that of the last look-up.
    pub unchanged: MetricCounter,
    /// The value was no limit of the rule.
    pub invalid: MetricCounter,
    /// The store did not answer.
    pub failed: MetricCounter,
    /// Too many look-ups were under way.
    pub skipped: MetricCounter,
    /// Descriptors whose key was cached.
    pub hits: MetricCounter,
    // In nanoseconds.
    answered_at: AtomicU64,
}

impl LimitCacheStats {
    /// When the store last answered; the epoch before its first answer.
    pub fn answered_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.answered_at.load(Relaxed))
    }

    /// Records that the store has answered at `wall`.
    pub fn set_answered_at(&self, wall: Timestamp) {
        self.answered_at.store(wall.as_nanos(), Relaxed);
    }
}

/// A look-up of the limit of one key.
#[derive(Debug)]
pub struct LimitLookup {
    key: Key,
    /// The domain.
    pub domain: String,
    /// The text of the descriptor, by which its counter is known.
    pub descriptor: String,
    own: Arc<OwnBounds>,
    known: Option<Arc<KnownLimit>>,
}

/// What a store answers to a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupAnswer {
    /// The store has no value for the key.
    Absent,
    /// The value is that of the tag that was sent.
    Unchanged,
    /// A value.
    Value {
        /// The value, in JSON.
        json: Vec<u8>,
        /// What identifies the value.
        etag: Option<Box<str>>,
    },
    /// A value that cannot be read, with the reason.
    Unreadable(String),
    /// No answer, because the store cannot be used.
    Failed,
}

/// A limit that the store has named.
#[derive(Debug)]
pub struct KnownLimit {
    /// What decides.
    pub terms: StoredTerms,
    // `Timestamp::MAX` without an expiry.
    expires_at: Timestamp,
    etag: Option<Box<str>>,
}

/// What the cache says of a key.
#[derive(Debug)]
pub enum KeyLimit {
    /// The store names this limit.
    Stored(Arc<KnownLimit>),
    /// The store names no limit for the key.
    Absent,
    /// The limit is not known, and not worth waiting for.
    Unknown,
    /// The limit is being read. The sender goes away when the look-up has ended.
    Pending(watch::Receiver<()>),
}

/// What is known of a key.
#[derive(Clone, Debug)]
struct CachedLimit {
    known: Option<Arc<KnownLimit>>,
    // In ticks.
    refresh_at: u32,
    // What it was made of besides the value.
    rule: u16,
    // Whether the store has answered. Otherwise there is no limit.
    is_answered: bool,
}

#[derive(Clone)]
struct EntryWeight;

#[derive(Default)]
struct PendingLookups {
    queue: VecDeque<LimitLookup>,
    // Also those that were taken from the queue. Dropping the sender ends the waits.
    keys: HashMap<Key, watch::Sender<()>, KeyHash>,
}

impl Weighter<Key, CachedLimit> for EntryWeight {
    fn weight(&self, _: &Key, cached: &CachedLimit) -> u64 {
        KEY_BYTES + cached.known.as_ref().map_or(0, |known| known.bytes())
    }
}

impl KnownLimit {
    /// The memory of the limit in bytes, with the two numbers of owners.
    fn bytes(&self) -> u64 {
        let etag = self.etag.as_ref().map_or(0, |etag| etag.len().next_multiple_of(16));
        (size_of::<Self>() + 2 * size_of::<usize>() + etag) as u64
    }
}

impl LimitLookup {
    /// What identifies the value that is known.
    pub fn etag(&self) -> Option<&str> {
        self.known.as_ref()?.etag.as_deref()
    }
}

impl LimitCache {
    /// An empty cache.
    pub fn new(settings: LimitCacheSettings, now: Timestamp) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(settings.entries)
            .weight_capacity((settings.entries as u64).saturating_mul(ENTRY_BYTES))
            .ghost_allocation(GHOSTS)
            .build()
            .expect("both capacities are given");
        Self {
            settings,
            since: now,
            entries: Cache::with_options(
                options,
                EntryWeight,
                KeyHash::default(),
                DefaultLifecycle::default(),
            ),
            pending: Mutex::default(),
            queued: Notify::new(),
            stats: LimitCacheStats::default(),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The limit of a key, as far as it is known. What is not known, or old, is looked up by the domain and the text of
    /// the descriptor that `name` returns.
    #[inline]
    pub(super) fn find(
        &self,
        key: Key,
        own: &Arc<OwnBounds>,
        now: Timestamp,
        name: impl FnOnce() -> (String, String),
    ) -> KeyLimit {
        let Some(cached) = self.entries.get(&key) else { return self.look_up(key, own, name) };
        if cached.refresh_at <= self.tick(now) || cached.rule != own.fingerprint() {
            self.refresh(key, own, &cached, now, name);
        }
        cached.limit(now)
    }

    /// Waits for look-ups, and takes `max` of them at most. The caller answers each.
    pub async fn next_lookups(&self, max: usize) -> Vec<LimitLookup> {
        loop {
            let queued = self.queued.notified();
            let lookups: Vec<_> = {
                let mut pending = self.pending();
                let number = pending.queue.len().min(max);
                pending.queue.drain(..number).collect()
            };
            if !lookups.is_empty() {
                return lookups;
            }
            queued.await;
        }
    }

    /// Ends a look-up. An error says why the value is no limit of its rule.
    pub fn answer(&self, lookup: LimitLookup, answer: LookupAnswer, now: Timestamp) -> Result<(), String> {
        let LimitLookup { key, own, known, .. } = lookup;
        let Self { settings, stats, .. } = self;
        // What is known stays if the answer names nothing.
        let kept = |known: Option<_>| {
            let is_answered =
                known.is_some() || self.entries.peek(&key).is_some_and(|cached| cached.is_answered);
            (known, is_answered)
        };
        let (count, (known, is_answered), ttl, result) = match answer {
            LookupAnswer::Absent => (&stats.absent, (None, true), settings.absent_ttl, Ok(())),
            LookupAnswer::Unchanged => (&stats.unchanged, (known, true), settings.ttl, Ok(())),
            LookupAnswer::Failed => (&stats.failed, kept(known), RETRY, Ok(())),
            LookupAnswer::Unreadable(why) => (&stats.invalid, kept(known), settings.ttl, Err(why)),
            LookupAnswer::Value { json, etag } => match own.stored(&json) {
                Ok(StoredLimit { terms, expires_at }) => {
                    let expires_at = expires_at.unwrap_or(Timestamp::MAX);
                    let found = Some(Arc::new(KnownLimit { terms, expires_at, etag }));
                    (&stats.found, (found, true), settings.ttl, Ok(()))
                }
                Err(why) => (&stats.invalid, kept(known), settings.ttl, Err(why)),
            },
        };
        count.increase();
        self.entries.insert(key, self.entry(known, is_answered, ttl, &own, now));
        // Callers that wait find the entry.
        self.pending().keys.remove(&key);
        result
    }

    fn entry(
        &self,
        known: Option<Arc<KnownLimit>>,
        is_answered: bool,
        ttl: Duration,
        own: &OwnBounds,
        now: Timestamp,
    ) -> CachedLimit {
        CachedLimit { known, refresh_at: self.tick(now.after(ttl)), rule: own.fingerprint(), is_answered }
    }

    #[inline]
    fn tick(&self, at: Timestamp) -> u32 {
        u32::try_from(at.nanos_since(self.since) / TICK_NANOS).unwrap_or(u32::MAX)
    }

    fn pending(&self) -> MutexGuard<'_, PendingLookups> {
        // Each change leaves the content consistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up a key that is not cached.
    #[cold]
    fn look_up(&self, key: Key, own: &Arc<OwnBounds>, name: impl FnOnce() -> (String, String)) -> KeyLimit {
        match self.queue(key, own, None, name) {
            Some(pending) if !self.settings.wait.is_zero() => KeyLimit::Pending(pending),
            Some(_) | None => KeyLimit::Unknown,
        }
    }

    /// Looks an old entry up again. It is used meanwhile.
    #[cold]
    fn refresh(
        &self,
        key: Key,
        own: &Arc<OwnBounds>,
        cached: &CachedLimit,
        now: Timestamp,
        name: impl FnOnce() -> (String, String),
    ) {
        self.queue(key, own, cached.known.clone(), name);
        // So that calls until the answer need not ask what is under way.
        let kept = self.entry(cached.known.clone(), cached.is_answered, RETRY, own, now);
        self.entries.insert(key, kept);
    }

    /// Queues a look-up unless one is under way. `None` if too many are.
    fn queue(
        &self,
        key: Key,
        own: &Arc<OwnBounds>,
        known: Option<Arc<KnownLimit>>,
        name: impl FnOnce() -> (String, String),
    ) -> Option<watch::Receiver<()>> {
        let mut pending = self.pending();
        if let Some(under_way) = pending.keys.get(&key) {
            return Some(under_way.subscribe());
        }
        if pending.keys.len() >= UNDER_WAY_MAX {
            self.stats.skipped.increase();
            return None;
        }
        let (domain, descriptor) = name();
        let (done, ended) = watch::channel(());
        pending.keys.insert(key, done);
        pending.queue.push_back(LimitLookup { key, domain, descriptor, own: own.clone(), known });
        drop(pending);
        self.queued.notify_one();
        Some(ended)
    }
}

impl CachedLimit {
    #[inline]
    fn limit(self, now: Timestamp) -> KeyLimit {
        match self.known {
            Some(known) if now < known.expires_at => KeyLimit::Stored(known),
            Some(_expired) => KeyLimit::Absent,
            None if self.is_answered => KeyLimit::Absent,
            None => KeyLimit::Unknown,
        }
    }
}

impl fmt::Debug for LimitCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitCache").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
