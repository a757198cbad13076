//! The settings of the process, read once at the start: defaults, overridden by a file, by the environment, and by
//! flags.

use tollgate_limiter::limiter;

use crate::{api, persistence};

mod catalog;
mod draft;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod listeners;
mod memory;
mod otel;
mod reference;
mod schema;
mod sources;
mod value_type;

pub use catalog::{Admin, CATALOG, Drain, Grpc, Http, Memory, Metrics};
pub use draft::{LimitSettings, LimitStoreSettings};
pub use listeners::{CertificateName, ListenAddress, ListenerTlsFiles, TlsSettings};
pub use reference::{Backend, BackendChoice};
pub use schema::json_schema;
pub use sources::{SettingsError, SettingsSources, environment};
pub use value_type::{Setting, ValueType};

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gRPC listener.
    pub grpc: Grpc,
    /// The HTTP listener.
    pub http: Http,
    /// The admin listener.
    pub admin: Admin,
    /// The metrics listener.
    pub metrics: Metrics,
    /// The certificates of the listeners.
    pub tls: TlsSettings,
    /// The source of the rules.
    pub rules: tollgate_sources::RuleSourceSettings,
    /// The store of counters.
    pub store: persistence::PersistenceSettings,
    /// The memory that requests and replies may use.
    pub memory: Memory,
    /// The cluster, if there is one.
    pub cluster: Option<tollgate_cluster::ClusterSettings>,
    /// The store that replicas share, if there is one.
    pub shared_store: Option<tollgate_shared_store::SharedStoreSettings>,
    /// The limits of keys that a store names, if any.
    pub limits: Option<LimitSettings>,
    /// The modes of the limiter.
    pub limiter: limiter::Modes,
    /// The API.
    pub api: api::ApiSettings,
    /// The rate limit quota service.
    pub rlqs: tollgate_quota::QuotaSettings,
    /// Decisions by headers.
    pub check: api::forward_auth::ForwardAuthSettings,
    /// The response headers.
    pub headers: api::headers::HeaderSettings,
    /// The bodies of refusals.
    pub denial: api::denial_body::DenialBodySettings,
    /// The shutdown.
    pub drain: Drain,
    /// Logs.
    pub log: tollgate_telemetry::logs::LogSettings,
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
