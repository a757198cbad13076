//! The sources of settings and the errors in them.

use std::{collections::BTreeMap, path::PathBuf};

use config::{Config, ConfigError, Environment, Source, ValueKind};
use tollgate_counter::files;
use tollgate_rules::yaml::{self, Mark, YamlNode, YamlPair, YamlValue};
use tollgate_shared_store::{PasswordSource, PasswordSources};

use crate::{
    api::admin::{SettingOrigin, state::EffectiveSetting},
    settings::{
        CATALOG, Sections, Settings, otel,
        reference::{self, Given, Translation},
        value_type::{Setting, variable},
    },
};

/// The sources of settings; each overrides the previous ones.
#[derive(Clone, Debug, Default)]
pub struct SettingsSources {
    /// The path of a settings file, in YAML: sections with settings.
    pub file: Option<PathBuf>,
    /// Environment variables and their values. Only `TOLLGATE_<SECTION>__<NAME>`, the variables of OpenTelemetry and,
    /// if `reads_reference` says so, those of envoyproxy/ratelimit are read.
    pub environment: Vec<(String, String)>,
    /// Whether this program starts in the place of envoyproxy/ratelimit.
    pub reads_reference: bool,
    /// Settings from flags and their values.
    pub flags: Vec<(&'static Setting, String)>,
}

/// What is wrong with the settings; each line names the source and the accepted values.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(pub Vec<String>);

impl From<ConfigError> for SettingsError {
    fn from(error: ConfigError) -> Self {
        Self(vec![error.to_string()])
    }
}

/// The environment of this process.
#[expect(clippy::disallowed_methods, reason = "settings are what reads the environment")]
pub fn environment() -> Vec<(String, String)> {
    // A variable that is not UTF-8 cannot be a setting.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl SettingsSources {
    /// Loads the settings, or reports the problems of all sources.
    pub fn load(&self) -> Result<Settings, SettingsError> {
        let mut reader = SettingsReader::default();
        self.read_file(&mut reader)?;
        self.read_environment(&mut reader)?;
        let flag = |setting: &Setting| format!("--{}", setting.flag());
        for (setting, value) in &self.flags {
            reader.set(SettingOrigin::Flag, &flag(setting), flag, setting.name, value);
        }
        let translation = self.read_reference(&mut reader)?;
        let traces = otel::traces(&self.environment).unwrap_or_else(|problem| {
            reader.problems.push(problem);
            None
        });
        let given = reader.effective()?;
        if !reader.problems.is_empty() {
            return Err(SettingsError(reader.problems));
        }
        let Translation { without_effect, passwords, choice, .. } = translation;
        let mut settings = sections(&given).settings(given).map_err(SettingsError)?;
        for (setting, given) in CATALOG.iter().zip(&mut settings.given) {
            given.value = setting.displayed(&given.value);
        }
        if let Some(store) = &mut settings.shared_store {
            let PasswordSources { server, sentinel, .. } = &mut store.passwords;
            // The reference gives no password where a file has one.
            for (source, given) in [(server, passwords.server), (sentinel, passwords.sentinel)] {
                *source = source.take().or(given.map(PasswordSource::Text));
            }
        }
        // The directory that envoyproxy/ratelimit reads may come later than the process.
        settings.rules.path_must_exist &= !self.reads_reference;
        Ok(Settings { traces, without_effect, backend: choice, ..settings })
    }

    fn read_file(&self, reader: &mut SettingsReader) -> Result<(), SettingsError> {
        let Some(path) = &self.file else { return Ok(()) };
        let bytes = files::read(path, yaml::BYTES_MAX as u64)
            .map_err(|error| SettingsError(vec![format!("{}: {error}", path.display())]))?;
        let stream = yaml::load(&bytes);
        let place = |mark: Mark| format!("{}:{}:{}", path.display(), mark.line, mark.column);
        let problems = stream.problems.iter();
        reader.problems.extend(problems.map(|problem| format!("{}: {}", place(problem.mark), problem.value)));
        for document in &stream.documents {
            for section in reader.pairs(document, &place) {
                let settings = reader.pairs(&section.value, &place);
                if settings.is_empty() && !is_section(&section.key) {
                    let place = place(section.mark);
                    reader.problems.push(format!("{place}: no such section: {}", section.key));
                }
                reader.section(&section.key, settings, &place);
            }
        }
        Ok(())
    }

    fn read_environment(&self, reader: &mut SettingsReader) -> Result<(), SettingsError> {
        // A variable without the double underscore is not a setting: Kubernetes defines such variables for a Service.
        let is_setting = |name: &str| name.starts_with("TOLLGATE_") && name.contains("__");
        let given = self.environment.iter().filter(|(name, _)| is_setting(name));
        let given = given.map(|(name, value)| (name.to_uppercase(), value.clone()));
        let source = Environment::with_prefix("TOLLGATE").prefix_separator("_").separator("__");
        let values: BTreeMap<_, _> = source.source(Some(given.collect())).collect()?.into_iter().collect();
        for (name, value) in values {
            let value = value.into_string()?;
            reader.set(SettingOrigin::Environment, &variable(&name), Setting::variable, &name, &value);
        }
        Ok(())
    }

    /// Reads the variables of another server, which override defaults only. All other sources were read before.
    fn read_reference(&self, reader: &mut SettingsReader) -> Result<Translation, SettingsError> {
        if !self.reads_reference {
            return Ok(Translation::default());
        }
        let given = reader.effective()?;
        let is_given =
            |name: &str| given.iter().any(|given| given.name == name && given.from != SettingOrigin::Default);
        let own = sections(&given);
        let store = is_given("store.kind").then_some(own.store.kind);
        let mut translation = reference::translate(&self.environment, &own, store);
        reader.problems.append(&mut translation.problems);
        for Given { setting, value, variable } in &translation.settings {
            reader.set(SettingOrigin::Reference, variable, |_| variable.clone(), setting, value);
        }
        Ok(translation)
    }
}

/// The settings with these valid values.
fn sections(given: &[EffectiveSetting]) -> Sections {
    let mut sections = Sections::default();
    for (setting, given) in CATALOG.iter().zip(given) {
        // It was accepted when it was read.
        let _ = sections.set(setting, &given.value);
    }
    sections
}

/// Reads the values of sources, and collects what is wrong with them.
#[derive(Default)]
struct SettingsReader {
    /// Tries values; a value without effect must be valid, too.
    tried: Sections,
    /// The valid values, each with its source; those of a later source override those of an earlier one.
    values: Vec<(SettingOrigin, &'static str, String)>,
    problems: Vec<String>,
}

impl SettingsReader {
    /// The effective value of each setting, in the order of the catalog.
    fn effective(&self) -> Result<Vec<EffectiveSetting>, ConfigError> {
        let mut config = Config::builder();
        for (from, name, text) in &self.values {
            let value = config::Value::new(Some(&from.name().to_owned()), text.as_str());
            config = match from {
                SettingOrigin::Default | SettingOrigin::Reference => config.set_default(name, value)?,
                SettingOrigin::File | SettingOrigin::Environment | SettingOrigin::Flag => {
                    config.set_override(name, value)?
                }
            };
        }
        let config = config.build()?;
        let each = CATALOG.iter().map(|Setting { name, default, .. }| {
            let (text, from) = value(&config, name).unwrap_or((*default, SettingOrigin::Default));
            EffectiveSetting { name, value: text.to_owned(), from }
        });
        Ok(each.collect())
    }

