//! The metrics page.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    api,
    cluster::{self, Cluster},
    limiter,
    rules::{self, ActiveRules, Series, Totals},
    server::{Budgets, ListenerReading, ServerStats},
    store::Memory,
    telemetry::{
        logs::LogControl,
        metrics::{self, Metric, Page, ProcessStats, cluster as shared},
    },
    time::{Clock, LongSteps, Timestamp},
};

/// The components that the page reports.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) active_rules: Arc<ActiveRules>,
    pub(super) memory: Arc<Memory>,
    pub(super) limiter: Arc<limiter::Metrics>,
    pub(super) api: Arc<api::Metrics>,
    pub(super) listeners: ServerStats,
    pub(super) budgets: Budgets,
    pub(super) logs: LogControl,
    pub(super) clock: Clock,
}

/// A router with `/metrics` only. Cluster metrics are included if there is a cluster.
pub(super) fn router(cluster: Option<Cluster>, sources: Sources) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state((sources, cluster))
}

async fn scrape(State((sources, cluster)): State<(Sources, Option<Cluster>)>) -> Response {
    // With very many rules this takes a while, which no request should wait for.
    let page = move || sources.page(cluster.as_ref().map(Cluster::stats).as_ref());
    match tokio::task::spawn_blocking(page).await {
        Ok(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

impl Sources {
    fn page(&self, cluster: Option<&cluster::Stats>) -> String {
        let mut page = Page::default();
        self.decisions(&mut page);
        self.requests(&mut page);
        self.counters(&mut page);
        self.rules(&mut page);
        self.connections(&mut page);
        page.single(metrics::UNFINISHED_REFUSED, self.budgets.requests.rejected());
        page.single(metrics::UNFINISHED_BYTES, self.budgets.requests.bytes());
        page.single(metrics::UNSENT_BYTES, self.budgets.replies.bytes());
        page.single(metrics::TOP_MISSED, self.limiter.denied.missed());
        let unwritten = self.logs.dropped_lines();
        let mut dropped = page.family(metrics::LOG_LINES_DROPPED);
        dropped.sample(&["rate"], unwritten.rate);
        dropped.sample(&["output"], unwritten.output);
        page.family(metrics::BUILD_INFO).sample(&[env!("CARGO_PKG_VERSION")], 1);
        if let Some(process) = ProcessStats::now() {
            page.single(metrics::PROCESS_CPU, process.cpu_seconds);
            page.single(metrics::PROCESS_MEMORY, process.resident_bytes);
            page.single(metrics::PROCESS_START, process.started);
        }
        if let Some(figures) = cluster {
            cluster_state(figures, &mut page);
            calls(figures, &mut page);
            page.single(shared::COPY_BYTES, self.memory.stats().backup_bytes);
            links(figures, &mut page);
        }
        page.finish()
    }

    fn decisions(&self, page: &mut Page) {
        let all = self.active_rules.stats().totals();
        let mut family = page.family(metrics::DECISIONS);
        for (Series { domain, rule }, totals) in &all {
            family.sample(&[domain, rule, "ok"], totals.ok);
            family.sample(&[domain, rule, "over_limit"], totals.over_limit);
        }
        let mut each = |metric: Metric, number: fn(&Totals) -> u64| {
            let mut family = page.family(metric);
            for (Series { domain, rule }, totals) in &all {
                family.sample(&[domain, rule], number(totals));
            }
        };
        each(metrics::HITS, |totals| totals.hits);
        each(metrics::NEAR_LIMIT_HITS, |totals| totals.near_limit_hits);
        each(metrics::SHADOW_DENIALS, |totals| totals.shadow_denials);
        each(metrics::CANDIDATE_DENIALS, |totals| totals.candidate_denials);
        page.single(metrics::SHADOW_PASSES, self.limiter.shadow_passes.get());
        let overrides = self.limiter.overrides.totals();
        let mut family = page.family(metrics::OVERRIDE_DECISIONS);
        family.sample(&["ok"], overrides.ok);
        family.sample(&["over_limit"], overrides.over_limit);
        page.single(metrics::OVERRIDE_HITS, overrides.hits);
        page.single(metrics::UNMATCHED, self.limiter.unmatched.get());
        page.single(metrics::UNKNOWN_DOMAINS, self.limiter.unknown_domains.get());
    }

    fn requests(&self, page: &mut Page) {
        let mut unanswered = page.family(metrics::UNANSWERED);
        unanswered.sample(&["no_rules"], self.api.no_rules.get());
        unanswered.sample(&["joining"], self.api.joining.get());
        unanswered.sample(&["overloaded"], self.api.overloaded.get());
        unanswered.sample(&["invalid"], self.api.invalid.get());
        page.family(metrics::REQUEST_DURATION).buckets(&self.api.duration.buckets());
        page.single(metrics::QUEUE_WAITING, self.api.waiting());
        page.family(metrics::QUEUE_DELAY).buckets(&self.api.delays.buckets());
    }

    fn counters(&self, page: &mut Page) {
        let figures = self.memory.stats();
        page.single(metrics::COUNTERS, figures.live);
        page.single(metrics::COUNTER_BYTES, figures.bytes);
        let mut evicted = page.family(metrics::COUNTERS_EVICTED);
        evicted.sample(&["idle"], figures.evicted_idle);
        evicted.sample(&["unexpired"], figures.evicted_unexpired);
        page.single(metrics::COUNTERS_REFUSED, figures.refused_full);
        let LongSteps { forward, back } = self.clock.long_steps();
        let mut steps = page.family(metrics::CLOCK_STEPS);
        steps.sample(&["forward"], forward);
        steps.sample(&["back"], back);
    }

    fn rules(&self, page: &mut Page) {
        let rules::Status { generation, hash, loaded_at, load_errors, last_error } =
            self.active_rules.status();
        let number = self.active_rules.current().as_ref().map_or(0, |rules| rules.len());
        page.single(metrics::RULES, number);
        page.single(metrics::RULES_GENERATION, generation);
        let mut info = page.family(metrics::RULES_INFO);
        if let Some(hash) = hash {
            info.sample(&[&hash], 1);
        }
        page.single(metrics::RULES_LOADED, loaded_at.map_or(0.0, seconds));
        page.single(metrics::RULES_LOAD_ERRORS, load_errors);
        page.single(metrics::RULES_STALE, u8::from(last_error.is_some()));
    }
}

impl Sources {
    fn connections(&self, page: &mut Page) {
        let ServerStats { grpc, http, admin, metrics: own } = &self.listeners;
        let all = [("grpc", grpc), ("http", http), ("admin", admin), ("metrics", own)];
        let all = all.map(|(listener, stats)| (listener, stats.read()));
        let mut each = |metric: Metric, number: fn(&ListenerReading) -> u64| {
            let mut family = page.family(metric);
            for (listener, figures) in &all {
                family.sample(&[listener], number(figures));
            }
        };
        each(metrics::CONNECTIONS, |figures| figures.open);
        each(metrics::CONNECTIONS_ACCEPTED, |figures| figures.accepted);
        each(metrics::ACCEPT_ERRORS, |figures| figures.accept_errors);
        each(metrics::CERTIFICATES_LOADED, |figures| figures.certificates_loaded);
        each(metrics::CERTIFICATE_ERRORS, |figures| figures.certificate_errors);
        let mut closed = page.family(metrics::CONNECTIONS_CLOSED);
        for (listener, figures) in &all {
            closed.sample(&[listener, "full"], figures.refused_full);
            closed.sample(&[listener, "idle"], figures.closed_idle);
            closed.sample(&[listener, "handshake"], figures.handshakes_failed);
            closed.sample(&[listener, "slow"], figures.handshakes_slow);
            closed.sample(&[listener, "age"], figures.aged);
            closed.sample(&[listener, "cut"], figures.cut);
        }
        let mut ends = page.family(metrics::CERTIFICATE_ENDS);
        for (listener, figures) in &all {
            if let Some(end) = figures.certificate_expires {
                ends.sample(&[listener], seconds(end));
            }
        }
    }
}

/// This replica's place among the others, and what changes hands.
fn cluster_state(figures: &cluster::Stats, page: &mut Page) {
    let cluster::Stats {
        node,
        state,
        members,
        slots_owned,
        slots_moving,
        members_with_other_rules,
        is_isolated,
        ..
    } = figures;
    let mut family = page.family(shared::STATE);
    for (name, each) in [
        ("joining", cluster::MemberState::Joining),
        ("serving", cluster::MemberState::Serving),
        ("draining", cluster::MemberState::Draining),
    ] {
        family.sample(&[name], u8::from(*state == each));
    }
    page.single(shared::MEMBERS, members);
    page.single(shared::MEMBERS_OF_OTHER_RULES, members_with_other_rules);
    page.single(shared::MEMBERS_LOST, node.members_lost);
    page.single(shared::ISOLATED, u8::from(*is_isolated));
    page.single(shared::ISOLATIONS, node.isolations);
    page.single(shared::SLOTS, slots_owned);
    page.single(shared::SLOTS_MOVING, slots_moving);
    page.single(shared::SLOTS_TAKEN, node.slots_acquired);
    page.single(shared::SLOTS_CLAIMED, node.slots_recovered);
    page.single(shared::COUNTERS_HANDED_OFF, node.handed_off);
    page.single(shared::COUNTERS_RECEIVED, node.received);
    page.single(shared::HAND_OFFS, node.hand_offs);
    page.single(shared::HAND_OFF_TIME, Duration::from_nanos(node.hand_off_nanos).as_secs_f64());
    page.single(shared::BEGUN_ANEW, node.clusters_adopted);
}

/// Remote checks, leases and backups.
fn calls(figures: &cluster::Stats, page: &mut Page) {
    let cluster::Stats { node, backup_age, .. } = figures;
    page.single(shared::FORWARDED, node.forwarded);
    page.single(shared::LEASED, node.leased);
    page.single(shared::DEGRADED, node.degraded);
    page.single(shared::LATE, node.late_answers);
    page.single(shared::BREAKER_OPENINGS, node.breaker_openings);
    page.single(shared::UNTOLD, node.reports_dropped);
    page.single(shared::SLICES_LENT, node.grants_lent);
    page.single(shared::SLICES_RECALLED, node.grants_recalled);
    page.single(shared::SLICES_LOST, node.grants_lost);
    page.single(shared::BACKED_UP, node.backed_up);
    page.single(shared::BACKUPS_ARRIVED, node.backups_arrived);
    page.single(shared::BACKUPS_REFUSED, node.backups_refused);
    page.single(shared::BACKUP_AGE, backup_age.as_secs_f64());
}

fn links(figures: &cluster::Stats, page: &mut Page) {
    let links = &figures.links;
    page.single(shared::LINKS, links.links_up);
    page.single(shared::RECONNECTS, links.reconnects);
    let mut refused = page.family(shared::LINKS_REFUSED);
    for (reason, number) in links.failures {
        refused.sample(&[reason.name()], number);
    }
    let mut batches = page.family(shared::BATCHES);
    batches.sample(&["in"], links.batches_in);
    batches.sample(&["out"], links.batches_out);
    let mut bytes = page.family(shared::BATCH_BYTES);
    bytes.sample(&["in"], links.bytes_in);
    bytes.sample(&["out"], links.bytes_out);
    page.single(shared::RESENT, links.pieces_resent);
}

/// Seconds since the Unix epoch.
fn seconds(instant: Timestamp) -> f64 {
    instant.since(Timestamp::EPOCH).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Trust,
        descriptor::{Secret, SharedSecret},
        store::OnFull,
        time::Clock,
    };

    fn sources() -> Sources {
        Sources {
            active_rules: Arc::default(),
            memory: Arc::new(Memory::new(1 << 20, OnFull::Deny).shared()),
            limiter: Arc::default(),
            api: Arc::default(),
            listeners: ServerStats::default(),
            budgets: Budgets::new(crate::settings::Memory { requests: 1 << 24, replies: 1 << 24 }),
            logs: LogControl::default(),
            clock: Clock::manual(Timestamp::EPOCH),
        }
    }

    async fn lone(memory: Arc<Memory>) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let secret_file = folder.path().join("secret");
        std::fs::write(&secret_file, "a secret that replicas share").unwrap();
        let trust =
            Trust { files: None, secret_file: Some(secret_file), poll_interval: Duration::from_secs(1) };
        let link = cluster::link::Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            seeds: Vec::new(),
            trust,
        };
        let settings = cluster::Settings {
            link,
            forward_budget_max: Duration::from_millis(500),
            backup_interval: Some(Duration::from_millis(100)),
            forget_after: Duration::from_secs(30),
            lease_from: None,
        };
        let (secret, clock) = (SharedSecret::from(Secret::random()), Clock::system());
        Cluster::bind(settings, memory, Vec::new(), secret, clock).await.unwrap().0
    }

    fn families(page: &str) -> Vec<&str> {
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
    }

    #[tokio::test]
    async fn cluster_metrics_are_all_present_at_zero_from_start() {
        let sources = sources();
        let cluster = lone(sources.memory.clone()).await;
        let page = sources.page(Some(&cluster.stats()));
        let of_all = metrics::ALL.iter().chain(shared::ALL).map(|metric| metric.name);
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
        let page = sources().page(None);
        assert_eq!(families(&page), metrics::ALL.iter().map(|metric| metric.name).collect::<Vec<_>>());
    }
}
