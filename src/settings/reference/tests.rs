//! The variables of envoyproxy/ratelimit, from the environment to the settings.

use tollgate_shared_store::PasswordSource;

use super::*;
use tollgate_sources::SourceSettings;

use crate::settings::{
    Settings,
    sources::{SettingsError, SettingsSources},
    value_type::Setting,
};

fn load(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    SettingsSources { environment, reads_reference: true, ..SettingsSources::default() }.load()
}

fn shown(settings: &Settings, name: &str) -> String {
    settings.given.iter().find(|given| given.name == name).unwrap().value.clone()
}

#[test]
fn every_setting_of_the_table_exists() {
    let mut rules: Vec<&VariableSyntax> = VARIABLES.iter().map(|(_, rule)| rule).collect();
    while let Some(rule) = rules.pop() {
        match rule {
            VariableSyntax::Same(setting)
            | VariableSyntax::Converted(setting, _)
            | VariableSyntax::With(_, setting) => {
                assert!(Setting::named(setting).is_some(), "{setting}");
            }
            VariableSyntax::Redis(rule) => rules.push(rule),
            VariableSyntax::Login(_) | VariableSyntax::Joined | VariableSyntax::Nothing(_) => {}
        }
    }
}

/// The rows of the tables in the migration page: the variables in the first cell, and the cell about `--compat`.
fn documented() -> Vec<(Vec<&'static str>, &'static str)> {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/migrating.md"));
    let (_, tables) = page.split_once("## Each environment variable").unwrap();
    let (tables, _) = tables.split_once("### Commands").unwrap();
    let is_variable = |name: &&str| {
        name.len() > 3 && name.chars().all(|letter| letter == '_' || letter.is_ascii_uppercase())
    };
    let rows = tables.lines().filter(|line| line.starts_with("| `")).map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].split('`').filter(is_variable).collect(), cells[3])
    });
    rows.collect()
}

#[test]
fn every_variable_of_the_migration_page_is_known() {
    let named: Vec<&str> = documented().into_iter().flat_map(|(names, _)| names).collect();
    assert!(named.len() > 80, "{}", named.len());
    for name in &named {
        let is_known = VARIABLES.iter().any(|(known, _)| known == name)
            || PREFIXES.iter().any(|(prefix, _)| name.starts_with(prefix));
        assert!(is_known, "{name}");
    }
    for (known, _) in VARIABLES {
        assert!(named.contains(known), "{known} is not on the page");
    }
}

#[test]
fn migration_page_says_which_variables_have_an_effect() {
    for (names, compat) in documented() {
        for name in names {
            let mut rule = VARIABLES.iter().find(|(known, _)| *known == name).map(|(_, rule)| rule);
            while let Some(VariableSyntax::Redis(inner)) = rule {
                rule = Some(inner);
            }
            let is_read = !matches!(rule, None | Some(VariableSyntax::Nothing(_)));
            assert_eq!(compat, if is_read { "yes" } else { "no" }, "{name}");
        }
    }
}

#[test]
fn nothing_given_has_ports_and_paths_of_the_reference() {
    let settings = load(&[]).unwrap();
    assert_eq!(shown(&settings, "rules.path"), "/srv/runtime_data/current/config");
    assert_eq!(shown(&settings, "http.listen"), "0.0.0.0:8080");
    assert_eq!(shown(&settings, "grpc.listen"), "0.0.0.0:8081");
    assert!(settings.rules.required && settings.sections.metrics.reference_names);
    assert!(!settings.rules.path_must_exist, "the directory may be mounted later");
    assert!(settings.without_effect.is_empty());
}

