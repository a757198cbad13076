//! The metrics of replicas that have a shared store, limits of keys from a store, rules from elsewhere, or dashboards of
//! envoyproxy/ratelimit.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_counter::time::Timestamp;
use tollgate_limiter::limiter::{LimitCache, LimiterMetrics};
use tollgate_rules::{ActiveRules, DecisionTotals, KeyedRules, Rules, RulesStatus, Series};
use tollgate_shared_store::SharedStoreStats;
use tollgate_sources::{url::UrlStats, xds::XdsStats};
use tollgate_telemetry::metrics::{Family, metrics};

metrics! { SHARED_STORE: SharedStoreStats;
    Gauge "tollgate_store_ready" []
        "1 while the shared store can be used, otherwise 0."
        => |stats, family| family.value(u8::from(stats.is_ready));
    Gauge "tollgate_store_replicas" []
        "Replicas that use the shared store, as it last said."
        => |stats, family| family.value(stats.replicas);
    Counter "tollgate_store_checks_total" []
        "Checks decided with the shared store."
        => |stats, family| family.value(stats.counts.checks.get());
    Counter "tollgate_store_batches_total" []
        "Batches of checks sent to the shared store; each is one round trip."
        => |stats, family| family.value(stats.counts.batches.get());
    Histogram "tollgate_store_round_trip_seconds" []
        "Time from sending a batch to its answer."
        => |stats, family| family.buckets(&stats.round_trips);
    Counter "tollgate_store_conflicts_total" []
        "Counters decided again because another replica changed them first."
        => |stats, family| family.value(stats.counts.conflicts.get());
    Counter "tollgate_store_refused_locally_total" []
        "Checks refused by the last known value of their counter, without asking the shared store."
        => |stats, family| family.value(stats.counts.refused_locally.get());
    Counter "tollgate_store_degraded_checks_total" []
        "Checks decided without the shared store."
        => |stats, family| family.value(stats.degraded);
    Counter "tollgate_store_local_share_full_total" []
        "Charges without the shared store that local shares had no memory for; store.on_full decided."
        => |stats, family| family.value(stats.local_share_full);
    Counter "tollgate_store_late_answers_total" []
        "Calls whose answer of the shared store came too late, and whose charges were taken back."
        => |stats, family| family.value(stats.counts.late.get());
    Counter "tollgate_store_breaker_openings_total" []
        "Times that a circuit breaker opened for half a second after a failed batch."
        => |stats, family| family.value(stats.counts.breaker_openings.get());
    Gauge "tollgate_store_breakers_open" []
        "Circuit breakers that are open; a cluster of servers has one for each of 4,096 parts of the keys."
        => |stats, family| family.value(stats.breakers_open);
    Counter "tollgate_store_lost_counters_total" []
        "Counters in use that the shared store has lost, as far as this replica noticed."
        => |stats, family| family.value(stats.counts.lost.get());
}

/// The cache, and what decisions count.
pub(super) struct LimitValues {
    pub(super) cache: Arc<LimitCache>,
    pub(super) limiter: Arc<LimiterMetrics>,
}

metrics! { LIMITS: LimitValues;
    Counter "tollgate_limit_lookups_total" ["outcome"]
        "Look-ups of limits of keys: found, absent, unchanged, invalid, failed, or skipped because too many were under way."
        => |all, family| {
            let stats = &all.cache.stats;
            family.sample(&["found"], stats.found.get());
            family.sample(&["absent"], stats.absent.get());
            family.sample(&["unchanged"], stats.unchanged.get());
            family.sample(&["invalid"], stats.invalid.get());
            family.sample(&["failed"], stats.failed.get());
            family.sample(&["skipped"], stats.skipped.get());
        };
    Counter "tollgate_limit_cache_hits_total" []
        "Descriptors whose limit was cached, or was known to be that of the rule, when their call came."
        => |all, family| family.value(all.cache.stats.hits.get());
    Gauge "tollgate_limit_cache_entries" []
        "Keys in the cache of limits."
        => |all, family| family.value(all.cache.len());
    Gauge "tollgate_limit_store_answered_timestamp_seconds" []
        "Time at which the store last answered a look-up of a limit; 0 before the first answer."
        => |all, family| family.value(all.cache.stats.answered_at().since(Timestamp::EPOCH).as_secs_f64());
    Counter "tollgate_limits_unknown_total" []
        "Descriptors decided by their rule because the store did not name their limit in time."
        => |all, family| family.value(all.limiter.unknown_limits.get());
}

