//! The settings of the process, read once at the start: defaults, overridden by a file, by the environment, and by
//! flags.

use crate::{api, persistence};

mod catalog;
pub(crate) mod conflicts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod listeners;
mod memory;
mod otel;
pub(crate) mod reference;
mod schema;
pub(crate) mod sources;
pub(crate) mod value_type;

pub use catalog::{CATALOG, Drain, Grpc, Http, Memory, Sections};
pub use conflicts::{LimitSettings, LimitStoreSettings};
pub use listeners::{CertificateName, ListenAddress, ListenerTlsFiles};
pub use reference::{Backend, BackendChoice};
pub use schema::json_schema;
pub use sources::{SettingsError, SettingsSources, environment};
pub use value_type::{Setting, ValueType};

/// All settings, and what several of them make up for a component.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The values of all settings.
    pub sections: Sections,
    /// The certificates of the gRPC listener; without them it speaks plaintext.
    pub grpc_tls: Option<ListenerTlsFiles>,
    /// The certificates of the HTTP listener; without them it speaks plaintext.
    pub http_tls: Option<ListenerTlsFiles>,
    /// The source of the rules.
    pub rules: tollgate_sources::RuleSourceSettings,
    /// The store of counters.
    pub store: persistence::PersistenceSettings,
    /// The cluster, if there is one.
    pub cluster: Option<tollgate_cluster::ClusterSettings>,
    /// The store that replicas share, if there is one.
    pub shared_store: Option<tollgate_shared_store::SharedStoreSettings>,
    /// The limits of keys that a store names, if any.
    pub limits: Option<LimitSettings>,
    /// The destination of traces, if any; from the variables of OpenTelemetry.
    pub traces: Option<tollgate_telemetry::traces::TraceSettings>,
    /// Where the counters are and why, if this replica stands in for another server.
    pub backend: Option<BackendChoice>,
    /// Variables of another server that have no effect, each with the reason.
    pub without_effect: Vec<String>,
    /// The effective value of each setting and its origin.
    pub given: Vec<api::admin::EffectiveSetting>,
}

#[cfg(test)]
impl Settings {
    /// The defaults with these settings, each with its name and value.
    pub(crate) fn with(given: &[(&str, &str)]) -> Self {
        tests::load(given).expect("valid settings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of rules and these settings, as flags.
    pub(super) fn flags(given: &[(&str, &str)]) -> SettingsSources {
        let flag = |(name, value): &(&str, &str)| (Setting::named(name).unwrap(), (*value).to_owned());
        let flags = [("rules.path", "rules.yaml")].iter().chain(given).map(flag).collect();
        SettingsSources { flags, ..SettingsSources::default() }
    }

    pub(super) fn load(given: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        flags(given).load()
    }

    /// The problems of these sources.
    pub(super) fn problems(sources: &SettingsSources) -> Vec<String> {
        match sources.load() {
            Err(SettingsError(problems)) => problems,
            other => panic!("{other:?}"),
        }
    }
}
