//! The metrics page.
//!
//! A metric is one row of [`api::METRICS`], [`replica`], [`cluster`], [`shared_store`], [`limits`], [`rules_url`] or [`xds`]: its name,
//! its help and its series.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tollgate_cluster::Cluster;
use tollgate_limiter::limiter::LimitCache;
use tollgate_quota::QuotaService;
use tollgate_shared_store::SharedStore;
use tollgate_telemetry::metrics::{self, Metric, Page, Row};

use crate::api::{
    self,
    admin::doctor::{MetricReader, MetricValues},
};

mod cluster;
mod limits;
mod reference;
mod replica;
mod rules_url;
mod shared_store;
mod xds;

pub(super) use replica::MetricsSources;

/// The metrics of every replica, in the order of the page.
pub fn replica_metrics() -> impl Iterator<Item = &'static Metric> {
    let of_api = api::METRICS.iter().map(|row| &row.metric);
    replica::ALL.iter().map(|row| &row.metric).chain(of_api)
}

/// The metrics of a replica in a cluster, which follow the others.
pub fn cluster_metrics() -> impl Iterator<Item = &'static Metric> {
    cluster::ALL.iter().map(|row| &row.metric)
}

/// The metrics of a replica with a shared store, which follow the others.
pub fn shared_store_metrics() -> impl Iterator<Item = &'static Metric> {
    shared_store::ALL.iter().map(|row| &row.metric)
}

/// The metrics of a replica that looks up limits of keys, which follow the others.
pub fn limit_metrics() -> impl Iterator<Item = &'static Metric> {
    limits::ALL.iter().map(|row| &row.metric)
}

/// The metrics of a replica with rules from a URL, which follow the others.
pub fn rules_url_metrics() -> impl Iterator<Item = &'static Metric> {
    rules_url::ALL.iter().map(|row| &row.metric)
}

/// The metrics of a replica with rules from a control plane, which follow the others.
pub fn xds_metrics() -> impl Iterator<Item = &'static Metric> {
    xds::ALL.iter().map(|row| &row.metric)
}

/// The metrics of a replica with the rate limit quota service, which follow the others.
pub fn rlqs_metrics() -> impl Iterator<Item = &'static Metric> {
    tollgate_quota::METRICS.iter().map(|row| &row.metric)
}

/// A router with `/metrics` only.
pub(super) fn router(state: PageState) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(state)
}

/// What the page reports. Metrics of a cluster, a shared store or a source of rules are included if there is one.
#[derive(Clone)]
pub(super) struct PageState {
    pub(super) sources: MetricsSources,
    pub(super) cluster: Option<Cluster>,
    pub(super) shared_store: Option<SharedStore>,
    pub(super) limits: Option<Arc<LimitCache>>,
    pub(super) rule_source: tollgate_sources::RuleSourceStats,
    pub(super) quotas: Option<Arc<QuotaService>>,
    pub(super) reference_names: bool,
}

async fn scrape(State(state): State<PageState>) -> Response {
    // With very many rules this takes a while, which no request should wait for.
    let page = move || state.page(Wanted::All).finish();
    match tokio::task::spawn_blocking(page).await {
        Ok(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Which metrics are written.
#[derive(Clone, Copy)]
enum Wanted<'n> {
    All,
    Named(&'n [&'n str]),
}

impl Wanted<'_> {
    fn add<R>(self, page: &mut Page, rows: &[Row<R>], reading: &R) {
        match self {
            Self::All => page.add(rows, reading),
            Self::Named(names) => page.add_named(rows, names, reading),
        }
    }
}

impl PageState {
    fn page(self, wanted: Wanted<'_>) -> Page {
        let xds = self.rule_source.xds.map(|stats| xds::XdsValues::new(stats, &self.sources.active_rules));
        let shared = self.shared_store.map(|store| store.stats());
        let api = self.sources.api.clone();
        let limiter = self.sources.limiter.clone();
        let mut page = Page::default();
        let reading = replica::ReplicaValues::new(self.sources, shared.as_ref());
        wanted.add(&mut page, replica::ALL, &reading);
        wanted.add(&mut page, api::METRICS, &*api);
        if self.reference_names {
            wanted.add(&mut page, reference::ALL, &reference::RuleTotals::from_rules(reading.rules()));
        }
        if let Some(cluster) = &self.cluster {
            let stats = cluster.stats();
            let backup_bytes = reading.store.backup_bytes;
            wanted.add(&mut page, cluster::ALL, &cluster::ClusterValues { stats, backup_bytes });
        }
        if let Some(stats) = &shared {
            wanted.add(&mut page, shared_store::ALL, stats);
        }
        if let Some(cache) = self.limits {
            wanted.add(&mut page, limits::ALL, &limits::LimitValues { cache, limiter });
        }
        if let Some(stats) = &self.rule_source.url {
            wanted.add(&mut page, rules_url::ALL, stats);
        }
        if let Some(stats) = &xds {
            wanted.add(&mut page, xds::ALL, stats);
        }
        if let Some(quotas) = &self.quotas {
            wanted.add(&mut page, tollgate_quota::METRICS, &quotas.reading());
        }
        page
    }
}