    /// The pairs of a mapping in a settings file; empty for null.
    fn pairs<'n>(&mut self, node: &'n YamlNode<'n>, place: &impl Fn(Mark) -> String) -> &'n [YamlPair<'n>] {
        match &node.value {
            YamlValue::Mapping(pairs) => pairs,
            YamlValue::Unreadable => &[],
            YamlValue::Scalar(_) if node.is_null() => &[],
            YamlValue::Scalar(_) | YamlValue::List(_) => {
                let what = node.describe();
                self.problems
                    .push(format!("{}: {what} where sections of settings are expected", place(node.mark)));
                &[]
            }
        }
    }

    /// The settings of a section in a settings file, and of the sections in it.
    fn section(&mut self, section: &str, settings: &[YamlPair<'_>], place: &impl Fn(Mark) -> String) {
        for setting in settings {
            let name = format!("{section}.{}", setting.key);
            let written = |setting: &Setting| setting.name.to_owned();
            match &setting.value.value {
                YamlValue::Scalar(scalar) => {
                    self.set(SettingOrigin::File, &place(setting.mark), written, &name, &scalar.text);
                }
                YamlValue::Mapping(settings) if is_section(&name) => self.section(&name, settings, place),
                YamlValue::List(_) | YamlValue::Mapping(_) => {
                    let what = setting.value.describe();
                    self.problems.push(format!("{}: {name} cannot be {what}", place(setting.mark)));
                }
                YamlValue::Unreadable => {}
            }
        }
    }

    /// Adds the setting `name`, if it and its value are valid. `place` is where it was set; `written` formats the name
    /// of a setting for this source.
    fn set(
        &mut self,
        from: SettingOrigin,
        place: &str,
        written: impl Fn(&Setting) -> String,
        name: &str,
        value: &str,
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
        match self.tried.set(setting, value) {
            Some(()) => self.values.push((from, setting.name, value.to_owned())),
            None => {
                let expected = setting.value_type().expected;
                let displayed = setting.displayed(value);
                self.problems.push(format!("{place}: `{displayed}` is not allowed; {expected} is"));
            }
        }
    }
}

/// The value of a setting, and its source.
fn value<'c>(config: &'c Config, name: &str) -> Option<(&'c str, SettingOrigin)> {
    let inner = |value: &'c config::Value, part| {
        let ValueKind::Table(values) = &value.kind else { return None };
        values.get(part)
    };
    let found = name.split('.').try_fold(&config.cache, inner)?;
    let ValueKind::String(text) = &found.kind else { return None };
    let origin = SettingOrigin::ALL.into_iter().find(|origin| found.origin() == Some(origin.name()))?;
    Some((text, origin))
}

/// Whether settings have names that begin with this section.
fn is_section(section: &str) -> bool {
    CATALOG.iter().any(|setting| setting.name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

#[cfg(test)]
mod tests;
