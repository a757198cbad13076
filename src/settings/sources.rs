//! The sources of settings and the errors in them.

use std::{io, path::PathBuf};

use tollgate_limiter::{
    files,
    shared_store::{PasswordSource, PasswordSources},
    yaml::{self, Mark, Node, Pair, Value},
};

use crate::{
    api::admin::{EffectiveSetting, Origin},
    settings::{
        CATALOG, Setting, Settings,
        catalog::Draft,
        otel,
        reference::{self, Given, Own, Translation},
        value_type::StoreKind,
    },
};

/// The sources of settings; each overrides the previous ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The path of a settings file, in YAML: sections with settings.
    pub file: Option<PathBuf>,
    /// Environment variables and their values. Only `TOLLGATE_<SECTION>__<NAME>`, the variables of OpenTelemetry and,
    /// if `compat` says so, those of another server are read.
    pub environment: Vec<(String, String)>,
    /// The server whose variables are read too.
    pub compat: Option<Compat>,
    /// Settings from flags and their values.
    pub flags: Vec<(&'static Setting, String)>,
}

/// A server in whose place this program can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// envoyproxy/ratelimit.
    EnvoyRatelimit,
}

/// An error in the settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings file cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// One or more invalid settings; each line names the source and the accepted values.
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
}

/// The environment of this process.
#[expect(clippy::disallowed_methods, reason = "settings are what reads the environment")]
pub fn environment() -> Vec<(String, String)> {
    // A variable that is not UTF-8 cannot be a setting.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl Sources {
    /// Loads the settings, or reports the problems of all sources.
    pub fn load(&self) -> Result<Settings, Error> {
        let mut loading = Loading::default();
        self.load_file(&mut loading)?;
        self.load_environment(&mut loading);
        let flag = |setting: &Setting| format!("--{}", setting.flag());
        for (setting, value) in &self.flags {
            loading.set(Origin::Flag, &flag(setting), flag, setting.name, value);
        }
        let Translation { without_effect, passwords, .. } = self.load_reference(&mut loading);
        let traces = otel::traces(&self.environment).unwrap_or_else(|problem| {
            loading.problems.push(problem);
            None
        });
        let Loading { draft, given, problems } = loading;
        if !problems.is_empty() {
            return Err(Error::Wrong(problems));
        }
        let mut settings = draft.settings(given).map_err(Error::Wrong)?;
        for (setting, given) in CATALOG.iter().zip(&mut settings.given) {
            given.value = setting.shown(&given.value);
        }
        if let Some(store) = &mut settings.shared_store {
            let PasswordSources { server, sentinel, .. } = &mut store.passwords;
            // The reference gives no password where a file has one.
            for (source, given) in [(server, passwords.server), (sentinel, passwords.sentinel)] {
                *source = source.take().or(given.map(PasswordSource::Text));
            }
        }
        Ok(Settings { traces, without_effect, ..settings })
    }

    fn load_file(&self, loading: &mut Loading) -> Result<(), Error> {
        let Some(path) = &self.file else { return Ok(()) };
        let bytes = files::read(path, yaml::BYTES_MAX as u64)
            .map_err(|error| Error::Unreadable { path: path.clone(), error })?;
        let stream = yaml::load(&bytes);
        let place = |mark: Mark| format!("{}:{}:{}", path.display(), mark.line, mark.column);
        let problems = stream.problems.iter();
        loading.problems.extend(problems.map(|problem| format!("{}: {}", place(problem.mark), problem.what)));
        for document in &stream.documents {
            for section in loading.pairs(document, &place) {
                let settings = loading.pairs(&section.value, &place);
                if settings.is_empty() && !is_section(&section.key) {
                    loading.problems.push(format!(
                        "{}: no such section: {}",
                        place(section.mark),
                        section.key
                    ));
                }
                loading.section(&section.key, settings, &place);
            }
        }
        Ok(())
    }

    fn load_environment(&self, loading: &mut Loading) {
        for (variable, value) in &self.environment {
            // A variable without the double underscore is not a setting: Kubernetes defines such variables for a
            // Service.
            let name = variable.strip_prefix("TOLLGATE_").filter(|name| name.contains("__"));
            if let Some(name) = name {
                let name = name.replace("__", ".").to_lowercase();
                loading.set(Origin::Environment, variable, Setting::variable, &name, value);
            }
        }
    }

    /// Reads the variables of another server, which override defaults only.
    fn load_reference(&self, loading: &mut Loading) -> Translation {
        match self.compat {
            None => Translation::default(),
            Some(Compat::EnvoyRatelimit) => {
                let Draft { store, redis, .. } = &loading.draft;
                let own = Own {
                    is_redis: store.kind == StoreKind::Redis,
                    has_password_file: redis.password_file.is_some(),
                    has_sentinel_password_file: redis.sentinel_password_file.is_some(),
                };
                let mut translation = reference::translate(&self.environment, own);
                loading.problems.append(&mut translation.problems);
                for Given { setting, value, variable } in &translation.settings {
                    loading.set(Origin::Reference, variable, |_| variable.clone(), setting, value);
                }
                translation
            }
        }
    }
}

