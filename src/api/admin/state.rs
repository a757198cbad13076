//! The state that admin handlers share.

use std::{fmt, sync::Arc};

use tollgate_cluster::Cluster;
use tollgate_counter::{
    named,
    time::{Clock, Timestamp},
};
use tollgate_quota::QuotaService;
use tollgate_rules::ActiveRules;
use tollgate_shared_store::SharedStore;
use tollgate_sources::RuleSource;
use tollgate_store::Memory;
use tollgate_telemetry::logs::LogControl;

use crate::api::{
    admin::alerts::{AlertHistory, MetricReader},
    reader::RequestReader,
    service::Api,
};

/// The state that the admin handlers share.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// The cluster, if this replica is part of one.
    pub cluster: Option<Cluster>,
    /// The shared store, if the counters are there.
    pub shared_store: Option<SharedStore>,
    /// Where the rules come from.
    pub rule_source: RuleSource,
    /// The active rules.
    pub active_rules: Arc<ActiveRules>,
    /// The counters.
    pub memory: Arc<Memory>,
    /// The services that decide requests.
    pub api: Api,
    /// The rate limit quota service, if it is enabled.
    pub quotas: Option<Arc<QuotaService>>,
    /// Reads the requests to explain.
    pub reader: RequestReader,
    /// The effective settings.
    pub settings: Arc<[EffectiveSetting]>,
    /// The log level.
    pub logs: LogControl,
    /// All metrics by their names.
    pub metrics: Arc<dyn MetricReader>,
    /// The values of the metrics in the last hour.
    pub history: Arc<AlertHistory>,
    /// The certificates of the listeners.
    pub certificates: Arc<dyn Certificates>,
    /// Whether this replica is ready.
    pub readiness: Arc<dyn Readiness>,
    /// The clock.
    pub clock: Clock,
    /// When the process has begun.
    pub started: Timestamp,
    /// Why a replica that stands in for envoyproxy/ratelimit counts by itself, if it does.
    pub alone: Option<&'static str>,
}

/// The effective value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The section and name.
    pub name: &'static str,
    /// The value; a secret is not displayed.
    pub value: String,
    /// The origin of the value.
    pub from: SettingOrigin,
}

named! {
    /// The origin of a value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SettingOrigin {
        /// The default.
        Default = "default",
        /// A variable of envoyproxy/ratelimit.
        Reference = "reference",
        /// The settings file.
        File = "file",
        /// An environment variable.
        Environment = "environment",
        /// A command-line flag.
        Flag = "flag",
    }
}

/// Reports whether this process is ready to serve requests.
pub trait Readiness: fmt::Debug + Send + Sync + 'static {
    /// `Ok` has the answer if it is, `Err` the reason why it is not.
    fn ready(&self) -> Result<String, String>;

    /// The answer of `/healthcheck`, which is also the probe of liveness where rules are not required. `Ok` and `Err`
    /// have the meanings of [`Readiness::ready`].
    fn healthy(&self) -> Result<String, String> {
        self.ready()
    }
}

/// The certificates of the listeners.
pub trait Certificates: fmt::Debug + Send + Sync {
    /// The name of each listener with a certificate, and when the active one expires.
    fn expiries(&self) -> Vec<(&'static str, Timestamp)>;

    /// The name of each listener whose files have certificates that cannot be used.
    fn refused(&self) -> Vec<&'static str>;
}
