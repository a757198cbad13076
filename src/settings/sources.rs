//! The sources of settings and the errors in them.

use std::{collections::BTreeMap, io, path::PathBuf};

use config::{Config, ConfigError, Environment, Map, Source, ValueKind};
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
        value_type::variable,
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
    /// The sources cannot be layered.
    #[error(transparent)]
    Layers(#[from] ConfigError),
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
        let mut reader = Reader::default();
        let file = self.file(&mut reader)?;
        let own = layered([file, self.environment(&mut reader)?, self.flags(&mut reader)])?;
        let (reference, translation) = self.reference(&own, &mut reader);
        let traces = otel::traces(&self.environment).unwrap_or_else(|problem| {
            reader.problems.push(problem);
            None
        });
        if !reader.problems.is_empty() {
            return Err(Error::Wrong(reader.problems));
        }
        let all = Config::builder().add_source(defaults()).add_source(reference).add_source(own).build()?;
        let Translation { without_effect, passwords, choice, .. } = translation;
        let mut settings = draft(&all).settings(effective(&all)).map_err(Error::Wrong)?;
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

    fn file(&self, reader: &mut Reader) -> Result<Layer, Error> {
        let mut layer = Layer::new(Origin::File);
        let Some(path) = &self.file else { return Ok(layer) };
        let bytes = files::read(path, yaml::BYTES_MAX as u64)
            .map_err(|error| Error::Unreadable { path: path.clone(), error })?;
        let stream = yaml::load(&bytes);
        let place = |mark: Mark| format!("{}:{}:{}", path.display(), mark.line, mark.column);
        let problems = stream.problems.iter();
        reader.problems.extend(problems.map(|problem| format!("{}: {}", place(problem.mark), problem.what)));
        for document in &stream.documents {
            for section in reader.pairs(document, &place) {
                let settings = reader.pairs(&section.value, &place);
                if settings.is_empty() && !is_section(&section.key) {
                    let place = place(section.mark);
                    reader.problems.push(format!("{place}: no such section: {}", section.key));
                }
                reader.section(&section.key, settings, &place, &mut layer);
            }
        }
        Ok(layer)
    }

    fn environment(&self, reader: &mut Reader) -> Result<Layer, Error> {
        // A variable without the double underscore is not a setting: Kubernetes defines such variables for a Service.
        let is_setting = |name: &str| name.starts_with("TOLLGATE_") && name.contains("__");
        let given = self.environment.iter().filter(|(name, _)| is_setting(name));
        let given = given.map(|(name, value)| (name.to_uppercase(), value.clone()));
        let source = Environment::with_prefix("TOLLGATE").prefix_separator("_").separator("__");
        let values: BTreeMap<_, _> = source.source(Some(given.collect())).collect()?.into_iter().collect();
        let mut layer = Layer::new(Origin::Environment);
        for (name, value) in values {
            let value = value.into_string()?;
            reader.set(&variable(&name), Setting::variable, &name, &value, &mut layer);
        }
        Ok(layer)
    }

    fn flags(&self, reader: &mut Reader) -> Layer {
        let mut layer = Layer::new(Origin::Flag);
        let flag = |setting: &Setting| format!("--{}", setting.flag());
        for (setting, value) in &self.flags {
            reader.set(&flag(setting), flag, setting.name, value, &mut layer);
        }
        layer
    }

    /// Reads the variables of another server, which override defaults only. `own` has all other settings.
    fn reference(&self, own: &Config, reader: &mut Reader) -> (Layer, Translation) {
        let mut layer = Layer::new(Origin::Reference);
        let Some(Compat::EnvoyRatelimit) = self.compat else { return (layer, Translation::default()) };
        let Draft { store, redis, links, .. } = draft(own);
        let own = Own {
            store: value(own, "store.kind").map(|_| store.kind),
            has_cluster: links.listen.is_some(),
            has_password_file: redis.password_file.is_some(),
            has_sentinel_password_file: redis.sentinel_password_file.is_some(),
        };
        let mut translation = reference::translate(&self.environment, own);
        reader.problems.append(&mut translation.problems);
        for Given { setting, value, variable } in &translation.settings {
            reader.set(variable, |_| variable.clone(), setting, value, &mut layer);
        }
        (layer, translation)
    }
}

