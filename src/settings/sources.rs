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
        let Translation { without_effect, passwords, choice, .. } = self.load_reference(&mut loading);
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
        Ok(Settings { traces, without_effect, backend: choice, ..settings })
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
                let Draft { store, redis, links, .. } = &loading.draft;
                let is_set = loading.origin("store.kind") != Origin::Default;
                let own = Own {
                    store: is_set.then_some(store.kind),
                    has_cluster: links.listen.is_some(),
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
    /// The origin of the value of a setting.
    fn origin(&self, name: &str) -> Origin {
        self.given.iter().find(|setting| setting.name == name).map_or(Origin::Default, |setting| setting.from)
    }

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
mod tests;
