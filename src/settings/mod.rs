//! The settings of the process, read once at the start: defaults, overridden by a file, by the environment, and by
//! flags.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::{api, limiter, store, telemetry};

mod catalog;
mod cluster;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod listeners;
mod memory;
mod otel;
mod reference;
mod rules;
mod schema;
mod shared_store;
mod sources;
mod value_type;

pub use catalog::CATALOG;
pub use listeners::{Admin, CertificateName, CertificateReload, Grpc, Http, ListenAddress, Tls};
pub use memory::MemoryShare;
pub use schema::json_schema;
pub use sources::{Compat, Error, Sources, environment};
pub use value_type::{Setting, ValueType};

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The gRPC listener.
    pub grpc: Grpc,
    /// The HTTP listener.
    pub http: Http,
    /// The admin listener.
    pub admin: Admin,
    /// The metrics listener.
    pub metrics: Metrics,
    /// The reload of certificates.
    pub tls: CertificateReload,
    /// The source of the rules.
    #[serde(deserialize_with = "rules::read")]
    pub rules: crate::rules::Settings,
    /// The store of counters.
    pub store: store::Settings,
    /// The memory that requests and replies may use.
    pub memory: Memory,
    /// The cluster, if there is one.
    pub cluster: Option<crate::cluster::Settings>,
    /// The store that replicas share, if there is one. Read by [`Sources`], because it needs more than its own section.
    #[serde(deserialize_with = "ignored")]
    pub shared_store: Option<crate::shared_store::Settings>,
    /// The modes of the limiter.
    pub limiter: limiter::Modes,
    /// The API.
    pub api: api::Settings,
    /// Decisions by headers.
    pub check: api::forward_auth::Settings,
    /// The response headers.
    pub headers: api::headers::Settings,
    /// The shutdown.
    pub drain: Drain,
    /// Logs.
    pub log: telemetry::logs::Settings,
    /// The destination of traces, if any; from the variables of OpenTelemetry.
    #[serde(skip)]
    pub traces: Option<telemetry::traces::Settings>,
    /// Variables of another server that have no effect, each with the reason.
    #[serde(skip)]
    pub without_effect: Vec<String>,
    /// The effective value of each setting and its origin.
    #[serde(skip)]
    pub given: Vec<api::admin::EffectiveSetting>,
}

/// The metrics listener and the bounds on series.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// The address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The maximum number of connections.
    pub max_connections: usize,
    /// The maximum number of names with values of requests for each rule.
    pub names_per_rule: usize,
    /// The number of most denied keys to track, for each list.
    pub top_keys: usize,
    /// Whether metrics of rules also have the names of envoyproxy/ratelimit.
    pub reference_names: bool,
}

/// The memory that requests and replies may use, in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// For incomplete requests.
    pub requests: u64,
    /// For unsent replies.
    pub replies: u64,
}

/// The shutdown after SIGTERM.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// The time to continue serving while not ready, so that callers can notice.
    pub delay: Duration,
    /// The maximum duration of the shutdown.
    pub timeout: Duration,
}

fn ignored<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

#[cfg(test)]
impl Settings {
    /// The defaults with these settings, each with its name and value.
    pub(crate) fn with(given: &[(&str, &str)]) -> Self {
        let flag = |(name, value): &(&str, &str)| {
            let setting = CATALOG.iter().find(|setting| setting.name == *name).expect("a setting");
            (setting, (*value).to_owned())
        };
        let flags = [("rules.path", "rules.yaml")].iter().chain(given).map(flag).collect();
        Sources { flags, ..Sources::default() }.load().expect("valid settings")
    }
}
