//! What the findings are taken from.

use std::sync::Arc;

use tollgate_cluster::Cluster;
use tollgate_counter::time::Clock;
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::ActiveRules;
use tollgate_shared_store::SharedStore;
use tollgate_store::Memory;

use crate::api::{ApiMetrics, admin::Certificates};

/// What the findings are taken from.
#[derive(Clone)]
pub struct DoctorSources {
    /// The active rules.
    pub active_rules: Arc<ActiveRules>,
    /// The counters.
    pub memory: Arc<Memory>,
    /// The limiter.
    pub limiter: Limiter,
    /// The cluster, if this replica is part of one.
    pub cluster: Option<Cluster>,
    /// The shared store, if the counters are there.
    pub shared_store: Option<SharedStore>,
    /// The metrics of requests.
    pub requests: Arc<ApiMetrics>,
    /// The certificates of the listeners.
    pub certificates: Arc<dyn Certificates>,
    /// The clock.
    pub clock: Clock,
    /// Why a replica that stands in for envoyproxy/ratelimit counts by itself, if it does.
    pub alone: Option<&'static str>,
}
