//! The sources of settings and the errors in them.

use std::{io, path::PathBuf};

use config::{Config, ConfigError, ValueKind};

use crate::{
    api::admin::{self, Origin},
    files,
    settings::{
        Admin, CATALOG, Drain, Setting, Settings, cluster, otel,
        reference::{self, Given},
        rules, shared_store,
        value_type::{OFF, lacking},
    },
    yaml::{self, Mark, Node, Pair, Value},
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
    /// The settings cannot be deserialized.
    #[error(transparent)]
    Config(#[from] ConfigError),
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
        let mut problems = Problems::default();
        let own = [
            (Origin::File, self.file_layer(&mut problems)?),
            (Origin::Environment, self.environment_layer(&mut problems)),
            (Origin::Flag, self.flag_layer(&mut problems)),
        ];
        let is_redis = own.iter().flat_map(|(_, layer)| layer).any(Written::is_redis);
        let (reference, without_effect) = self.reference_layer(is_redis, &mut problems);
        let defaults = [(Origin::Default, defaults(&mut problems)), (Origin::Reference, reference)];
        let layers: Vec<_> = defaults.into_iter().chain(own).collect();
        let effective: Vec<_> = CATALOG.iter().filter_map(|setting| last(&layers, setting)).collect();
        let traces = otel::traces(&self.environment).unwrap_or_else(|problem| {
            problems.0.push(problem);
            None
        });
        problems.none()?;
        let text = |name: &str| {
            let written = effective.iter().find(|(_, written)| written.setting.name == name);
            written.map_or(OFF, |(_, written)| &written.text)
        };
        let mut problems = Problems::default();
        for section in ["grpc.tls_", "http.tls_"] {
            problems.0.extend(lacking(section, &CERTIFICATES, text));
        }
        let is_given = |name: &str| {
            let written = effective.iter().find(|(_, written)| written.setting.name == name);
            written.is_some_and(|(from, _)| !matches!(from, Origin::Default | Origin::Reference))
        };
        problems.0.extend(rules::problems(text, is_given));
        problems.0.extend(lacking("check.", &[("domain", "descriptors"), ("descriptors", "domain")], text));
        problems.0.extend(shared_store::problems(text, is_given));
        if text(shared_store::KIND) != shared_store::REDIS {
            problems.0.extend(cluster::problems(text));
        }
        problems.none()?;
        let mut config = Config::builder();
        for (_, written) in &effective {
            let (name, value) = (written.setting.name, written.value.clone());
            if let Some(name) = shared_store::section_name(name) {
                config = config.set_override(name, value)?;
                continue;
            }
            if let Some(path) = cluster::path(name, |name| text(name) == OFF) {
                config = match path {
                    cluster::Path::Present(path) => config.set_override(path, value)?,
                    cluster::Path::Absent(part) => config.set_override(part, ValueKind::Nil)?,
                };
                continue;
            }
            config = match name.split_once(".tls_") {
                None => config.set_override(name, value)?,
                // A listener without a certificate has no section for it.
                Some((section, _)) if text(&format!("{section}.tls_cert")) == OFF => {
                    config.set_override(format!("{section}.tls"), ValueKind::Nil)?
                }
                Some((section, part)) => config.set_override(format!("{section}.tls.{part}"), value)?,
            };
        }
        let config = config.build()?;
        let shared_store = config.get::<shared_store::Section>(shared_store::SECTION)?;
        let mut settings = Settings { traces, without_effect, ..config.try_deserialize()? };
        let poll_interval = settings.tls.poll_interval;
        let shared_store = shared_store.read(settings.store.memory_limit, poll_interval);
        if let Some(cluster) = &mut settings.cluster {
            cluster.link.trust.poll_interval = poll_interval;
        }
        let settings = Settings { shared_store, ..settings };
        let Admin { listen, token_file, .. } = &settings.admin;
        if token_file.is_none() && !listen.ip().to_canonical().is_loopback() {
            let what = "is not a loopback address, so admin.token_file must be set: admin requests can reset counters";
            return Err(Error::Wrong(vec![format!("admin.listen: {listen} {what}")]));
        }
        let Drain { delay, timeout } = settings.drain;
        if delay > timeout {
            let what = "drain.delay is longer than drain.timeout, which includes it";
            return Err(Error::Wrong(vec![format!("{what}: {delay:?} and {timeout:?}")]));
        }
        Ok(Settings { given: effective.iter().map(shown).collect(), ..settings })
    }

    fn file_layer(&self, problems: &mut Problems) -> Result<Layer, Error> {
        let Some(path) = &self.file else { return Ok(Layer::new()) };
        let bytes = files::read(path, yaml::BYTES_MAX as u64)
            .map_err(|error| Error::Unreadable { path: path.clone(), error })?;
        let stream = yaml::load(&bytes);
        let place = |mark: Mark| format!("{}:{}:{}", path.display(), mark.line, mark.column);
        problems.0.extend(
            stream.problems.iter().map(|problem| format!("{}: {}", place(problem.mark), problem.what)),
        );
        let mut layer = Layer::new();
        let documents = stream.documents.iter();
        let sections: Vec<_> = documents.flat_map(|document| problems.pairs(document, &place)).collect();
        for section in sections {
            let settings = problems.pairs(&section.value, &place);
            let inner = format!("{}.", section.key);
            if settings.is_empty() && !CATALOG.iter().any(|known| known.name.starts_with(&inner)) {
                problems.0.push(format!("{}: no such section: {}", place(section.mark), section.key));
            }
            problems.file_section(&section.key, settings, &place, &mut layer);
        }
        Ok(layer)
    }

    fn environment_layer(&self, problems: &mut Problems) -> Layer {
        let settings = self.environment.iter().filter_map(|(variable, value)| {
            // A variable without the double underscore is not a setting: Kubernetes defines such variables for a
            // Service.
            let (section, name) = variable.strip_prefix("TOLLGATE_")?.split_once("__")?;
            Some((variable, format!("{section}.{name}").replace("__", ".").to_lowercase(), value))
        });
        settings
            .filter_map(|(variable, name, value)| problems.checked(variable, Setting::variable, &name, value))
            .collect()
    }

    /// The variables of another server, and those of them that have no effect.
    fn reference_layer(&self, is_redis: bool, problems: &mut Problems) -> (Layer, Vec<String>) {
        match self.compat {
            None => (Layer::new(), Vec::new()),
            Some(Compat::EnvoyRatelimit) => {
                let translation = reference::translate(&self.environment, is_redis);
                problems.0.extend(translation.problems);
                let settings = translation.settings.iter();
                let checked = settings.filter_map(|Given { setting, value, variable }| {
                    problems.checked(variable, |_| variable.clone(), setting, value)
                });
                (checked.collect(), translation.without_effect)
            }
        }
    }

    fn flag_layer(&self, problems: &mut Problems) -> Layer {
        let flag = |setting: &Setting| format!("--{}", setting.flag());
        let flags = self.flags.iter();
        flags.filter_map(|(set, value)| problems.checked(&flag(set), flag, set.name, value)).collect()
    }
}