metrics! { RULES_URL: Arc<UrlStats>;
    Counter "tollgate_rules_url_requests_total" ["outcome"]
        "Requests for the rules at the URL: changed, unchanged, or failed while the active rules stay."
        => |stats, family| {
            family.sample(&["changed"], stats.changed.get());
            family.sample(&["unchanged"], stats.unchanged.get());
            family.sample(&["failed"], stats.failed.get());
        };
    Gauge "tollgate_rules_url_confirmed_timestamp_seconds" []
        "Time at which the server last had the active rules, or at which their copy was written; 0 before the first."
        => |stats, family| family.value(stats.confirmed_at().since(Timestamp::EPOCH).as_secs_f64());
    Gauge "tollgate_rules_url_from_copy" []
        "1 while the active rules are those of the copy, and the server has not confirmed them since the start, otherwise 0."
        => |stats, family| family.value(u8::from(stats.is_from_copy()));
    Counter "tollgate_rules_url_copy_errors_total" []
        "Failed attempts to read or write the copy of the rules."
        => |stats, family| family.value(stats.copy_errors.get());
}

/// The client of the control plane, and the rules that it has made active.
pub(super) struct XdsValues {
    client: Arc<XdsStats>,
    status: RulesStatus,
    rules: Arc<KeyedRules>,
}

impl XdsValues {
    pub(super) fn new(client: Arc<XdsStats>, active_rules: &ActiveRules) -> Self {
        Self { client, status: active_rules.status(), rules: Arc::clone(&active_rules.current()) }
    }

    fn count(&self, of: fn(&Rules) -> usize) -> usize {
        self.rules.rules().map_or(0, of)
    }
}

metrics! { XDS: XdsValues;
    Gauge "tollgate_xds_connected" []
        "1 while the control plane is connected, otherwise 0."
        => |stats, family| family.value(u8::from(stats.client.is_connected()));
    Counter "tollgate_xds_connections_total" []
        "Connections to the control plane that were made."
        => |stats, family| family.value(stats.client.connections.get());
    Counter "tollgate_xds_responses_total" ["answer"]
        "Responses of the control plane: accepted, or refused while the active rules stay."
        => |stats, family| {
            family.sample(&["accepted"], stats.client.accepted.get());
            family.sample(&["refused"], stats.client.refused.get());
        };
    Counter "tollgate_xds_removals_total" []
        "Accepted responses of the control plane that lack a rule that was active."
        => |stats, family| family.value(stats.status.removals);
    Gauge "tollgate_xds_conflicts" []
        "Descriptors of the control plane that are left out, because one before each of them has a limit for the same key and value."
        => |stats, family| family.value(stats.count(|rules| rules.conflicts));
    Gauge "tollgate_xds_unknown_fields" []
        "Descriptors of the control plane with a field that this version does not know, and ignores."
        => |stats, family| family.value(stats.count(|rules| rules.unknown_fields));
    Gauge "tollgate_overlay_misfits" []
        "Rules that are without what the overlay has for them, because it does not fit."
        => |stats, family| family.value(stats.count(|rules| rules.overlay_misfits));
    Gauge "tollgate_overlay_stale" []
        "1 while the current overlay file cannot be loaded, otherwise 0."
        => |stats, family| family.value(u8::from(stats.status.overlay_problems.is_some()));
}

/// Domain, first and second level of a rule's path.
type Labels = (String, String, String);

/// The totals of rules, those of deeper levels together.
pub(super) struct RuleTotals(BTreeMap<Labels, DecisionTotals>);

impl RuleTotals {
    pub(super) fn from_rules(rules: &[(Series, DecisionTotals)]) -> Self {
        let mut sums: BTreeMap<Labels, DecisionTotals> = BTreeMap::new();
        for (Series { domain, rule }, totals) in rules {
            let path = rule.strip_prefix(&**domain).unwrap_or(rule).trim_start_matches('.');
            // As there, a value with a dot counts as several levels.
            let mut levels = path.split('.').map(str::to_owned);
            let [first, second] = [(); 2].map(|()| levels.next().unwrap_or_default());
            let sum = sums.entry((domain.to_string(), first, second)).or_default();
            *sum = sum.plus(*totals);
        }
        Self(sums)
    }

    fn each(&self, family: &mut Family<'_>, number: fn(&DecisionTotals) -> u64) {
        for ((domain, first, second), totals) in &self.0 {
            family.sample(&[domain, first, second], number(totals));
        }
    }
}

metrics! { REFERENCE: RuleTotals;
    Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"]
        "As tollgate_hits_total."
        => |all, family| all.each(family, |totals| totals.hits);
    Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"]
        "As tollgate_decisions_total with the code ok."
        => |all, family| all.each(family, |totals| totals.ok);
    Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"]
        "As tollgate_near_limit_hits_total."
        => |all, family| all.each(family, |totals| totals.near_limit_hits);
    Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"]
        "As tollgate_decisions_total with the code over_limit."
        => |all, family| all.each(family, |totals| totals.over_limit);
    Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"]
        "As tollgate_shadow_denials_total."
        => |all, family| all.each(family, |totals| totals.shadow_denials);
}
