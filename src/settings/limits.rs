//! The settings of limits of keys that a store names.

use tollgate_limiter::limiter::LimitCacheSettings;
use tollgate_shared_store::SharedStoreSettings;
use tollgate_sources::url::{UrlSettings, UrlTemplate};

use crate::settings::{
    catalog::{LimitCacheSize, LimitCalls, SettingsDraft},
    conflicts::Conflicts,
    value_type::{LimitStoreKind, StoreKind},
};

/// Limits of keys that a store names.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// The store.
    pub store: LimitStoreSettings,
    /// The cache.
    pub cache: LimitCacheSettings,
}

/// The store that names limits.
#[derive(Clone, Debug)]
pub enum LimitStoreSettings {
    /// Servers of Redis, and the first part of keys.
    Redis(Box<SharedStoreSettings>, String),
    /// A URL, and how it is asked for.
    Url(Box<UrlSettings>, UrlTemplate),
}

impl SettingsDraft {
    /// `None` if no store names limits.
    pub(super) fn limit_settings(&self, conflicts: &mut Conflicts) -> Option<LimitSettings> {
        let LimitCalls { wait } = self.limit_calls.clone();
        let LimitCacheSize { entries, ttl, absent_ttl } = self.limit_cache.clone();
        let store = match self.limits.source? {
            LimitStoreKind::Redis => {
                // Those of counters in Redis were checked already.
                let mut unused = Conflicts::default();
                let is_shared = self.store.kind == StoreKind::Redis;
                let conflicts = if is_shared { &mut unused } else { conflicts };
                let settings = self.redis_settings("limits.source redis", conflicts);
                LimitStoreSettings::Redis(Box::new(settings), self.limit_redis.prefix.clone())
            }
            LimitStoreKind::Url => {
                let Some(template) = self.limit_url.url.clone() else {
                    conflicts.add("limits.source url needs limits.url, which is not set");
                    return None;
                };
                let settings = self.url.clone().read("limits.url", template.example()?, conflicts);
                LimitStoreSettings::Url(Box::new(settings), template)
            }
        };
        Some(LimitSettings { store, cache: LimitCacheSettings { entries, ttl, absent_ttl, wait } })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::tests::{flags, load, problems};

    const REDIS: (&str, &str) = ("limits.source", "redis");
    const URL: (&str, &str) = ("limits.source", "url");

    #[test]
    fn limits_in_redis_need_only_its_servers() {
        assert!(load(&[]).unwrap().limits.is_none());
        assert_eq!(
            problems(&flags(&[REDIS])),
            ["limits.source redis needs store.redis.urls, which is not set"]
        );
        let given = [REDIS, ("store.redis.urls", "redis://a:1"), ("limits.redis.prefix", "l:")];
        let settings = load(&given).unwrap();
        assert!(settings.shared_store.is_none());
        let LimitSettings { store, cache } = settings.limits.unwrap();
        let LimitStoreSettings::Redis(redis, prefix) = store else { panic!("{store:?}") };
        assert_eq!((redis.urls, &*prefix), (vec!["redis://a:1".to_owned()], "l:"));
        let [ttl, wait] = [Duration::from_secs(30), Duration::from_millis(5)];
        assert_eq!(cache, LimitCacheSettings { entries: 1_000_000, ttl, absent_ttl: ttl, wait });
    }

    #[test]
    fn limits_at_a_url_need_a_template() {
        assert_eq!(problems(&flags(&[URL])), ["limits.source url needs limits.url, which is not set"]);
        let given = [URL, ("limits.url", "https://h/{domain}/{descriptor}"), ("rules.url.timeout", "1s")];
        let limits = load(&given).unwrap().limits.unwrap();
        let LimitStoreSettings::Url(url, _) = limits.store else { panic!("{limits:?}") };
        assert_eq!(url.timeout, Duration::from_secs(1));
        let far = problems(&flags(&[URL, ("limits.url", "http://h/{domain}/{descriptor}")]));
        assert!(far[0].starts_with("limits.url: http://h/domain/descriptor needs https://"), "{far:?}");
    }

    #[test]
    fn settings_of_limits_need_their_source() {
        for (name, value, source) in [
            ("limits.wait", "1ms", "limits.source"),
            ("limits.cache.ttl", "1s", "limits.source"),
            ("limits.redis.prefix", "l:", "limits.source redis"),
            ("limits.url", "https://h/{domain}/{descriptor}", "limits.source url"),
        ] {
            let expected = format!("{name} needs {source}, which is not set");
            assert_eq!(problems(&flags(&[(name, value)])), [expected]);
        }
    }
}