impl MetricReader for PageState {
    fn series(&self, metrics: &[&str]) -> MetricValues {
        // Totals under other names are those of all rules.
        let state = Self { reference_names: false, ..self.clone() };
        let page = state.page(Wanted::Named(metrics));
        page.series().map(|(series, value)| (series.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_counter::time::{Clock, Timestamp};
    use tollgate_rules::ActiveRules;
    use tollgate_store::{Memory, OnFull};

    use super::*;
    use tollgate_telemetry::{logs::LogControl, metrics::MetricKind};

    use crate::{
        server::{Budgets, ServerStats},
        settings::Settings,
    };

    fn sources() -> MetricsSources {
        MetricsSources {
            active_rules: Arc::default(),
            memory: Arc::new(Memory::new(1 << 20, OnFull::Deny).shared()),
            limiter: Arc::default(),
            api: Arc::default(),
            listeners: ServerStats::default(),
            budgets: Budgets::new(&Settings::with(&[]).memory),
            logs: LogControl::default(),
            clock: Clock::manual(Timestamp::EPOCH),
        }
    }

    fn alone(sources: MetricsSources) -> PageState {
        PageState {
            sources,
            cluster: None,
            shared_store: None,
            limits: None,
            rule_source: tollgate_sources::RuleSourceStats::default(),
            quotas: None,
            reference_names: false,
        }
    }

    async fn lone(memory: Arc<Memory>) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let secret_file = folder.path().join("secret");
        std::fs::write(&secret_file, "a secret that replicas share").unwrap();
        let listen =
            [("cluster.listen", "127.0.0.1:0"), ("cluster.secret_file", secret_file.to_str().unwrap())];
        let settings = Settings::with(&listen).cluster.unwrap();
        let active_rules = Arc::new(ActiveRules::default());
        let clock = Clock::system();
        Cluster::bind(settings, memory, Vec::new(), active_rules, clock).await.unwrap().0
    }

    fn families(page: &str) -> Vec<&str> {
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
    }

    #[tokio::test]
    async fn cluster_metrics_are_all_present_at_zero_from_start() {
        let sources = sources();
        let cluster = lone(sources.memory.clone()).await;
        let page = PageState { cluster: Some(cluster), ..alone(sources) }.page(Wanted::All).finish();
        let of_all = replica_metrics().chain(cluster_metrics()).map(|metric| metric.name);
        assert_eq!(families(&page), of_all.collect::<Vec<_>>());
        let series: Vec<_> = page.lines().filter(|line| line.starts_with("tollgate_cluster_")).collect();
        for (line, number) in [
            (r#"tollgate_cluster_state{state="joining"}"#, "1"),
            (r#"tollgate_cluster_state{state="serving"}"#, "0"),
            ("tollgate_cluster_slots", "0"),
            ("tollgate_cluster_slots_moving", "0"),
            ("tollgate_cluster_hand_off_seconds_total", "0"),
            ("tollgate_cluster_degraded_checks_total", "0"),
            (r#"tollgate_cluster_links_refused_total{reason="untrusted"}"#, "0"),
            (r#"tollgate_cluster_batch_bytes_total{direction="out"}"#, "0"),
        ] {
            assert!(series.contains(&format!("{line} {number}").as_str()), "{line}: {series:#?}");
        }
        let age = series.iter().find_map(|line| line.strip_prefix("tollgate_cluster_backup_age_seconds "));
        assert!(age.unwrap().parse::<f64>().unwrap() < 60.0, "{age:?}");
    }

    #[test]
    fn cluster_metrics_are_absent_without_cluster() {
        let page = alone(sources()).page(Wanted::All).finish();
        assert_eq!(families(&page), replica_metrics().map(|metric| metric.name).collect::<Vec<_>>());
    }

    #[test]
    fn exactly_counters_end_with_total() {
        let of_all = replica_metrics().chain(cluster_metrics()).chain(shared_store_metrics());
        for metric in of_all.chain(rules_url_metrics()).chain(xds_metrics()).chain(rlqs_metrics()) {
            let is_counter = metric.kind == MetricKind::Counter;
            assert_eq!(is_counter, metric.name.ends_with("_total"), "{}", metric.name);
        }
    }
}
