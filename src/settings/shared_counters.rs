//! The settings of counters that replicas share: in a cluster, or in a shared store.

use std::time::Duration;

use tollgate_cluster::{ClusterSettings, Files, Trust, TrustError, Tuning, link};
use tollgate_shared_store::{PasswordSource, PasswordSources, SharedStoreSettings, StoreTlsFiles};

use crate::settings::{
    catalog::{Links, Redis, RedisCounters, SettingsDraft},
    conflicts::Conflicts,
    value_type::RedisMode,
};

impl Links {
    /// `None` without an address to listen on.
    pub(super) fn read(
        self,
        tuning: Tuning,
        poll_interval: Duration,
        conflicts: &mut Conflicts,
    ) -> Option<ClusterSettings> {
        let Self { listen, advertise, seed: seeds, secret_file, cert, key, ca } = self;
        let listen = listen?;
        let certificates = [("cert", cert.is_some()), ("key", key.is_some()), ("ca", ca.is_some())];
        match certificates.iter().find(|(_, is_set)| *is_set) {
            Some(given) => conflicts.require("cluster.", &certificates.map(|needed| (*given, needed))),
            None if secret_file.is_none() => {
                conflicts.add(format!("cluster.listen: {}", TrustError::NotConfigured));
            }
            None => {}
        }
        let files = cert.zip(key).zip(ca).map(|((cert, key), ca)| Files { cert, key, ca });
        let trust = Trust { files, secret_file, poll_interval };
        Some(ClusterSettings { link: link::LinkSettings { listen, advertise, seeds, trust }, tuning })
    }
}

impl SettingsDraft {
    /// The servers of Redis, which `user` needs: a setting with its value.
    pub(super) fn redis_settings(&self, user: &str, conflicts: &mut Conflicts) -> SharedStoreSettings {
        let redis = self.redis.clone();
        redis.check(user, conflicts);
        let [server, sentinel] =
            [redis.password_file, redis.sentinel_password_file].map(|path| path.map(PasswordSource::File));
        let poll_interval = self.certificates.poll_interval;
        let RedisCounters { prefix, unready_without_store } = self.redis_counters.clone();
        SharedStoreSettings {
            urls: redis.urls,
            mode: match redis.mode {
                RedisMode::Standalone => tollgate_shared_store::StoreMode::Standalone,
                RedisMode::Sentinel => {
                    tollgate_shared_store::StoreMode::Sentinel { service: redis.sentinel_service }
                }
                RedisMode::Cluster => tollgate_shared_store::StoreMode::Cluster,
            },
            username: redis.username,
            sentinel_username: redis.sentinel_username,
            tls: StoreTlsFiles { ca: redis.ca, client: redis.cert.zip(redis.key) },
            passwords: PasswordSources { server, sentinel, poll_interval },
            unready_without_store,
            connections: redis.connections,
            timeout: redis.timeout,
            prefix,
            memory_limit: self.store.memory_limit,
            on_full: self.counters.on_full,
        }
    }
}

impl Redis {
    fn check(&self, user: &str, conflicts: &mut Conflicts) {
        if self.urls.is_empty() {
            conflicts.add(format!("{user} needs store.redis.urls, which is not set"));
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
    const LISTEN: (&str, &str) = ("cluster.listen", "10.0.0.7:8082");
    const SECRET: (&str, &str) = ("cluster.secret_file", "/run/secret");

    #[test]
    fn no_cluster_without_listen_address() {
        assert!(load(&[]).unwrap().cluster.is_none());
        assert!(load(&[("cluster.seed", "off"), ("cluster.lease_from", "500")]).unwrap().cluster.is_none());
    }

    #[test]
    fn listen_address_and_secret_suffice_for_a_cluster() {
        let cluster = load(&[LISTEN, SECRET, ("tls.poll_interval", "7s")]).unwrap().cluster.unwrap();
        let ClusterSettings { link, tuning } = cluster;
        assert_eq!(
            (link.listen.to_string().as_str(), link.advertise, link.seeds),
            ("10.0.0.7:8082", None, vec![])
        );
        let Trust { files, secret_file, poll_interval } = link.trust;
        assert_eq!((files, secret_file.unwrap().to_str()), (None, Some("/run/secret")));
        assert_eq!((poll_interval, tuning.forget_after), (Duration::from_secs(7), Duration::from_secs(30)));
        assert_eq!(tuning.forward_budget_max, Duration::from_millis(500));
        assert_eq!(
            (tuning.backup_interval, tuning.lease_from),
            (Some(Duration::from_millis(100)), Some(500))
        );
    }

    #[test]
    fn off_is_none_and_seeds_are_a_list() {
        let given = [
            LISTEN,
            ("cluster.cert", "c.pem"),
            ("cluster.key", "k.pem"),
            ("cluster.ca", "a.pem"),
            ("cluster.seed", "tollgate:8082, [fd00::7]:1"),
            ("cluster.advertise", "10.0.0.8"),
            ("cluster.backup_interval", "off"),
            ("cluster.lease_from", "off"),
        ];
        let cluster = load(&given).unwrap().cluster.unwrap();
        assert_eq!(cluster.link.seeds, ["tollgate:8082", "[fd00::7]:1"]);
        assert_eq!(cluster.link.advertise.as_deref(), Some("10.0.0.8"));
        let files = Files { cert: "c.pem".into(), key: "k.pem".into(), ca: "a.pem".into() };
        assert_eq!((cluster.link.trust.files, cluster.link.trust.secret_file), (Some(files), None));
        assert_eq!((cluster.tuning.backup_interval, cluster.tuning.lease_from), (None, None));
    }

    #[test]
    fn settings_without_listen_address_are_refused_one_by_one() {
        assert_eq!(
            problems(&flags(&[SECRET, ("cluster.forget_after", "1m")])),
            [
                "cluster.secret_file needs cluster.listen, which is not set",
                "cluster.forget_after needs cluster.listen, which is not set",
            ]
        );
    }

    #[test]
    fn links_need_secret_or_complete_certificates() {
        let wanted = "cluster.listen: links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca";
        assert_eq!(problems(&flags(&[LISTEN])), [wanted]);
        assert_eq!(
            problems(&flags(&[LISTEN, SECRET, ("cluster.key", "k.pem")])),
            [
                "cluster.key needs cluster.cert, which is not set",
                "cluster.key needs cluster.ca, which is not set",
            ]
        );
    }

    #[test]
    fn invalid_value_is_reported_with_accepted_values_in_cluster() {
        for (name, wrong, expected) in [
            (
                "cluster.listen",
                "8082",
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or off",
            ),
            ("cluster.advertise", "replica-1", "HOST:PORT, an IP address, or auto"),
            ("cluster.advertise", "0.0.0.0", "HOST:PORT, an IP address, or auto"),
            ("cluster.seed", "a:1,b", "HOST:PORT, several separated by commas, or off"),
            ("cluster.forward_budget_max", "0s", "a duration from 1ms to 60s"),
            ("cluster.backup_interval", "1ms", "a duration from 20ms to 10s, or off"),
            ("cluster.forget_after", "1s", "a duration from 2s to 3600s"),
            ("cluster.lease_from", "0", "a number from 1 to 1000000, or off"),
        ] {
            let flag = name.replace(['.', '_'], "-");
            assert_eq!(
                problems(&flags(&[(name, wrong)])),
                [format!("--{flag}: `{wrong}` is not allowed; {expected} is")]
            );
        }
    }

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
