//! The admin page of the keys that were denied most often.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};
use tollgate_limiter::limiter::Metrics;

/// Maximum number of listed keys.
const LISTED_MAX: usize = 100;

/// A router with `/top`: the keys that were denied most often since the start.
pub fn router(metrics: Arc<Metrics>) -> Router {
    Router::new().route("/top", get(top)).with_state(metrics)
}

async fn top(State(metrics): State<Arc<Metrics>>) -> Json<Value> {
    Json(denied_json(&metrics, LISTED_MAX))
}

/// The keys that were denied most often, at most `max`.
pub(super) fn denied_json(metrics: &Metrics, max: usize) -> Value {
    let denied = metrics.denied.entries(max);
    let denied = denied
        .into_iter()
        .map(|entry| json!({"key": entry.text, "count": entry.count, "error": entry.error}));
    json!({"denied": denied.collect::<Vec<_>>(), "missed": metrics.denied.missed()})
}