#[test]
fn variables_set_settings_and_own_variables_win() {
    let settings = load(&[
        ("HOST", "localhost"),
        ("GRPC_PORT", "18081"),
        ("GRPC_HOST", "::"),
        ("DEBUG_PORT", "16070"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("GRPC_MAX_CONNECTION_AGE", "24h"),
        ("LOG_LEVEL", "WARNING"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "T"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("SHADOW_MODE", "1"),
        ("QUOTA_MODE", ""),
        ("RUNTIME_ROOT", "/data/"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("TOLLGATE_METRICS__LISTEN", "127.0.0.1:1"),
    ])
    .unwrap();
    for (name, value) in [
        ("http.listen", "127.0.0.1:8080"),
        ("grpc.listen", "[::]:18081"),
        ("admin.listen", "127.0.0.1:16070"),
        ("metrics.listen", "127.0.0.1:1"),
        ("grpc.max_connection_age", "24h"),
        ("log.level", "warn"),
        ("headers.ratelimit", "true"),
        ("headers.reset_name", "x-reset"),
        ("limiter.shadow_mode", "true"),
        ("limiter.quota_mode", "false"),
        ("rules.path", "/data/ratelimit/config"),
    ] {
        assert_eq!(shown(&settings, name), value, "{name}");
    }
}

#[test]
fn control_plane_is_read_with_certificates_only_if_tls_is_on() {
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:Bearer x"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10000000"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let client = |more: &[(&str, &str)]| {
        let settings = load(&[&variables, more].concat()).unwrap();
        assert!(!settings.rules.required);
        match settings.rules.source {
            SourceSettings::Xds(client, None) => (*client, settings.without_effect),
            other => panic!("{other:?}"),
        }
    };
    let (plain, without_effect) = client(&[]);
    assert_eq!((&*plain.url, &*plain.node_id), ("http://envoy-gateway:18001", "default"));
    assert_eq!((plain.tls, plain.message_bytes_max), (Default::default(), 10_000_000));
    assert_eq!(plain.headers, [("authorization".to_owned(), "Bearer x".to_owned())]);
    assert!(without_effect.iter().any(|named| named.starts_with("CONFIG_GRPC_XDS_CLIENT_TLS_CERT (")));
    let (secured, _) = client(&[("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")]);
    assert_eq!(secured.url, "https://envoy-gateway:18001");
    assert_eq!(secured.tls.client, Some(("/certs/tls.crt".into(), "/certs/tls.key".into())));
}

#[test]
fn variables_of_redis_make_it_the_store() {
    let sentinels =
        [("REDIS_URL", "mymaster,a:26379,b:26379"), ("REDIS_TYPE", "SENTINEL"), ("REDIS_TLS", "true")];
    let own = ("TOLLGATE_STORE__KIND", "redis");
    for more in [&[][..], &[("BACKEND_TYPE", "redis")], &[own], &[own, ("BACKEND_TYPE", "memcache")]] {
        let settings = load(&[&sentinels, more].concat()).unwrap();
        let store = settings.shared_store.unwrap();
        assert_eq!(store.urls, ["rediss://a:26379", "rediss://b:26379"]);
        assert_eq!(store.mode, tollgate_shared_store::StoreMode::Sentinel { service: "mymaster".to_owned() });
        assert_eq!(settings.backend.unwrap().backend, Backend::Redis);
        assert_eq!(settings.without_effect, [""; 0]);
    }
    let given = load(&sentinels).unwrap().given;
    let kind = given.iter().find(|given| given.name == "store.kind").unwrap();
    assert_eq!((&*kind.value, kind.from), ("redis", crate::api::admin::SettingOrigin::Reference));
    let cluster = load(&[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "Cluster"), ("REDIS_SOCKET_TYPE", "tcp")]);
    let store = cluster.unwrap().shared_store.unwrap();
    assert_eq!((store.mode, store.urls.len()), (tollgate_shared_store::StoreMode::Cluster, 2));
    let database = load(&[("REDIS_URL", "redis://a:1/3"), ("REDIS_TLS", "1")]).unwrap().shared_store.unwrap();
    assert_eq!(database.urls, ["rediss://a:1/3"]);
}

#[test]
fn own_settings_and_invalid_names_keep_counters_in_memory() {
    const REDIS: (&str, &str) = ("REDIS_URL", "redis:6379");
    const CLUSTER: (&str, &str) = ("TOLLGATE_CLUSTER__LISTEN", "127.0.0.1:1");
    const SECRET: (&str, &str) = ("TOLLGATE_CLUSTER__SECRET_FILE", "/run/secret");
    const MEMORY: (&str, &str) = ("TOLLGATE_STORE__KIND", "memory");
    for (variables, backend, reason) in [
        (&[][..], Backend::Memory, "REDIS_URL is not set"),
        (&[REDIS, MEMORY], Backend::Memory, "store.kind is memory"),
        (&[("BACKEND_TYPE", "memcache"), MEMORY], Backend::Memory, "store.kind is memory"),
        (&[REDIS, ("REDIS_TYPE", "ring"), MEMORY], Backend::Memory, "store.kind is memory"),
        (&[REDIS, ("REDIS_SOCKET_TYPE", "unix"), CLUSTER, SECRET], Backend::Cluster, "cluster.listen is set"),
        (&[REDIS, CLUSTER, SECRET, MEMORY], Backend::Cluster, "store.kind is memory"),
        (&[("REDIS_URL", "redis.invalid:6379")], Backend::Memory, "the host of REDIS_URL is below .invalid"),
        (&[("REDIS_URL", "rediss://u:p@Redis.INVALID./1")], Backend::Memory, "the host of REDIS_URL"),
        (&[("REDIS_URL", "invalid,a.invalid:1")], Backend::Memory, "the host of REDIS_URL"),
        (
            &[("REDIS_URL", "m,a.invalid:1,b.invalid:1"), ("REDIS_TYPE", "sentinel")],
            Backend::Memory,
            "the host of REDIS_URL",
        ),
    ] {
        let settings = load(variables).unwrap();
        let choice = settings.backend.unwrap();
        assert!(settings.shared_store.is_none(), "{variables:?}");
        assert_eq!(choice.backend, backend, "{variables:?}");
        assert!(choice.reason.starts_with(reason), "{choice:?}");
        assert_eq!(choice.alone().is_some(), backend == Backend::Memory);
        for (variable, _) in variables.iter().filter(|(name, _)| !name.starts_with("TOLLGATE_")) {
            let named = settings.without_effect.iter().find(|named| named.starts_with(variable)).unwrap();
            assert!(named.contains(choice.reason), "{named}");
        }
    }
    for url in ["redis.invalid.example:6379", "notinvalid:6379", "a.invalid:1,b:1"] {
        assert!(load(&[("REDIS_URL", url)]).unwrap().shared_store.is_some(), "{url}");
    }
}

#[test]
fn store_that_cannot_be_used_ends_the_start_with_ways_out() {
    for variables in [
        &[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "a:11211")][..],
        &[("BACKEND_TYPE", "Redis"), ("REDIS_URL", "redis:6379")],
        &[("BACKEND_TYPE", "redis")],
        &[("REDIS_TYPE", "ring"), ("REDIS_URL", "redis:6379")],
        &[("REDIS_URL", "/var/run/nutcracker/ratelimit.sock")],
        &[("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", "redis:6379")],
    ] {
        let problem = load(variables).unwrap_err().to_string();
        assert!(problem.starts_with(variables[0].0), "{problem}");
        let ways = ["REDIS_URL as HOST:PORT", "TOLLGATE_CLUSTER__LISTEN", "TOLLGATE_STORE__KIND=memory"];
        assert!(ways.iter().all(|way| problem.contains(way)), "{problem}");
    }
    let only_service = load(&[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "mymaster")]).unwrap_err();
    assert!(only_service.to_string().contains("NAME,HOST:PORT"), "{only_service}");
}

