//! `/store`: the statistics of the counters.

use axum::{Json, extract::State};
use serde_json::{Value, json};

use crate::api::admin::AdminState;

/// The statistics.
pub(super) async fn get(State(state): State<AdminState>) -> Json<Value> {
    Json(json_of(&state))
}

/// The statistics of the counters in memory, as JSON.
pub(super) fn json_of(state: &AdminState) -> Value {
    let stats = state.memory.stats();
    let mut page = json!({
        "live": stats.live,
        "bytes": stats.bytes,
        "bytes_max": stats.bytes_max,
        "evicted_idle": stats.evicted_idle,
        "evicted_unexpired": stats.evicted_unexpired,
        "refused_full": stats.refused_full,
    });
    if let Some(store) = &state.shared_store {
        let stats = store.stats();
        page["shared"] = json!({
            "state": store.state().to_string(),
            "replicas": stats.replicas,
            "checks": stats.checks,
            "batches": stats.batches,
            "conflicts": stats.conflicts,
            "refused_locally": stats.refused_locally,
            "degraded": stats.degraded,
            "lost": stats.lost,
        });
    }
    page
}
