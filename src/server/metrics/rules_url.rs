//! The metrics of a replica with rules from a URL.

use std::sync::Arc;

use tollgate_counter::time::Timestamp;
use tollgate_sources::url::UrlStats;
use tollgate_telemetry::metrics::metrics;

metrics! { Arc<UrlStats>;
    Counter "tollgate_rules_url_requests_total" ["outcome"]
        "Requests for the rules at the URL, by outcome: changed, unchanged, or failed while the active rules stay."
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
