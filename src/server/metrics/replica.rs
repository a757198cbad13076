//! The metrics of every replica.

use std::{cell::OnceCell, sync::Arc};

use tollgate_cluster::Cluster;
use tollgate_counter::{
    metrics::MetricCounter,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter;
use tollgate_quota::QuotaService;
use tollgate_rules::{ActiveRules, DecisionTotals, Rules, Series};
use tollgate_shared_store::{SharedStore, SharedStoreCounters, SharedStoreStats};
use tollgate_store::{CounterEvents, Memory, StoreStats};
use tollgate_telemetry::{
    logs::LogControl,
    metrics::{Family, ProcessStats, metrics},
};

use crate::{
    api,
    server::{
        budgets::Budgets,
        stats::{ListenerStats, ServerStats},
    },
};

/// What the page reports. Metrics of a cluster, a shared store or a source of rules are included if there is one.
#[derive(Clone, Debug)]
pub(in crate::server) struct MetricsSources {
    pub(in crate::server) active_rules: Arc<ActiveRules>,
    pub(in crate::server) memory: Arc<Memory>,
    pub(in crate::server) limiter: Arc<limiter::LimiterMetrics>,
    pub(in crate::server) api: Arc<api::ApiMetrics>,
    pub(in crate::server) listeners: ServerStats,
    pub(in crate::server) budgets: Budgets,
    pub(in crate::server) logs: LogControl,
    pub(in crate::server) clock: Clock,
    pub(in crate::server) cluster: Option<Cluster>,
    pub(in crate::server) shared_store: Option<SharedStore>,
    pub(in crate::server) limits: Option<Arc<limiter::LimitCache>>,
    pub(in crate::server) rule_source: tollgate_sources::RuleSource,
    pub(in crate::server) quotas: Option<Arc<QuotaService>>,
    pub(in crate::server) reference_names: bool,
}

/// The sources, with what several metrics take from one reading of them.
pub(super) struct ReplicaValues {
    pub(super) state: MetricsSources,
    // Read when the first metric of rules is written: there may be very many.
    rules: OnceCell<Vec<(Series, DecisionTotals)>>,
    load: tollgate_rules::RulesStatus,
    pub(super) store: StoreStats,
    shared: Option<Arc<SharedStoreCounters>>,
    process: Option<ProcessStats>,
}

impl ReplicaValues {
    pub(super) fn new(state: MetricsSources, shared: Option<&SharedStoreStats>) -> Self {
        Self {
            rules: OnceCell::new(),
            load: state.active_rules.status(),
            store: state.memory.stats(),
            shared: shared.map(|shared| shared.counts.clone()),
            process: ProcessStats::now(),
            state,
        }
    }

    /// The totals of all rules.
    pub(super) fn rules(&self) -> &[(Series, DecisionTotals)] {
        let totals = || self.state.active_rules.current().rules().map(Rules::totals).unwrap_or_default();
        self.rules.get_or_init(totals)
    }

    fn each_rule(&self, family: &mut Family<'_>, number: fn(&DecisionTotals) -> u64) {
        for (Series { domain, rule }, totals) in self.rules() {
            family.sample(&[domain, rule], number(totals));
        }
    }

    /// A count of the counters in memory, and of those that this replica has in a shared store.
    fn events(&self, count: fn(&CounterEvents) -> &MetricCounter) -> u64 {
        let shared = self.shared.iter().map(|shared| &shared.events);
        shared.chain([self.state.memory.events()]).map(|events| count(events).get()).sum()
    }

    fn listeners(&self) -> [(&'static str, &ListenerStats); 4] {
        let ServerStats { grpc, http, admin, metrics } = &self.state.listeners;
        [("grpc", grpc), ("http", http), ("admin", admin), ("metrics", metrics)]
    }

    fn each_listener(&self, family: &mut Family<'_>, number: fn(&ListenerStats) -> u64) {
        for (listener, stats) in self.listeners() {
            family.sample(&[listener], number(stats));
        }
    }
}

/// Seconds since the Unix epoch.
fn seconds(instant: Timestamp) -> f64 {
    instant.since(Timestamp::EPOCH).as_secs_f64()
}

metrics! { METRICS: ReplicaValues;
    Counter "tollgate_decisions_total" ["domain", "rule", "code"]
        "Descriptors decided by a rule, by status code: ok or over_limit."
        => |all, family| {
            for (Series { domain, rule }, totals) in all.rules() {
                family.sample(&[domain, rule, "ok"], totals.ok);
                family.sample(&[domain, rule, "over_limit"], totals.over_limit);
            }
        };
    Counter "tollgate_hits_total" ["domain", "rule"]
        "Hits charged to counters, without charges that were rolled back or not stored."
        => |all, family| all.each_rule(family, |totals| totals.hits);
    Counter "tollgate_near_limit_hits_total" ["domain", "rule"]
        "Hits that passed with more than 80 % of the limit used."
        => |all, family| all.each_rule(family, |totals| totals.near_limit_hits);
    Counter "tollgate_shadow_denials_total" ["domain", "rule"]
        "Descriptors over the limit of a rule in shadow mode, which passed."
        => |all, family| all.each_rule(family, |totals| totals.shadow_denials);
    Counter "tollgate_candidate_denials_total" ["domain", "rule"]
        "Descriptors that the candidate of a rule would have refused."
        => |all, family| all.each_rule(family, |totals| totals.candidate_denials);
    Counter "tollgate_shadow_passed_requests_total" []
        "Requests that passed only because of limiter.shadow_mode."
        => |all, family| family.value(all.state.limiter.shadow_passes.get());
    Counter "tollgate_override_decisions_total" ["code"]
        "Descriptors decided by a limit in the request."
        => |all, family| {
            let overrides = all.state.limiter.overrides.totals();
            family.sample(&["ok"], overrides.ok);
            family.sample(&["over_limit"], overrides.over_limit);
        };
    Counter "tollgate_override_hits_total" []
        "Hits charged to counters of limits in requests."
        => |all, family| family.value(all.state.limiter.overrides.totals().hits);
    Counter "tollgate_unmatched_descriptors_total" []
        "Descriptors of a known domain without a rule, or whose only rule is replaced by another."
        => |all, family| family.value(all.state.limiter.unmatched.get());
    Counter "tollgate_unknown_domain_requests_total" []
        "Requests for a domain without rules; they pass."
        => |all, family| family.value(all.state.limiter.unknown_domains.get());
    Gauge "tollgate_counters" []
        "Counters in memory, including idle ones not yet removed."
        => |all, family| family.value(all.store.live);
    Gauge "tollgate_counters_bytes" []
        "Memory used by counters."
        => |all, family| family.value(all.store.bytes);
    Counter "tollgate_counters_evicted_total" ["reason"]
        "Evicted counters: idle, which changes no answer, or unexpired, as memory is full."
        => |all, family| {
            family.sample(&["idle"], all.store.evicted_idle);
            family.sample(&["unexpired"], all.store.evicted_unexpired);
        };
    Counter "tollgate_counters_refused_total" []
        "Charges to new keys refused because memory is full."
        => |all, family| family.value(all.store.refused_full);
    Gauge "tollgate_reservations" []
        "Open reservations of counters in memory."
        => |all, family| family.value(all.store.holds_open);
    Counter "tollgate_reservations_expired_total" ["outcome"]
        "Reservations that ended by their expiry: released or charged."
        => |all, family| {
            family.sample(&["released"], all.events(|events| &events.holds_released));
            family.sample(&["charged"], all.events(|events| &events.holds_charged));
        };
    Counter "tollgate_reservations_exhausted_total" []
        "Reservations, and charges with a request_id, refused because a counter has too many or all take too much memory."
        => |all, family| family.value(all.events(|events| &events.holds_exhausted));
    Counter "tollgate_ids_forgotten_total" []
        "Ids of ended reservations that were forgotten early because a counter had more than 4,096."
        => |all, family| family.value(all.events(|events| &events.ids_forgotten));
    Counter "tollgate_penalties_total" []
        "Penalties that began because a key was refused too often in a row."
        => |all, family| family.value(all.events(|events| &events.penalties));
    Counter "tollgate_penalty_refusals_unrecorded_total" []
        "Refusals of rules with a penalty that do not count for one because memory is full."
        => |all, family| family.value(all.store.refusals_unrecorded);
    Gauge "tollgate_own_limits" []
        "Keys of this replica with a limit of their own, or one removed within an hour. Not over Redis."
        => |all, family| family.value(all.store.own_limits);
    Gauge "tollgate_own_limit_bytes" []
        "Bytes of limits of their own, at most an eighth of the memory limit."
        => |all, family| family.value(all.store.own_limit_bytes);
    Counter "tollgate_clock_steps_total" ["direction"]
        "Steps of the counter clock by more than a minute, with the system clock: forward, or back."
        => |all, family| {
            family.sample(&["forward"], all.state.clock.long_steps_forward());
            family.sample(&["back"], all.state.clock.long_steps_back());
        };
    Gauge "tollgate_rules" []
        "Active rules."
        => |all, family| family.value(all.state.active_rules.current().rules().map_or(0, |rules| rules.len()));
    Gauge "tollgate_rules_generation" []
        "Rule sets activated since the start."
        => |all, family| family.value(all.load.generation);
    Gauge "tollgate_rules_info" ["hash", "version"]
        "Always 1; hash is equal on all replicas with the same rules. version is that of the control plane, empty for files."
        => |all, family| {
            if let Some(hash) = &all.load.hash {
                family.sample(&[hash, all.load.version.as_deref().unwrap_or_default()], 1);
            }
        };
    Gauge "tollgate_rules_loaded_timestamp_seconds" []
        "Time at which the active rules were loaded; 0 before the first."
        => |all, family| family.value(all.load.loaded_at.map_or(0.0, seconds));
    Counter "tollgate_rules_load_errors_total" []
        "Contents of rules that could not be loaded."
        => |all, family| family.value(all.load.load_errors);
    Gauge "tollgate_rules_stale" []
        "1 while the current rules of the source cannot be loaded, otherwise 0."
        => |all, family| family.value(u8::from(all.load.last_error.is_some()));
    Gauge "tollgate_connections" ["listener"]
        "Open connections."
        => |all, family| all.each_listener(family, ListenerStats::open);
    Counter "tollgate_connections_accepted_total" ["listener"]
        "Accepted connections, including those closed at once."
        => |all, family| all.each_listener(family, |stats| stats.accepted.get());
    Counter "tollgate_accept_errors_total" ["listener"]
        "Errors of accept."
        => |all, family| all.each_listener(family, |stats| stats.accept_errors.get());
    Counter "tollgate_certificates_loaded_total" ["listener"]
        "Certificate loads, including the one at the start."
        => |all, family| all.each_listener(family, |stats| stats.certificates_loaded.get());
    Counter "tollgate_certificate_errors_total" ["listener"]
        "Contents of certificate files that were refused; the previous ones stayed active."
        => |all, family| all.each_listener(family, |stats| stats.certificate_errors.get());
    Counter "tollgate_connections_closed_total" ["listener", "reason"]
        "Connections closed by the server: full, idle to make room for another, handshake, slow, age, or cut with calls still open."
        => |all, family| {
            for (listener, stats) in all.listeners() {
                family.sample(&[listener, "full"], stats.refused_full.get());
                family.sample(&[listener, "idle"], stats.closed_idle.get());
                family.sample(&[listener, "handshake"], stats.handshakes_failed.get());
                family.sample(&[listener, "slow"], stats.handshakes_slow.get());
                family.sample(&[listener, "age"], stats.aged.get());
                family.sample(&[listener, "cut"], stats.cut.get());
            }
        };
    Gauge "tollgate_certificate_end_time_seconds" ["listener"]
        "Expiry time of the active certificate."
        => |all, family| {
            for (listener, stats) in all.listeners() {
                if let Some(end) = stats.certificate_expires() {
                    family.sample(&[listener], seconds(end));
                }
            }
        };
    Counter "tollgate_unfinished_requests_refused_total" []
        "Incomplete gRPC requests refused because memory.requests was exhausted."
        => |all, family| family.value(all.state.budgets.requests.rejected());
    Gauge "tollgate_unfinished_request_bytes" []
        "Memory used by gRPC requests that are incomplete, came in pieces, or wait for another replica or a shared store."
        => |all, family| family.value(all.state.budgets.requests.bytes());
    Gauge "tollgate_unsent_reply_bytes" []
        "Memory used by unsent gRPC replies, of connections with at least 16 KiB of them."
        => |all, family| family.value(all.state.budgets.replies.bytes());
    Counter "tollgate_top_missed_denials_total" []
        "Denials missing from the list of the most denied keys, which was being read."
        => |all, family| family.value(all.state.limiter.denied.missed());
    Counter "tollgate_log_lines_dropped_total" ["reason"]
        "Dropped log lines: rate beyond the bound of their call site, output if the log output did not accept them."
        => |all, family| {
            family.sample(&["rate"], all.state.logs.dropped_by_rate());
            family.sample(&["output"], all.state.logs.dropped_by_output());
        };
    Gauge "tollgate_build_info" ["version"]
        "Always 1; the version of the program."
        => |_, family| family.sample(&[env!("CARGO_PKG_VERSION")], 1);
    Counter "process_cpu_seconds_total" []
        "CPU time of the process, user and system."
        => |all, family| all.process.iter().for_each(|process| family.value(process.cpu_seconds));
    Gauge "process_resident_memory_bytes" []
        "Resident memory of the process."
        => |all, family| all.process.iter().for_each(|process| family.value(process.resident_bytes));
    Gauge "process_start_time_seconds" []
        "Start time of the process."
        => |all, family| all.process.iter().for_each(|process| family.value(process.started));
}