#[test]
fn settings_of_memory_beside_redis_url_name_the_variable() {
    for (own, value) in [("TOLLGATE_STORE__SNAPSHOT", "s"), ("TOLLGATE_RLQS__ENABLED", "true")] {
        let problem = load(&[("REDIS_URL", "redis:6379"), (own, value)]).unwrap_err().to_string();
        let ways = "store.kind redis, which REDIS_URL stands for unless TOLLGATE_STORE__KIND is memory";
        assert!(problem.contains(ways), "{problem}");
    }
}

#[test]
fn login_in_address_of_redis_is_read_and_not_shown() {
    let (store, _) = redis(&[("REDIS_URL", "redis://ann:hush@redis:6379/1")]);
    assert_eq!((store.username.as_deref(), store.passwords.server), (Some("ann"), text("hush")));
    assert_eq!(store.urls, ["redis://redis:6379/1"]);
    let (store, _) = redis(&[("REDIS_URL", "redis://:hush@redis:6379"), ("REDIS_AUTH", "bob:hush2")]);
    assert_eq!((store.username.as_deref(), store.passwords.server), (Some("bob"), text("hush2")));
}

/// The shared store of these variables, and the variables without effect.
fn redis(variables: &[(&str, &str)]) -> (tollgate_shared_store::SharedStoreSettings, Vec<String>) {
    let is_named = variables.iter().any(|(name, _)| *name == "REDIS_URL");
    let server = [("REDIS_URL", "redis:6379")];
    let settings = load(&[if is_named { &[][..] } else { &server }, variables].concat()).unwrap();
    assert!(!format!("{settings:?}").contains("hush"), "a password is shown");
    (settings.shared_store.unwrap(), settings.without_effect)
}

fn text(password: &str) -> Option<PasswordSource> {
    Some(PasswordSource::Text(password.to_owned()))
}

