//! How this process runs, fixed until it is restarted: defaults, then a file, then the environment, then flags.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{api, rules, telemetry};

mod catalog;
mod sources;

pub use catalog::{CATALOG, Setting, Shape};
pub use sources::{Error, Sources, environment};

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The gRPC service.
    pub grpc: Listener,
    /// The plain HTTP side.
    pub http: Listener,
    /// The operator's side.
    pub admin: Listener,
    /// Where rules come from.
    #[serde(deserialize_with = "rules_settings")]
    pub rules: rules::Settings,
    /// How answers are worded.
    pub api: api::Settings,
    /// How the process leaves.
    pub drain: Drain,
    /// What it writes while it runs.
    pub log: telemetry::logs::Settings,
}

/// Where to listen.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The address; port 0 takes any that is free.
    pub listen: SocketAddr,
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

fn rules_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<rules::Settings, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        path: std::path::PathBuf,
        #[serde(deserialize_with = "duration")]
        poll_interval: Duration,
    }
    let Settings { path, poll_interval } = Settings::deserialize(deserializer)?;
    Ok(rules::Settings { path, poll_interval })
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    catalog::duration(&text).ok_or_else(|| D::Error::custom(Shape::Duration.expected()))
}
