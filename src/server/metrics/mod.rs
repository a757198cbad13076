//! The metrics page.
//!
//! A metric is one row of [`api::metrics::METRICS`], [`replica`], [`cluster`] or [`optional`]: its name, its help and its series.

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tollgate_shared_store::SharedStore;
use tollgate_telemetry::metrics::{self, Metric, Page, Row};

use crate::api::{
    self,
    admin::alerts::{MetricReader, MetricValues},
};

mod cluster;
mod optional;
pub(crate) mod replica;

use replica::MetricsSources;

/// The metrics of all replicas, whatever they have, under their own names. Those of every replica come first, in the order
/// of the page.
pub fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    let of_all = each(replica::METRICS).chain(each(api::metrics::METRICS));
    let of_stores = each(optional::SHARED_STORE).chain(each(optional::LIMITS));
    let of_sources = each(optional::RULES_URL).chain(each(optional::XDS));
    let of_quotas = each(tollgate_quota::METRICS);
    of_all.chain(each(cluster::METRICS)).chain(of_stores).chain(of_sources).chain(of_quotas)
}

fn each<R>(rows: &'static [Row<R>]) -> impl Iterator<Item = &'static Metric> {
    rows.iter().map(|row| &row.metric)
}

/// A router with `/metrics` only.
pub(super) fn router(state: MetricsSources) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(state)
}

async fn scrape(State(state): State<MetricsSources>) -> Response {
    // With very many rules this takes a while, which no request should wait for.
    let page = move || fill(Page::default(), state).finish();
    match tokio::task::spawn_blocking(page).await {
        Ok(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Adds the metrics of a replica that has these sources.
fn fill(mut page: Page<'_>, state: MetricsSources) -> Page<'_> {
    let shared = state.shared_store.as_ref().map(SharedStore::stats);
    let reading = replica::ReplicaValues::new(state, shared.as_ref());
    let state = &reading.state;
    page.add(replica::METRICS, &reading);
    page.add(api::metrics::METRICS, &*state.api);
    if state.reference_names {
        page.add(optional::REFERENCE, &optional::RuleTotals::from_rules(reading.rules()));
    }
    if let Some(cluster) = &state.cluster {
        let stats = cluster.stats();
        let backup_bytes = reading.store.backup_bytes;
        page.add(cluster::METRICS, &cluster::ClusterValues { stats, backup_bytes });
    }
    if let Some(stats) = &shared {
        page.add(optional::SHARED_STORE, stats);
    }
    if let Some(cache) = state.limits.clone() {
        let limiter = state.limiter.clone();
        page.add(optional::LIMITS, &optional::LimitValues { cache, limiter });
    }
    if let Some(stats) = &state.rule_source.url {
        page.add(optional::RULES_URL, stats);
    }
    if let Some(stats) = state.rule_source.xds.clone() {
        page.add(optional::XDS, &optional::XdsValues::new(stats, &state.active_rules));
    }
    if let Some(quotas) = &state.quotas {
        page.add(tollgate_quota::METRICS, &**quotas);
    }
    page
}

impl MetricReader for MetricsSources {
    fn series(&self, metrics: &[&str]) -> MetricValues {
        // Totals under other names are those of all rules.
        let state = Self { reference_names: false, ..self.clone() };
        let page = fill(Page::only(metrics), state);
        page.series().map(|(series, value)| (series.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_cluster::Cluster;
    use tollgate_counter::time::{Clock, Timestamp};
    use tollgate_rules::ActiveRules;
    use tollgate_sources::{RuleSource, RuleSourceKind};
    use tollgate_store::{Memory, OnFull};

    use super::*;
    use tollgate_telemetry::{logs::LogControl, metrics::MetricKind};

    use crate::{
        server::{budgets::Budgets, stats::ServerStats},
        settings::Settings,
    };

    fn replica_metrics() -> impl Iterator<Item = &'static Metric> {
        each(replica::METRICS).chain(each(api::metrics::METRICS))
    }

    fn sources() -> MetricsSources {
        MetricsSources {
            active_rules: Arc::default(),
            memory: Arc::new(Memory::new(1 << 20, OnFull::Deny).shared()),
            limiter: Arc::default(),
            api: Arc::default(),
            listeners: ServerStats::default(),
            budgets: Budgets::new(&Settings::with(&[]).sections.memory),
            logs: LogControl::default(),
            clock: Clock::manual(Timestamp::EPOCH),
            cluster: None,
            shared_store: None,
            limits: None,
            rule_source: RuleSource::new(RuleSourceKind::Files, "rules.yaml"),
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
        let sources = MetricsSources { cluster: Some(cluster), ..sources };
        let page = fill(Page::default(), sources).finish();
        let of_all = replica_metrics().chain(each(cluster::METRICS)).map(|metric| metric.name);
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
        let page = fill(Page::default(), sources()).finish();
        assert_eq!(families(&page), replica_metrics().map(|metric| metric.name).collect::<Vec<_>>());
    }

    #[test]
    fn exactly_counters_end_with_total() {
        for metric in all_metrics() {
            let is_counter = metric.kind == MetricKind::Counter;
            assert_eq!(is_counter, metric.name.ends_with("_total"), "{}", metric.name);
        }
    }
}
