//! The metrics of a replica that looks up limits of keys.

use std::sync::Arc;

use tollgate_limiter::limiter::{LimitCache, LimiterMetrics};
use tollgate_telemetry::metrics::metrics;

/// The cache, and what decisions count.
pub(super) struct LimitValues {
    pub(super) cache: Arc<LimitCache>,
    pub(super) limiter: Arc<LimiterMetrics>,
}

metrics! { LimitValues;
    Counter "tollgate_limit_lookups_total" ["outcome"]
        "Look-ups of limits of keys, by outcome: found, absent, unchanged, invalid, failed, or skipped because too many were under way."
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
        "Descriptors whose limit was cached, or was known to be that of the rule."
        => |all, family| family.value(all.cache.stats.hits.get());
    Gauge "tollgate_limit_cache_entries" []
        "Keys in the cache of limits."
        => |all, family| family.value(all.cache.len());
    Counter "tollgate_limits_unknown_total" []
        "Descriptors decided by their rule because the store did not name the limit of the key in time."
        => |all, family| family.value(all.limiter.unknown_limits.get());
}
