//! Looks up the limits of keys in the store that names them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tollgate_counter::{descriptor::escaped, time::Clock};
use tollgate_limiter::limiter::{LimitCache, LimitLookup, LookupAnswer};
use tollgate_shared_store::{PasswordError, SharedStore, StoredValue, StoredValues};
use tollgate_sources::url::{Fetched, UrlValues};
use tracing::{info, warn};

use crate::settings::conflicts::{LimitSettings, LimitStoreSettings};

/// The batches that are under way at a time.
const BATCHES_MAX: usize = 16;
/// The look-ups of a batch, which share a round trip to Redis.
const REDIS_BATCH_MAX: usize = 128;
/// The look-ups of a batch at a URL, each of which is a request on a connection of its own.
const URL_BATCH_MAX: usize = 4;

/// The cache of limits, and the store that it is filled from.
#[derive(Clone, Debug)]
pub(super) struct LimitLookups {
    pub(super) cache: Arc<LimitCache>,
    store: LimitStore,
    clock: Clock,
    // The store did not answer the last batch.
    is_failing: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum LimitStore {
    Redis(StoredValues, Arc<str>),
    Url(Box<UrlValues>),
}

impl LimitLookups {
    /// Starts to connect to the store. Its connections are those of the counters, if these are there too.
    pub(super) fn start(
        settings: LimitSettings,
        shared_store: Option<&SharedStore>,
        clock: Clock,
        background: &mut JoinSet<()>,
    ) -> Result<Self, PasswordError> {
        let cache = Arc::new(LimitCache::new(settings.cache, clock.now()));
        let store = match settings.store {
            LimitStoreSettings::Redis(settings, prefix) => {
                let values = match shared_store {
                    Some(store) => store.values(),
                    None => StoredValues::start(*settings, background)?,
                };
                LimitStore::Redis(values, prefix.into())
            }
            LimitStoreSettings::Url(settings, template) => {
                LimitStore::Url(Box::new(UrlValues::new(template, *settings, clock.clone())))
            }
        };
        Ok(Self { cache, store, clock, is_failing: Arc::default() })
    }

    /// Answers look-ups, for as long as it is polled.
    pub(super) async fn run(self) {
        let batch_max = match self.store {
            LimitStore::Redis(..) => REDIS_BATCH_MAX,
            LimitStore::Url(_) => URL_BATCH_MAX,
        };
        let mut batches = JoinSet::new();
        loop {
            while batches.len() >= BATCHES_MAX {
                batches.join_next().await;
            }
            let lookups = self.cache.next_lookups(batch_max).await;
            while batches.try_join_next().is_some() {}
            batches.spawn(self.clone().answer(lookups));
        }
    }

    async fn answer(self, lookups: Vec<LimitLookup>) {
        let answers = match &self.store {
            LimitStore::Redis(values, prefix) => {
                let keys: Vec<_> = lookups.iter().map(|lookup| redis_key(prefix, lookup)).collect();
                values.read(&keys).await.into_iter().map(|value| self.redis_answer(value)).collect()
            }
            LimitStore::Url(values) => {
                let read = async |lookup: &LimitLookup| {
                    let value = values.read(&lookup.domain, &lookup.descriptor, lookup.etag());
                    self.url_answer(value.await)
                };
                join_all(lookups.iter().map(read)).await
            }
        };
        for (lookup, answer) in lookups.into_iter().zip(answers) {
            let (domain, descriptor) = (lookup.domain.clone(), lookup.descriptor.clone());
            if let Err(why) = self.cache.answer(lookup, answer, self.clock.now()) {
                warn!(domain, descriptor, why, "the limit of a key in the store is invalid");
            }
        }
    }

    fn redis_answer(&self, value: StoredValue) -> LookupAnswer {
        match value {
            StoredValue::Absent => self.answered(LookupAnswer::Absent),
            StoredValue::Value(json) => self.answered(LookupAnswer::Value { json, etag: None }),
            StoredValue::Unreadable(why) => self.answered(LookupAnswer::Unreadable(why)),
            StoredValue::Unavailable(reason) => self.failed(&reason),
        }
    }

    fn url_answer(&self, fetched: Result<Fetched, String>) -> LookupAnswer {
        match fetched {
            Ok(Fetched::Absent) => self.answered(LookupAnswer::Absent),
            Ok(Fetched::Unchanged) => self.answered(LookupAnswer::Unchanged),
            Ok(Fetched::Document { bytes, etag }) => {
                let etag = etag.map(String::into_boxed_str);
                self.answered(LookupAnswer::Value { json: bytes, etag })
            }
            Err(reason) => self.failed(&reason),
        }
    }

    fn answered(&self, answer: LookupAnswer) -> LookupAnswer {
        self.cache.stats.set_answered_at(self.clock.wall());
        if self.is_failing.load(Relaxed) && self.is_failing.swap(false, Relaxed) {
            info!("limits of keys are looked up again");
        }
        answer
    }

    fn failed(&self, reason: &str) -> LookupAnswer {
        if !self.is_failing.swap(true, Relaxed) {
            warn!(reason, "limits of keys cannot be looked up; the known ones and those of rules decide");
        }
        LookupAnswer::Failed
    }
}

/// The key of a limit: the prefix, the domain, and the descriptor. A colon in the domain is escaped.
fn redis_key(prefix: &str, lookup: &LimitLookup) -> String {
    let domain = escaped(lookup.domain.as_bytes()).replace(':', "\\:");
    format!("{prefix}{domain}:{}", lookup.descriptor)
}
