use std::{io::Write, time::Duration};

use tempfile::NamedTempFile;

use super::*;
use crate::settings::tests::{flags, load, problems};

/// A settings file, and the sources that read it.
fn with_file(text: &str) -> (NamedTempFile, SettingsSources) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let sources = SettingsSources { file: Some(file.path().to_owned()), ..flags(&[]) };
    (file, sources)
}

fn with_environment(variables: &[(&str, &str)]) -> SettingsSources {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    SettingsSources { environment: variables.iter().map(owned).collect(), ..flags(&[]) }
}

#[test]
fn default_of_every_setting_is_valid() {
    assert_eq!(load(&[]).unwrap().sections.grpc.listen.to_string(), "0.0.0.0:8081");
}

#[test]
fn value_has_the_origin_that_overrides_the_others() {
    let (_file, sources) = with_file("drain:\n  delay: 1s\n  timeout: 10s\nlog:\n  level: debug\n");
    let variables = [("TOLLGATE_DRAIN__DELAY", "2s"), ("TOLLGATE_DRAIN__TIMEOUT", "20s")];
    let SettingsSources { environment, .. } = with_environment(&variables);
    let flags = flags(&[("drain.delay", "3s")]).flags;
    let settings = SettingsSources { flags, environment, ..sources }.load().unwrap();
    let crate::settings::Drain { delay, timeout } = settings.sections.drain;
    assert_eq!((delay, timeout), (Duration::from_secs(3), Duration::from_secs(20)));
    assert_eq!(settings.sections.log.level, "debug");
    let of = |name: &str| {
        let setting = settings.given.iter().find(|setting| setting.name == name).unwrap();
        (setting.from, setting.value.as_str())
    };
    assert_eq!(of("drain.delay"), (SettingOrigin::Flag, "3s"));
    assert_eq!(of("drain.timeout"), (SettingOrigin::Environment, "20s"));
    assert_eq!(of("log.level"), (SettingOrigin::File, "debug"));
    assert_eq!(of("log.format"), (SettingOrigin::Default, "text"));
    assert_eq!(settings.given.len(), CATALOG.len());
}

#[test]
fn variable_without_double_underscore_is_ignored() {
    assert!(with_environment(&[("TOLLGATE_PORT", "tcp://10.0.0.1:8081")]).load().is_ok());
}

#[test]
fn unknown_setting_is_reported_with_source_and_nearest_name() {
    let (file, sources) = with_file("grpc:\n  listn: 127.0.0.1:1\n");
    let SettingsSources { environment, .. } = with_environment(&[("TOLLGATE_DRAIN__DELY", "2s")]);
    assert_eq!(
        problems(&SettingsSources { environment, ..sources }),
        [
            format!("{}:2:3: no such setting; the nearest is grpc.listen", file.path().display()),
            "TOLLGATE_DRAIN__DELY: no such setting; the nearest is TOLLGATE_DRAIN__DELAY".to_owned(),
        ]
    );
}

#[test]
fn invalid_value_is_reported_with_accepted_values() {
    let problems = problems(&flags(&[
        ("grpc.listen", "8081"),
        ("drain.delay", "-1s"),
        ("api.exact_reset", "yes"),
        ("log.format", "xml"),
    ]));
    assert_eq!(problems.len(), 4);
    assert!(problems[0].starts_with("--grpc-listen: `8081` is not allowed; an IP address and a port"));
    assert!(problems[3].ends_with("one of text, json is"));
}

#[test]
fn incomplete_certificates_are_reported_with_missing_parts() {
    assert_eq!(
        problems(&flags(&[("grpc.tls_cert", "a.pem"), ("http.tls_client_san", "edge.example")])),
        [
            "grpc.tls_cert needs grpc.tls_key, which is not set",
            "http.tls_client_san needs http.tls_client_ca, which is not set",
        ]
    );
}

#[test]
fn opentelemetry_variables_configure_traces() {
    let sources = |endpoint| with_environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
    let traces = sources("http://127.0.0.1:4317").load().unwrap().traces;
    assert_eq!(traces.unwrap().endpoint, "http://127.0.0.1:4317");
    assert!(problems(&sources("collector"))[0].starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: `collector`"));
    assert_eq!(load(&[]).unwrap().traces, None);
}

#[test]
fn drain_delay_beyond_drain_timeout_is_refused() {
    let problems = problems(&flags(&[("drain.delay", "26s")]));
    assert!(problems[0].contains("drain.delay is longer than drain.timeout"), "{problems:?}");
}

#[test]
fn admin_listener_beyond_loopback_needs_token_file() {
    for listen in ["0.0.0.0:6070", "10.1.2.3:6070", "[::]:6070", "[2001:db8::1]:6070"] {
        let problems = problems(&flags(&[("admin.listen", listen)]));
        assert!(problems[0].starts_with("admin.listen: "), "{problems:?}");
        assert!(problems[0].contains("admin.token_file must be set"), "{problems:?}");
        assert!(load(&[("admin.listen", listen), ("admin.token_file", "/run/token")]).is_ok());
    }
    for listen in ["127.0.0.1:6070", "127.8.9.1:6070", "[::1]:6070", "[::ffff:127.0.0.1]:6070"] {
        assert!(load(&[("admin.listen", listen)]).is_ok(), "{listen}");
    }
}

#[test]
fn secret_setting_is_recognised_by_name_and_path_is_not() {
    let named = |name| Setting { name, ..CATALOG[0] };
    assert!(named("admin.token").is_secret() && named("store.password").is_secret());
    assert!(!named("admin.token_file").is_secret() && !named("admin.listen").is_secret());
}

#[test]
fn secret_value_is_not_shown() {
    let xds = [("rules.source", "xds"), ("rules.xds.url", "http://a:1"), ("rules.xds.headers", "a=b")];
    let given = load(&xds).unwrap().given;
    let headers = given.iter().find(|setting| setting.name == "rules.xds.headers").unwrap();
    assert_eq!((headers.value.as_str(), headers.from), ("(not shown)", SettingOrigin::Flag));
}

#[test]
fn word_that_is_not_a_level_is_refused_as_log_filter() {
    for (level, allowed) in [
        ("info,tollgate_rules=debug", true),
        ("off", true),
        ("inof", false),
        ("tollgate[call]=debug", false),
        ("tollgate=", false),
        ("=debug", false),
        ("", false),
    ] {
        assert_eq!(load(&[("log.level", level)]).is_ok(), allowed, "{level}");
    }
}

#[test]
fn missing_required_setting_is_reported() {
    let problems = problems(&SettingsSources::default());
    assert_eq!(problems, ["rules.path: not set; use --rules, TOLLGATE_RULES__PATH or a settings file"]);
}

#[test]
fn file_without_known_sections_is_refused_with_position() {
    for (text, problem) in [
        ("grpc:\nlogs: {}\n", ":2:1: no such section: logs"),
        ("- a\n", ":1:1: a list where sections of settings are expected"),
    ] {
        let (_file, sources) = with_file(text);
        let problems = problems(&sources);
        assert!(problems.len() == 1 && problems[0].ends_with(problem), "{problems:?}");
    }
}
