//! `/doctor`: what commonly goes wrong on this replica and, as far as it knows, in its cluster. `tollgate doctor` prints
//! it.

use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};
use tollgate_rules::Rules;

mod cluster;
mod replica;
mod rules;

pub use replica::DoctorSources;

/// A router with `/doctor`.
pub fn router(sources: DoctorSources) -> Router {
    Router::new().route("/doctor", get(findings)).with_state(Arc::new(sources))
}

/// `findings`, the most urgent ones first; `domains` and `delays` for what the command line compares with an Envoy.
async fn findings(State(sources): State<Arc<DoctorSources>>) -> Json<Value> {
    let rules = sources.active_rules.current();
    let rules = rules.rules();
    let mut findings = rules::status(&sources.active_rules.status());
    findings.extend(rules.into_iter().flat_map(rules::findings));
    findings.extend(replica::findings(&sources));
    if let Some(cluster) = &sources.cluster {
        findings.extend(cluster::findings(&cluster.view(), &cluster.stats()));
    }
    findings.sort_by_key(|finding| finding.level);
    let domains: Vec<_> = rules.into_iter().flat_map(Rules::domains).map(|domain| &domain.name).collect();
    Json(json!({
        "program": env!("CARGO_PKG_VERSION"),
        "findings": findings,
        "domains": domains,
        "delays": rules.is_some_and(rules::may_delay),
    }))
}
