//! How this process runs, fixed until it is restarted: defaults, then a file, then the environment, then flags.

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
    /// The gRPC service.
    pub grpc: Grpc,
    /// The plain HTTP side.
    pub http: Http,
    /// The operator's side.
    #[serde(deserialize_with = "admin_settings")]
    pub admin: Admin,
    /// The page of metrics.
    pub metrics: Metrics,
    /// How certificates are kept up to date.
    pub tls: CertificateReload,
    /// Where rules come from.
    #[serde(deserialize_with = "rules_settings")]
    pub rules: rules::Settings,
    /// How counters are kept.
    #[serde(deserialize_with = "store_settings")]
    pub store: store::Settings,
    /// The memory that callers may take.
    #[serde(deserialize_with = "memory_settings")]
    pub memory: Memory,
    /// How it shares keys with other replicas, if at all. [`Sources`] reads it, for it takes more than its section.
    #[serde(deserialize_with = "none_yet")]
    pub cluster: Option<crate::cluster::Settings>,
    /// How decisions are folded.
    pub limiter: limiter::Modes,
    /// How answers are worded.
    pub api: api::Settings,
    /// What answers tell in headers.
    pub headers: api::headers::Settings,
    /// How the process leaves.
    pub drain: Drain,
    /// What it writes while it runs.
    pub log: telemetry::logs::Settings,
    /// Where it sends traces, if anywhere: told by OpenTelemetry's variables, not by settings of ours.
    #[serde(skip)]
    pub traces: Option<telemetry::traces::Settings>,
    /// All of these as they were given.
    #[serde(skip)]
    pub given: Vec<api::admin::EffectiveSetting>,
}

/// Where metrics are served, and how many there can be.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// The address; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most names with values of requests that one rule can have.
    pub names_per_rule: usize,
    /// How many of the keys denied most often are kept, in each list of them.
    pub top_keys: usize,
}

/// The memory that callers may take for what is on its way, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// For requests that have not arrived whole.
    pub requests: u64,
    /// For replies that are not sent yet.
    pub replies: u64,
}

/// How the process leaves after SIGTERM.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// How long it goes on answering as before, so that callers can notice that it is no longer ready.
    #[serde(deserialize_with = "duration")]
    pub delay: Duration,
    /// After this time it leaves, whatever is still open.
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

fn none_yet<'de, T, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

/// The path of a setting that may be `off`.
fn path_or_off(path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|path| path.as_os_str() != OFF)
}