/// The settings read so far. Each source overrides those that were read before, except the reference.
struct Loading {
    draft: Draft,
    // Invariant: in the order of the catalog.
    given: Vec<EffectiveSetting>,
    problems: Vec<String>,
}

impl Default for Loading {
    fn default() -> Self {
        let given = CATALOG.iter().map(|Setting { name, default, .. }| EffectiveSetting {
            name,
            value: (*default).to_owned(),
            from: Origin::Default,
        });
        Self { draft: Draft::defaults(), given: given.collect(), problems: Vec::new() }
    }
}

impl Loading {
    /// The pairs of a mapping in a settings file; empty for null.
    fn pairs<'n>(&mut self, node: &'n Node<'n>, place: &impl Fn(Mark) -> String) -> &'n [Pair<'n>] {
        match &node.value {
            Value::Mapping(pairs) => pairs,
            Value::Unreadable => &[],
            Value::Scalar(_) if node.is_null() => &[],
            Value::Scalar(_) | Value::List(_) => {
                let what = node.describe();
                self.problems
                    .push(format!("{}: {what} where sections of settings are expected", place(node.mark)));
                &[]
            }
        }
    }

    /// The settings of a section in a settings file, and of the sections in it.
    fn section(&mut self, section: &str, settings: &[Pair<'_>], place: &impl Fn(Mark) -> String) {
        for setting in settings {
            let name = format!("{section}.{}", setting.key);
            let written = |setting: &Setting| setting.name.to_owned();
            match &setting.value.value {
                Value::Scalar(scalar) => {
                    self.set(Origin::File, &place(setting.mark), written, &name, &scalar.text);
                }
                Value::Mapping(settings) if is_section(&name) => self.section(&name, settings, place),
                Value::List(_) | Value::Mapping(_) => {
                    let what = setting.value.describe();
                    self.problems.push(format!("{}: {name} cannot be {what}", place(setting.mark)));
                }
                Value::Unreadable => {}
            }
        }
    }

    /// Sets the setting `name`, if it and its value are valid. `place` is where it was set; `written` formats the name
    /// of a setting for this source.
    fn set(
        &mut self,
        from: Origin,
        place: &str,
        written: impl Fn(&Setting) -> String,
        name: &str,
        value: &str,
    ) {
        let Some((setting, given)) =
            CATALOG.iter().zip(&mut self.given).find(|(known, _)| known.name == name)
        else {
            let near = CATALOG.iter().max_by(|one, other| {
                strsim::jaro_winkler(one.name, name).total_cmp(&strsim::jaro_winkler(other.name, name))
            });
            let near =
                near.map(|setting| format!("; the nearest is {}", written(setting))).unwrap_or_default();
            self.problems.push(format!("{place}: no such setting{near}"));
            return;
        };
        let is_overridden =
            from == Origin::Reference && !matches!(given.from, Origin::Default | Origin::Reference);
        // A value without effect must be valid nevertheless.
        let draft = if is_overridden { &mut Draft::defaults() } else { &mut self.draft };
        if draft.set(setting, value).is_none() {
            let expected = setting.value_type().expected;
            let shown = setting.shown(value);
            self.problems.push(format!("{place}: `{shown}` is not allowed; {expected} is"));
        } else if !is_overridden {
            *given = EffectiveSetting { name: setting.name, value: value.to_owned(), from };
        }
    }
}

/// Whether settings have names that begin with this section.
fn is_section(section: &str) -> bool {
    CATALOG.iter().any(|setting| setting.name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use tempfile::NamedTempFile;

    use super::*;
    use crate::settings::tests::{flags, load, problems};

    /// A settings file, and the sources that read it.
    fn with_file(text: &str) -> (NamedTempFile, Sources) {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let sources = Sources { file: Some(file.path().to_owned()), ..flags(&[]) };
        (file, sources)
    }

    fn with_environment(variables: &[(&str, &str)]) -> Sources {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Sources { environment: variables.iter().map(owned).collect(), ..flags(&[]) }
    }

    #[test]
    fn default_of_every_setting_is_valid() {
        assert_eq!(load(&[]).unwrap().grpc.listen.to_string(), "0.0.0.0:8081");
    }

    #[test]
    fn value_has_the_origin_that_overrides_the_others() {
        let (_file, sources) = with_file("drain:\n  delay: 1s\n  timeout: 10s\nlog:\n  level: debug\n");
        let variables = [("TOLLGATE_DRAIN__DELAY", "2s"), ("TOLLGATE_DRAIN__TIMEOUT", "20s")];
        let Sources { environment, .. } = with_environment(&variables);
        let flags = flags(&[("drain.delay", "3s")]).flags;
        let settings = Sources { flags, environment, ..sources }.load().unwrap();
        let crate::settings::Drain { delay, timeout } = settings.drain;
        assert_eq!((delay, timeout), (Duration::from_secs(3), Duration::from_secs(20)));
        assert_eq!(settings.log.level, "debug");
        let of = |name: &str| {
            let setting = settings.given.iter().find(|setting| setting.name == name).unwrap();
            (setting.from, setting.value.as_str())
        };
        assert_eq!(of("drain.delay"), (Origin::Flag, "3s"));
        assert_eq!(of("drain.timeout"), (Origin::Environment, "20s"));
        assert_eq!(of("log.level"), (Origin::File, "debug"));
        assert_eq!(of("log.format"), (Origin::Default, "text"));
        assert_eq!(settings.given.len(), CATALOG.len());
    }

    #[test]
    fn variable_without_double_underscore_is_ignored() {
        assert!(with_environment(&[("TOLLGATE_PORT", "tcp://10.0.0.1:8081")]).load().is_ok());
    }

    #[test]
    fn unknown_setting_is_reported_with_source_and_nearest_name() {
        let (file, sources) = with_file("grpc:\n  listn: 127.0.0.1:1\n");
        let Sources { environment, .. } = with_environment(&[("TOLLGATE_DRAIN__DELY", "2s")]);
        assert_eq!(
            problems(&Sources { environment, ..sources }),
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
        assert_eq!((headers.value.as_str(), headers.from), ("(not shown)", Origin::Flag));
    }

    #[test]
    fn word_that_is_not_a_level_is_refused_as_log_filter() {
        for (level, allowed) in [
            ("info,tollgate_limiter::rules=debug", true),
            ("off", true),
            ("inof", false),
            ("tollgate[call]=debug", false),
            ("", false),
        ] {
            assert_eq!(load(&[("log.level", level)]).is_ok(), allowed, "{level}");
        }
    }

    #[test]
    fn missing_required_setting_is_reported() {
        let problems = problems(&Sources::default());
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
}
