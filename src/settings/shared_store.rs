//! The settings of the shared store.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::{
    settings::{
        CATALOG,
        value_type::{OFF, lacking},
    },
    shared_store::{Mode, PasswordFiles, Settings, TlsFiles},
};

/// The first part of the names of the settings.
const PREFIX: &str = "store.redis.";
/// The setting that selects the store, and its value for this one.
pub(super) const KIND: &str = "store.kind";
pub(super) const REDIS: &str = "redis";
/// The name under which the settings are read.
pub(super) const SECTION: &str = "shared_store";
/// Settings that a shared store has no use for.
const OF_MEMORY: [&str; 4] = ["cluster.", "store.snapshot", "store.snapshot_every", "store.on_full"];

/// The name under which a setting is read, if it is one of this section.
pub(super) fn section_name(setting: &str) -> Option<String> {
    let name = if setting == KIND { Some("kind") } else { setting.strip_prefix(PREFIX) };
    name.map(|name| format!("{SECTION}.{name}"))
}

/// The section as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    kind: String,
    urls: Vec<String>,
    mode: ModeName,
    sentinel_service: String,
    username: Option<String>,
    password_file: Option<PathBuf>,
    sentinel_password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    connections: usize,
    timeout: Duration,
    prefix: String,
    unready_without_store: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    Standalone,
    Sentinel,
    Cluster,
}

impl Section {
    /// `None` if the counters are in memory. [`problems`] has already checked that the settings are consistent.
    pub(super) fn read(self, memory_limit: u64, poll_interval: Duration) -> Option<Settings> {
        if self.kind != REDIS {
            return None;
        }
        let (server, sentinel) = (self.password_file, self.sentinel_password_file);
        Some(Settings {
            urls: self.urls,
            mode: match self.mode {
                ModeName::Standalone => Mode::Standalone,
                ModeName::Sentinel => Mode::Sentinel { service: self.sentinel_service },
                ModeName::Cluster => Mode::Cluster,
            },
            username: self.username,
            tls: TlsFiles { ca: self.ca, client: self.cert.zip(self.key) },
            password_files: PasswordFiles { server, sentinel, poll_interval },
            unready_without_store: self.unready_without_store,
            connections: self.connections,
            timeout: self.timeout,
            prefix: self.prefix,
            memory_limit,
        })
    }
}

/// The inconsistencies of the section. `value` returns the value of each setting as text; `is_given` tells whether a
/// source other than the defaults has it.
pub(super) fn problems<'v>(value: impl Fn(&str) -> &'v str, is_given: impl Fn(&str) -> bool) -> Vec<String> {
    let given = |prefix: &'static str| {
        let names = CATALOG.iter().map(|setting| setting.name).filter(move |name| name.starts_with(prefix));
        names.filter(|name| is_given(name) && value(name) != OFF)
    };
    if value(KIND) != REDIS {
        return given(PREFIX).map(|name| format!("{name} needs {KIND} {REDIS}, which is not set")).collect();
    }
    let of_memory = OF_MEMORY
        .into_iter()
        .flat_map(|name| given(name).filter(move |given| name.ends_with('.') || *given == name));
    let mut problems: Vec<String> = of_memory
        .map(|name| format!("{name} does not go with {KIND} {REDIS}: the counters are not in this process"))
        .collect();
    let is_off = |name: &str| value(&format!("{PREFIX}{name}")) == OFF;
    if is_off("urls") {
        problems.push(format!("{KIND} {REDIS} needs {PREFIX}urls, which is not set"));
    }
    problems.extend(lacking(PREFIX, &[("cert", "key"), ("key", "cert")], &value));
    let schemes: Vec<bool> =
        value("store.redis.urls").split(',').map(|url| url.trim().starts_with("rediss:")).collect();
    if schemes.contains(&true) && schemes.contains(&false) {
        problems.push(format!("{PREFIX}urls: either all or none are rediss://"));
    }
    if schemes.contains(&false) && !is_off("urls") && (!is_off("ca") || !is_off("cert")) {
        problems.push(format!("{PREFIX}ca and {PREFIX}cert need rediss:// in {PREFIX}urls"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Error, Settings, Sources};

    fn load(given: &[(&str, &str)]) -> Result<Settings, Error> {
        let environment = given.iter().map(|(name, value)| {
            let setting = CATALOG.iter().find(|setting| setting.name == *name).unwrap();
            (setting.variable(), (*value).to_owned())
        });
        let rules = [("TOLLGATE_RULES__PATH".to_owned(), "rules.yaml".to_owned())];
        Sources { environment: environment.chain(rules).collect(), ..Sources::default() }.load()
    }

    fn problems(given: &[(&str, &str)]) -> Vec<String> {
        match load(given) {
            Err(Error::Wrong(problems)) => problems,
            other => panic!("{other:?}"),
        }
    }

    const REDIS_KIND: (&str, &str) = ("store.kind", "redis");
    const URL: (&str, &str) = ("store.redis.urls", "redis://redis:6379");

    #[test]
    fn kind_and_urls_suffice_for_a_shared_store() {
        assert!(load(&[]).unwrap().shared_store.is_none());
        let store = load(&[REDIS_KIND, URL]).unwrap().shared_store.unwrap();
        let of_library = crate::shared_store::Settings::new(["redis://redis:6379"]);
        assert_eq!(store, crate::shared_store::Settings { memory_limit: store.memory_limit, ..of_library });
    }

    #[test]
    fn all_settings_of_a_shared_store_are_read() {
        let file = "store:\n  kind: redis\n  redis:\n    mode: sentinel\n    sentinel_service: counters\n    \
                    urls: rediss://a:1, rediss://b:2\n    username: tollgate\n    password_file: p\n    ca: c\n    \
                    cert: d\n    key: k\n    connections: 4\n    timeout: 20ms\n    prefix: 'mine:'\n";
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), format!("rules:\n  path: r.yaml\n{file}")).unwrap();
        let sources = Sources { file: Some(path.path().to_owned()), ..Sources::default() };
        let store = sources.load().unwrap().shared_store.unwrap();
        assert_eq!(store.mode, Mode::Sentinel { service: "counters".to_owned() });
        assert_eq!(store.urls, ["rediss://a:1", "rediss://b:2"]);
        assert_eq!(store.tls.client, Some(("d".into(), "k".into())));
        assert_eq!((store.password_files.server, store.connections), (Some("p".into()), 4));
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
        let named = ["cluster.seed", "store.snapshot", "store.on_full"];
        let expected = named.map(|name| {
            format!("{name} does not go with store.kind redis: the counters are not in this process")
        });
        assert_eq!(problems(&given), expected);
    }

    #[test]
    fn settings_of_redis_need_its_kind_and_each_other() {
        assert_eq!(problems(&[URL]), ["store.redis.urls needs store.kind redis, which is not set"]);
        assert_eq!(problems(&[REDIS_KIND]), ["store.kind redis needs store.redis.urls, which is not set"]);
        assert_eq!(
            problems(&[REDIS_KIND, ("store.redis.urls", "rediss://a:1"), ("store.redis.cert", "c")]),
            ["store.redis.cert needs store.redis.key, which is not set"]
        );
        assert_eq!(
            problems(&[REDIS_KIND, ("store.redis.urls", "rediss://a:1,redis://b:1")])[0],
            "store.redis.urls: either all or none are rediss://"
        );
    }
}
