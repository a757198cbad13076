//! Settings that agree with each other, and settings that do not.

use super::*;
use crate::settings::tests::{flags, load, problems};

#[test]
fn allowed_names_need_client_certificates() {
    let names = [("admin.limits_san", "billing.shop")];
    let problem = "admin.limits_san needs grpc.tls_client_ca or http.tls_client_ca, which are not set";
    assert_eq!(problems(&flags(&names)), [problem]);
}

#[test]
fn quota_service_needs_counters_in_memory() {
    let enabled = ("rlqs.enabled", "true");
    let redis = [enabled, ("store.kind", "redis"), ("store.redis.urls", "redis://a:1")];
    let problem = "rlqs.enabled does not go with store.kind redis: counters are divided in memory";
    assert_eq!(problems(&flags(&redis)), [problem]);
}

mod limits {
    use super::*;

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

mod rules {
    use super::*;

    const URL: &str = "https://rules.example/edge.yaml";

    #[test]
    fn rules_path_with_a_scheme_is_a_url() {
        let settings = load(&[("rules.path", URL), ("rules.url.interval", "5s")]).unwrap();
        let source = settings.rules.source.described();
        assert_eq!((source.kind, &*source.name), (RuleSourceKind::Url, URL));
        assert!(matches!(load(&[("rules.path", "rules")]).unwrap().rules.source, SourceSettings::Files(_)));
    }

    #[test]
    fn secrets_of_a_rules_url_are_not_shown() {
        let settings = load(&[("rules.path", &format!("{URL}?sig=hush"))]).unwrap();
        let given = settings.given.iter().find(|setting| setting.name == "rules.path").unwrap();
        assert_eq!((given.value.as_str(), given.from), (&*format!("{URL}?(not shown)"), SettingOrigin::Flag));
        assert!(!format!("{settings:?}").contains("hush"));
        let refused = problems(&flags(&[("rules.path", "https://user:secret@host/")]));
        assert!(refused[0].starts_with("--rules: `https://(not shown)` is not allowed"), "{refused:?}");
    }

    #[test]
    fn settings_of_a_rules_url_without_one_are_refused() {
        let without = problems(&flags(&[("rules.url.redirects", "1")]));
        assert_eq!(without, ["rules.url.redirects needs a URL in rules.path, which is not set"]);
    }

    #[test]
    fn settings_of_a_rules_url_that_disagree_are_refused() {
        let of = |more: &[(&str, &str)]| problems(&flags(more));
        let half = of(&[("rules.path", URL), ("rules.url.cert", "a.pem")]);
        assert_eq!(half, ["rules.url.cert needs rules.url.key, which is not set"]);
        let plain = of(&[("rules.path", "http://127.0.0.1:1/"), ("rules.url.ca", "a.pem")]);
        assert_eq!(plain, ["rules.url.ca needs https:// in rules.path"]);
        let far = of(&[("rules.path", "http://rules.example/")]);
        assert!(far[0].starts_with("rules.path: http://rules.example/ needs https://"), "{far:?}");
        assert!(load(&[("rules.path", "http://rules.example/"), ("rules.url.plaintext", "true")]).is_ok());
        let soon = of(&[("rules.path", URL), ("rules.url.interval", "999ms")]);
        assert!(soon[0].starts_with("--rules-url-interval: `999ms` is not allowed"), "{soon:?}");
    }
}

mod shared_counters {
    use super::*;
    use crate::settings::sources::SettingsSources;

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