/// The valid settings of one source; of equal names the last one counts.
#[derive(Clone, Debug)]
struct Layer {
    origin: Origin,
    values: Vec<(&'static str, String)>,
}

impl Layer {
    fn new(origin: Origin) -> Self {
        Self { origin, values: Vec::new() }
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, config::Value>, ConfigError> {
        let origin = self.origin.name().to_owned();
        let value = |text: &String| config::Value::new(Some(&origin), text.as_str());
        Ok(self.values.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect())
    }
}

fn defaults() -> Layer {
    let values = CATALOG.iter().map(|setting| (setting.name, setting.default.to_owned()));
    Layer { values: values.collect(), ..Layer::new(Origin::Default) }
}

/// These layers, each of which overrides the previous ones.
fn layered(layers: [Layer; 3]) -> Result<Config, ConfigError> {
    layers.into_iter().fold(Config::builder(), |builder, layer| builder.add_source(layer)).build()
}

/// The value of a setting, if there is one.
fn value<'c>(config: &'c Config, name: &str) -> Option<(&'c str, Origin)> {
    let inner = |value: &'c config::Value, part| {
        let ValueKind::Table(values) = &value.kind else { return None };
        values.get(part)
    };
    let found = name.split('.').try_fold(&config.cache, inner)?;
    let ValueKind::String(text) = &found.kind else { return None };
    let origin = Origin::ALL.into_iter().find(|origin| found.origin() == Some(origin.name()))?;
    Some((text, origin))
}

/// The defaults, overridden by these valid values.
fn draft(config: &Config) -> Draft {
    let mut draft = Draft::defaults();
    for setting in CATALOG {
        if let Some((text, _)) = value(config, setting.name) {
            // It was accepted when it was read.
            let _ = draft.set(setting, text);
        }
    }
    draft
}

/// The values of all settings, in the order of the catalog.
fn effective(config: &Config) -> Vec<EffectiveSetting> {
    let each = CATALOG.iter().map(|setting| {
        let (text, from) = value(config, setting.name).unwrap_or((setting.default, Origin::Default));
        EffectiveSetting { name: setting.name, value: text.to_owned(), from }
    });
    each.collect()
}

/// Reads the values of sources, and collects what is wrong with them.
struct Reader {
    /// Tries values; a value without effect must be valid, too.
    draft: Draft,
    problems: Vec<String>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { draft: Draft::defaults(), problems: Vec::new() }
    }
}

impl Reader {
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
    fn section(
        &mut self,
        section: &str,
        settings: &[Pair<'_>],
        place: &impl Fn(Mark) -> String,
        layer: &mut Layer,
    ) {
        for setting in settings {
            let name = format!("{section}.{}", setting.key);
            let written = |setting: &Setting| setting.name.to_owned();
            match &setting.value.value {
                Value::Scalar(scalar) => {
                    self.set(&place(setting.mark), written, &name, &scalar.text, layer);
                }
                Value::Mapping(settings) if is_section(&name) => self.section(&name, settings, place, layer),
                Value::List(_) | Value::Mapping(_) => {
                    let what = setting.value.describe();
                    self.problems.push(format!("{}: {name} cannot be {what}", place(setting.mark)));
                }
                Value::Unreadable => {}
            }
        }
    }

    /// Adds the setting `name` to a layer, if it and its value are valid. `place` is where it was set; `written` formats
    /// the name of a setting for this source.
    fn set(
        &mut self,
        place: &str,
        written: impl Fn(&Setting) -> String,
        name: &str,
        value: &str,
        layer: &mut Layer,
    ) {
        let Some(setting) = CATALOG.iter().find(|known| known.name == name) else {
            let near = CATALOG.iter().max_by(|one, other| {
                strsim::jaro_winkler(one.name, name).total_cmp(&strsim::jaro_winkler(other.name, name))
            });
            let near =
                near.map(|setting| format!("; the nearest is {}", written(setting))).unwrap_or_default();
            self.problems.push(format!("{place}: no such setting{near}"));
            return;
        };
        match self.draft.set(setting, value) {
            Some(()) => layer.values.push((setting.name, value.to_owned())),
            None => {
                let (expected, shown) = (setting.value_type().expected, setting.shown(value));
                self.problems.push(format!("{place}: `{shown}` is not allowed; {expected} is"));
            }
        }
    }
}

/// Whether settings have names that begin with this section.
fn is_section(section: &str) -> bool {
    CATALOG.iter().any(|setting| setting.name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

#[cfg(test)]
mod tests;
