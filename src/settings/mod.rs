//! The settings of the process, read once at the start: defaults, overridden by a file, by the environment, and by
//! flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny},
};

use crate::{api, limiter, rules, store, telemetry};

mod catalog;
mod cluster;
mod listeners;
mod memory;
mod otel;
mod sources;
mod value_type;

pub use catalog::CATALOG;
pub use listeners::{Admin, CertificateName, CertificateReload, Grpc, Http, ListenAddress, Tls};
pub use memory::MemoryShare;
pub use sources::{Error, Sources, environment};
pub use value_type::{Setting, ValueType};

use value_type::OFF;

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The gRPC listener.
    pub grpc: Grpc,
    /// The HTTP listener.
    pub http: Http,
    /// The admin listener.
    #[serde(deserialize_with = "admin_settings")]
    pub admin: Admin,
    /// The metrics listener.
    pub metrics: Metrics,
    /// The reload of certificates.
    pub tls: CertificateReload,
    /// The source of the rules.
    #[serde(deserialize_with = "rules_settings")]
    pub rules: rules::Settings,
    /// The store of counters.
    #[serde(deserialize_with = "store_settings")]
    pub store: store::Settings,
    /// The memory that requests and replies may use.
    #[serde(deserialize_with = "memory_settings")]
    pub memory: Memory,
    /// The cluster, if there is one. Read by [`Sources`], because it needs more than its own section.
    #[serde(deserialize_with = "ignored")]
    pub cluster: Option<crate::cluster::Settings>,
    /// The modes of the limiter.
    pub limiter: limiter::Modes,
    /// The API.
    pub api: api::Settings,
    /// The response headers.
    pub headers: api::headers::Settings,
    /// The shutdown.
    pub drain: Drain,
    /// Logs.
    pub log: telemetry::logs::Settings,
    /// The destination of traces, if any; from the variables of OpenTelemetry.
    #[serde(skip)]
    pub traces: Option<telemetry::traces::Settings>,
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
}

/// The memory that requests and replies may use, in bytes.
#[derive(Clone, Copy, Debug)]
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
    #[serde(deserialize_with = "duration")]
    pub delay: Duration,
    /// The maximum duration of the shutdown.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
}

fn admin_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Admin, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        listen: SocketAddr,
        token_file: PathBuf,
        max_connections: usize,
    }
    let Settings { listen, token_file, max_connections } = Settings::deserialize(deserializer)?;
    let token_file = path_or_off(token_file);
    Ok(Admin { listen, token_file, max_connections })
}

fn rules_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<rules::Settings, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        path: PathBuf,
        #[serde(deserialize_with = "duration")]
        poll_interval: Duration,
    }
    let Settings { path, poll_interval } = Settings::deserialize(deserializer)?;
    Ok(rules::Settings { path, poll_interval })
}

fn store_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<store::Settings, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        memory_limit: String,
        on_full: store::OnFull,
        snapshot: PathBuf,
        #[serde(deserialize_with = "duration")]
        snapshot_every: Duration,
    }
    let Settings { memory_limit, on_full, snapshot, snapshot_every } = Settings::deserialize(deserializer)?;
    let memory_limit = share(MemoryShare::Counters, &memory_limit)?;
    let snapshot = path_or_off(snapshot);
    Ok(store::Settings { memory_limit, on_full, snapshot, snapshot_every })
}

fn share<E: serde::de::Error>(share: MemoryShare, text: &str) -> Result<u64, E> {
    share.size(text).ok_or_else(|| E::custom(ValueType::Size(share).expected()))
}

fn memory_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Memory, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        requests: String,
        replies: String,
    }
    let Settings { requests, replies } = Settings::deserialize(deserializer)?;
    Ok(Memory {
        requests: share(MemoryShare::Requests, &requests)?,
        replies: share(MemoryShare::Replies, &replies)?,
    })
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    value_type::duration(&text).ok_or_else(|| D::Error::custom(ValueType::Duration.expected()))
}

fn ignored<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

/// The path of a setting that may be `off`.
fn path_or_off(path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|path| path.as_os_str() != OFF)
}
