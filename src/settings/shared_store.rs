//! The settings of the shared store.

use std::time::Duration;

use tollgate_shared_store::{PasswordSource, PasswordSources, SharedStoreSettings, StoreTlsFiles};
use tollgate_store::OnFull;

use crate::settings::{catalog::Redis, conflicts::Conflicts, value_type::RedisMode};

impl Redis {
    pub(super) fn read(
        self,
        (memory_limit, on_full): (u64, OnFull),
        poll_interval: Duration,
        conflicts: &mut Conflicts,
    ) -> SharedStoreSettings {
        self.check(conflicts);
        let [server, sentinel] =
            [self.password_file, self.sentinel_password_file].map(|path| path.map(PasswordSource::File));
        SharedStoreSettings {
            urls: self.urls,
            mode: match self.mode {
                RedisMode::Standalone => tollgate_shared_store::StoreMode::Standalone,
                RedisMode::Sentinel => {
                    tollgate_shared_store::StoreMode::Sentinel { service: self.sentinel_service }
                }
                RedisMode::Cluster => tollgate_shared_store::StoreMode::Cluster,
            },
            username: self.username,
            sentinel_username: self.sentinel_username,
            tls: StoreTlsFiles { ca: self.ca, client: self.cert.zip(self.key) },
            passwords: PasswordSources { server, sentinel, poll_interval },
            unready_without_store: self.unready_without_store,
            connections: self.connections,
            timeout: self.timeout,
            prefix: self.prefix,
            memory_limit,
            on_full,
        }
    }

    fn check(&self, conflicts: &mut Conflicts) {
        if self.urls.is_empty() {
            conflicts.add("store.kind redis needs store.redis.urls, which is not set");
        }
        let [cert, key] = [("cert", self.cert.is_some()), ("key", self.key.is_some())];
        conflicts.require("store.redis.", &[(cert, key), (key, cert)]);
        let with_tls = self.urls.iter().filter(|url| url.starts_with("rediss:")).count();
        if with_tls > 0 && with_tls < self.urls.len() {
            conflicts.add("store.redis.urls: either all or none are rediss://");
        }
        if with_tls < self.urls.len() && (self.ca.is_some() || self.cert.is_some()) {
            conflicts.add("store.redis.ca and store.redis.cert need rediss:// in store.redis.urls");
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_shared_store::StoreMode;

    use super::*;
    use crate::settings::{
        SettingsSources,
        tests::{flags, load, problems},
    };

    const REDIS_KIND: (&str, &str) = ("store.kind", "redis");
    const URL: (&str, &str) = ("store.redis.urls", "redis://redis:6379");

    #[test]
    fn kind_and_urls_suffice_for_a_shared_store() {
        assert!(load(&[]).unwrap().shared_store.is_none());
        let store = load(&[REDIS_KIND, URL]).unwrap().shared_store.unwrap();
        let of_library = SharedStoreSettings::new(["redis://redis:6379"]);
        assert_eq!(store, SharedStoreSettings { memory_limit: store.memory_limit, ..of_library });
    }

    #[test]
    fn all_settings_of_a_shared_store_are_read() {
        let file = "store:\n  kind: redis\n  redis:\n    mode: sentinel\n    sentinel_service: counters\n    \
                    urls: rediss://a:1, rediss://b:2\n    username: tollgate\n    sentinel_username: watcher\n    \
                    password_file: p\n    ca: c\n    \
                    cert: d\n    key: k\n    connections: 4\n    timeout: 20ms\n    prefix: 'mine:'\n";
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), format!("rules:\n  path: r.yaml\n{file}")).unwrap();
        let sources = SettingsSources { file: Some(path.path().to_owned()), ..SettingsSources::default() };
        let store = sources.load().unwrap().shared_store.unwrap();
        assert_eq!(store.mode, StoreMode::Sentinel { service: "counters".to_owned() });
        assert_eq!(store.urls, ["rediss://a:1", "rediss://b:2"]);
        assert_eq!(store.tls.client, Some(("d".into(), "k".into())));
        let users = (store.username.as_deref(), store.sentinel_username.as_deref());
        assert_eq!(users, (Some("tollgate"), Some("watcher")));
        let password = store.passwords.server;
        assert_eq!((password, store.connections), (Some(PasswordSource::File("p".into())), 4));
        assert_eq!((store.timeout, store.prefix.as_str()), (Duration::from_millis(20), "mine:"));
    }

    #[test]
    fn settings_of_memory_and_cluster_are_refused_with_both_names() {
        let given = [
            REDIS_KIND,
            URL,
            ("store.snapshot", "s"),
            ("store.on_full", "deny"),
            ("cluster.seed", "a:1"),
            ("cluster.listen", "off"),
        ];
        let named = ["store.on_full", "store.snapshot", "cluster.seed"];
        let expected = named.map(|name| {
            format!("{name} does not go with store.kind redis: the counters are not in this process")
        });
        assert_eq!(problems(&flags(&given)), expected);
    }

    #[test]
    fn settings_of_redis_need_its_kind_and_each_other() {
        assert_eq!(problems(&flags(&[URL])), ["store.redis.urls needs store.kind redis, which is not set"]);
        assert_eq!(
            problems(&flags(&[REDIS_KIND])),
            ["store.kind redis needs store.redis.urls, which is not set"]
        );
        assert_eq!(
            problems(&flags(&[REDIS_KIND, ("store.redis.urls", "rediss://a:1"), ("store.redis.cert", "c")])),
            ["store.redis.cert needs store.redis.key, which is not set"]
        );
        assert_eq!(
            problems(&flags(&[REDIS_KIND, ("store.redis.urls", "rediss://a:1,redis://b:1")]))[0],
            "store.redis.urls: either all or none are rediss://"
        );
    }
}
