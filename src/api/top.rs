//! The admin page of the keys that were denied most often, and of those that were requested most often at clients with
//! quotas.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};
use tollgate_counter::metrics::TopKeys;
use tollgate_limiter::limiter::LimiterMetrics;

/// Maximum number of listed keys.
const LISTED_MAX: usize = 100;

/// A router with `/top`: the most frequent keys since the start.
pub fn router(metrics: Arc<LimiterMetrics>) -> Router {
    Router::new().route("/top", get(top)).with_state(metrics)
}

async fn top(State(metrics): State<Arc<LimiterMetrics>>) -> Json<Value> {
    Json(keys_json(&metrics, LISTED_MAX))
}

/// The keys that were denied most often, and those that were requested most often at clients with quotas; at most `max`
/// of each.
pub(super) fn keys_json(metrics: &LimiterMetrics, max: usize) -> Value {
    let listed = |keys: &TopKeys| {
        let entries = keys.entries(max).into_iter();
        let entries =
            entries.map(|entry| json!({"key": entry.text, "count": entry.count, "error": entry.error}));
        entries.collect::<Vec<_>>()
    };
    json!({
        "denied": listed(&metrics.denied),
        "quotas": listed(&metrics.quotas),
        "missed": metrics.denied.missed(),
    })
}