#[test]
fn logins_of_redis_are_read_and_not_shown() {
    for (login, user, password) in
        [("hush", None, "hush"), (":hush", None, "hush"), ("ann:hush:1", Some("ann"), "hush:1")]
    {
        let (store, without_effect) = redis(&[("REDIS_AUTH", login)]);
        assert_eq!((store.username.as_deref(), store.passwords.server), (user, text(password)));
        assert!(without_effect.is_empty(), "{without_effect:?}");
        let (store, _) = redis(&[("REDIS_SENTINEL_AUTH", login)]);
        assert_eq!((store.sentinel_username.as_deref(), store.passwords.sentinel), (user, text(password)));
    }
}

#[test]
fn own_password_file_wins_over_whole_login() {
    let files = [
        ("TOLLGATE_STORE__REDIS__PASSWORD_FILE", "/server"),
        ("TOLLGATE_STORE__REDIS__SENTINEL_PASSWORD_FILE", "/sentinel"),
    ];
    let logins = [("REDIS_AUTH", "ann:hush"), ("REDIS_SENTINEL_AUTH", "ann:hush")];
    let (store, without_effect) = redis(&[&files[..], &logins].concat());
    let file = |path: &str| Some(PasswordSource::File(path.into()));
    assert_eq!((store.passwords.server, store.passwords.sentinel), (file("/server"), file("/sentinel")));
    assert_eq!((store.username, store.sentinel_username), (None, None));
    assert_eq!(
        without_effect,
        [
            "REDIS_AUTH (store.redis.password_file has the password)",
            "REDIS_SENTINEL_AUTH (store.redis.sentinel_password_file has the password)",
        ]
    );
}

#[test]
fn password_is_in_no_message() {
    for (variable, value) in [
        ("REDIS_AUTH", "hush:"),
        ("REDIS_AUTH", "the hush:hush"),
        ("REDIS_SENTINEL_AUTH", ":"),
        ("REDIS_URL", "redis://:hu%73h@redis:6379"),
        ("REDIS_URL", "ann:hush@redis:6379"),
    ] {
        let given = [("REDIS_URL", "redis:6379"), (variable, value)];
        let given = if variable == "REDIS_URL" { &given[1..] } else { &given[..] };
        let problem = load(given).unwrap_err().to_string();
        assert!(problem.contains(variable) && !problem.contains("hush"), "{problem}");
    }
    let (_, without_effect) = redis(&[("REDIS_PERSECOND_AUTH", "hush")]);
    assert_eq!(without_effect, ["REDIS_PERSECOND_AUTH (all counters are in one store)"]);
    let without_redis = load(&[("REDIS_AUTH", "hush")]).unwrap().without_effect;
    assert_eq!(without_redis, ["REDIS_AUTH (counters are in memory: REDIS_URL is not set)"]);
}

#[test]
fn timeout_and_pool_of_redis_are_kept_within_bounds() {
    for (given, seconds) in [("250ms", 0.25), ("10s", 10.0), ("2m", 60.0), ("0s", 60.0), ("10us", 0.001)] {
        let (store, without_effect) = redis(&[("REDIS_TIMEOUT", given)]);
        assert_eq!((store.timeout.as_secs_f64(), without_effect.len()), (seconds, 0), "{given}");
    }
    for (given, connections) in [("1", 1), ("10", 10), ("200", 64)] {
        assert_eq!(redis(&[("REDIS_POOL_SIZE", given)]).0.connections, connections);
    }
}

#[test]
fn wrong_value_is_an_error_with_its_variable() {
    for (variable, value) in [
        ("CONFIG_TYPE", "CONSUL"),
        ("SHADOW_MODE", "on"),
        ("PROMETHEUS_ADDR", "9090"),
        ("LOG_LEVEL", "loud"),
        ("GRPC_MAX_CONNECTION_AGE", "soon"),
        ("PORT", "eighty"),
        ("REDIS_TIMEOUT", "soon"),
        ("REDIS_TLS", "maybe"),
        ("GRPC_SERVER_USE_TLS", "maybe"),
        ("REDIS_POOL_SIZE", "0"),
    ] {
        let redis = [("REDIS_URL", "redis:6379")];
        let problem = load(&[&redis[..], &[(variable, value)]].concat()).unwrap_err().to_string();
        assert!(problem.contains(variable) && problem.contains(value), "{problem}");
    }
}

#[test]
fn variables_are_ignored_unless_the_program_stands_in() {
    let environment = vec![("SHADOW_MODE".to_owned(), "true".to_owned())];
    let flags = vec![(Setting::named("rules.path").unwrap(), "r".to_owned())];
    let settings = SettingsSources { environment, flags, ..SettingsSources::default() }.load().unwrap();
    assert_eq!(shown(&settings, "limiter.shadow_mode"), "false");
}