/// The settings of a listener's certificates, and what each of them needs.
const CERTIFICATES: [(&str, &str); 4] =
    [("cert", "key"), ("key", "cert"), ("client_ca", "cert"), ("client_san", "client_ca")];

/// A setting as written in a source.
struct Written {
    setting: &'static Setting,
    text: String,
    value: config::Value,
}

impl Written {
    /// Whether this selects counters in Redis.
    fn is_redis(&self) -> bool {
        self.setting.name == shared_store::KIND && self.text == shared_store::REDIS
    }
}

/// The settings of one source.
type Layer = Vec<Written>;

fn defaults(problems: &mut Problems) -> Layer {
    let written = |setting: &Setting| setting.name.to_owned();
    let defaults = CATALOG.iter();
    defaults
        .filter_map(|setting| problems.checked("default", written, setting.name, setting.default))
        .collect()
}

/// The value that counts: the last one of the last layer that has the setting.
fn last<'l>(layers: &'l [(Origin, Layer)], setting: &Setting) -> Option<(Origin, &'l Written)> {
    layers.iter().rev().find_map(|(from, layer)| {
        Some((*from, layer.iter().rev().find(|written| written.setting.name == setting.name)?))
    })
}

fn shown((from, written): &(Origin, &Written)) -> admin::EffectiveSetting {
    let Written { setting, text, .. } = written;
    let value = if setting.is_secret() { "(not shown)".to_owned() } else { text.clone() };
    admin::EffectiveSetting { name: setting.name, value, from: *from }
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    /// The pairs of a mapping in a settings file; empty for null.
    fn pairs<'n>(&mut self, node: &'n Node, place: &impl Fn(Mark) -> String) -> &'n [Pair] {
        match &node.value {
            Value::Mapping(pairs) => pairs,
            Value::Unreadable => &[],
            Value::Scalar(_) if node.is_null() => &[],
            Value::Scalar(_) | Value::List(_) => {
                let what = node.describe();
                self.0.push(format!("{}: {what} where sections of settings are expected", place(node.mark)));
                &[]
            }
        }
    }

    /// The settings of a section in a settings file, and of the sections in it.
    fn file_section(
        &mut self,
        section: &str,
        settings: &[Pair],
        place: &impl Fn(Mark) -> String,
        layer: &mut Layer,
    ) {
        for setting in settings {
            let name = format!("{section}.{}", setting.key);
            let inner = format!("{name}.");
            let written = |setting: &Setting| setting.name.to_owned();
            match &setting.value.value {
                Value::Scalar(scalar) => {
                    layer.extend(self.checked(&place(setting.mark), written, &name, &scalar.text));
                }
                Value::Mapping(settings) if CATALOG.iter().any(|known| known.name.starts_with(&inner)) => {
                    self.file_section(&name, settings, place, layer);
                }
                Value::List(_) | Value::Mapping(_) => {
                    let what = setting.value.describe();
                    self.0.push(format!("{}: {name} cannot be {what}", place(setting.mark)));
                }
                Value::Unreadable => {}
            }
        }
    }

    /// The setting `name` with its value, if both are valid. `place` is where it was set; `written` formats the name
    /// of a setting for this source.
    fn checked(
        &mut self,
        place: &str,
        written: impl Fn(&Setting) -> String,
        name: &str,
        value: &str,
    ) -> Option<Written> {
        let Some(setting) = CATALOG.iter().find(|setting| setting.name == name) else {
            let near = CATALOG.iter().max_by(|one, other| {
                strsim::jaro_winkler(one.name, name).total_cmp(&strsim::jaro_winkler(other.name, name))
            });
            let near =
                near.map(|setting| format!("; the nearest is {}", written(setting))).unwrap_or_default();
            self.0.push(format!("{place}: no such setting{near}"));
            return None;
        };
        let Some(parsed) = setting.value_type.parse(value) else {
            self.0.push(format!("{place}: `{value}` is not allowed; {} is", setting.value_type.expected()));
            return None;
        };
        Some(Written { setting, text: value.to_owned(), value: parsed })
    }

    fn none(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Wrong(self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use tempfile::NamedTempFile;

    use super::*;

    fn file(text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn setting(name: &str) -> &'static Setting {
        CATALOG.iter().find(|setting| setting.name == name).unwrap()
    }

    fn with_rules(mut sources: Sources) -> Sources {
        sources.flags.push((setting("rules.path"), "rules.yaml".to_owned()));
        sources
    }

    fn problems(sources: &Sources) -> Vec<String> {
        match sources.load() {
            Err(Error::Wrong(problems)) => problems,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn default_of_every_setting_is_valid() {
        let settings = with_rules(Sources::default()).load().unwrap();
        assert_eq!(settings.grpc.listen.to_string(), "0.0.0.0:8081");
        assert_eq!(settings.drain.delay, Duration::from_secs(5));
        for setting in CATALOG {
            assert!(setting.value_type.parse(setting.default).is_some(), "{}", setting.name);
        }
    }

    #[test]
    fn flags_override_environment_and_environment_overrides_file() {
        let file = file("drain:\n  delay: 1s\n  timeout: 10s\nlog:\n  level: debug\n");
        let settings = with_rules(Sources {
            file: Some(file.path().to_owned()),
            environment: vec![
                ("TOLLGATE_DRAIN__DELAY".to_owned(), "2s".to_owned()),
                ("TOLLGATE_DRAIN__TIMEOUT".to_owned(), "20s".to_owned()),
            ],
            flags: vec![(setting("drain.delay"), "3s".to_owned())],
            compat: None,
        });
        let settings = settings.load().unwrap();
        assert_eq!(settings.drain.delay, Duration::from_secs(3));
        assert_eq!(settings.drain.timeout, Duration::from_secs(20));
        assert_eq!(settings.log.level, "debug");
    }

    #[test]
    fn variable_without_double_underscore_is_ignored() {
        let environment = vec![("TOLLGATE_PORT".to_owned(), "tcp://10.0.0.1:8081".to_owned())];
        assert!(with_rules(Sources { environment, ..Sources::default() }).load().is_ok());
    }

    #[test]
    fn unknown_setting_is_reported_with_source_and_nearest_name() {
        let file = file("grpc:\n  listn: 127.0.0.1:1\n");
        let path = file.path().display().to_string();
        let environment = vec![("TOLLGATE_DRAIN__DELY".to_owned(), "2s".to_owned())];
        let sources =
            with_rules(Sources { file: Some(file.path().to_owned()), environment, ..Sources::default() });
        assert_eq!(
            problems(&sources),
            [
                format!("{path}:2:3: no such setting; the nearest is grpc.listen"),
                "TOLLGATE_DRAIN__DELY: no such setting; the nearest is TOLLGATE_DRAIN__DELAY".to_owned(),
            ]
        );
    }

    #[test]
    fn invalid_value_is_reported_with_accepted_values() {
        let flags = [
            ("grpc.listen", "8081"),
            ("drain.delay", "-1s"),
            ("api.exact_reset", "yes"),
            ("log.format", "xml"),
        ];
        let flags = flags.map(|(name, value)| (setting(name), value.to_owned()));
        let problems = problems(&with_rules(Sources { flags: flags.to_vec(), ..Sources::default() }));
        assert_eq!(problems.len(), 4);
        assert!(problems[0].starts_with("--grpc-listen: `8081` is not allowed; an IP address and a port"));
        assert!(problems[3].ends_with("one of text, json is"));
    }

    #[test]
    fn incomplete_certificates_are_reported_with_missing_parts() {
        let flags = [("grpc.tls_cert", "a.pem"), ("http.tls_client_san", "edge.example")];
        let flags = flags.map(|(name, value)| (setting(name), value.to_owned())).to_vec();
        assert_eq!(
            problems(&with_rules(Sources { flags, ..Sources::default() })),
            [
                "grpc.tls_cert needs grpc.tls_key, which is not set",
                "http.tls_client_san needs http.tls_client_ca, which is not set",
            ]
        );
    }

    #[test]
    fn opentelemetry_variables_configure_traces() {
        let environment =
            |endpoint: &str| vec![("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), endpoint.to_owned())];
        let sources =
            |endpoint| with_rules(Sources { environment: environment(endpoint), ..Sources::default() });
        let traces = sources("http://127.0.0.1:4317").load().unwrap().traces;
        assert_eq!(traces.unwrap().endpoint, "http://127.0.0.1:4317");
        assert!(problems(&sources("collector"))[0].starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: `collector`"));
        assert_eq!(with_rules(Sources::default()).load().unwrap().traces, None);
    }

    #[test]
    fn drain_delay_beyond_drain_timeout_is_refused() {
        let flags = vec![(setting("drain.delay"), "26s".to_owned())];
        let problems = problems(&with_rules(Sources { flags, ..Sources::default() }));
        assert!(problems[0].contains("drain.delay is longer than drain.timeout"), "{problems:?}");
    }

    #[test]
    fn admin_listener_beyond_loopback_needs_token_file() {
        let with = |listen: &str, token: &[(&'static Setting, String)]| {
            let mut flags = vec![(setting("admin.listen"), listen.to_owned())];
            flags.extend_from_slice(token);
            with_rules(Sources { flags, ..Sources::default() })
        };
        for listen in ["0.0.0.0:6070", "10.1.2.3:6070", "[::]:6070", "[2001:db8::1]:6070"] {
            let problems = problems(&with(listen, &[]));
            assert!(problems[0].starts_with("admin.listen: "), "{problems:?}");
            assert!(problems[0].contains("admin.token_file must be set"), "{problems:?}");
            assert!(with(listen, &[(setting("admin.token_file"), "/run/token".to_owned())]).load().is_ok());
        }
        for listen in ["127.0.0.1:6070", "127.8.9.1:6070", "[::1]:6070", "[::ffff:127.0.0.1]:6070"] {
            assert!(with(listen, &[]).load().is_ok(), "{listen}");
        }
    }

    #[test]
    fn effective_settings_have_their_origin() {
        let file = file("drain:\n  delay: 1s\n  timeout: 10s\n");
        let settings = with_rules(Sources {
            file: Some(file.path().to_owned()),
            environment: vec![("TOLLGATE_DRAIN__DELAY".to_owned(), "2s".to_owned())],
            flags: vec![(setting("log.level"), "debug".to_owned())],
            compat: None,
        });
        let given = settings.load().unwrap().given;
        let of = |name: &str| {
            let setting = given.iter().find(|setting| setting.name == name).unwrap();
            (setting.from, setting.value.clone())
        };
        assert_eq!(of("drain.delay"), (Origin::Environment, "2s".to_owned()));
        assert_eq!(of("drain.timeout"), (Origin::File, "10s".to_owned()));
        assert_eq!(of("log.level"), (Origin::Flag, "debug".to_owned()));
        assert_eq!(of("log.format"), (Origin::Default, "text".to_owned()));
        assert_eq!(given.len(), CATALOG.len());
    }

    #[test]
    fn secret_setting_is_recognised_by_name_and_path_is_not() {
        let named = |name| Setting { name, ..*setting("admin.token_file") };
        assert!(named("admin.token").is_secret() && named("store.password").is_secret());
        assert!(!named("admin.token_file").is_secret() && !named("admin.listen").is_secret());
    }

    #[test]
    fn word_that_is_not_a_level_is_refused_as_log_filter() {
        for (level, allowed) in [
            ("info,tollgate::rules=debug", true),
            ("off", true),
            ("inof", false),
            ("tollgate[call]=debug", false),
            ("", false),
        ] {
            assert_eq!(setting("log.level").value_type.parse(level).is_some(), allowed, "{level}");
        }
    }

    #[test]
    fn missing_required_setting_is_reported() {
        let problems = problems(&Sources::default());
        assert_eq!(problems, ["rules.path: not set; use --rules, TOLLGATE_RULES__PATH or a settings file"]);
    }

    #[test]
    fn unknown_empty_section_is_refused_with_position() {
        let file = file("grpc:\nlogs: {}\n");
        let sources = with_rules(Sources { file: Some(file.path().to_owned()), ..Sources::default() });
        let problems = problems(&sources);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].ends_with(":2:1: no such section: logs"), "{problems:?}");
    }

    #[test]
    fn file_that_is_not_a_mapping_is_refused_with_position() {
        let file = file("- a\n");
        let sources = with_rules(Sources { file: Some(file.path().to_owned()), ..Sources::default() });
        assert!(problems(&sources)[0].ends_with(":1:1: a list where sections of settings are expected"));
    }
}
