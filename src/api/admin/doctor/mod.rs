//! `/doctor`: what commonly goes wrong on this replica and, as far as it knows, in its cluster. `tollgate doctor` prints
//! it.

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tollgate_rules::Rules;
use tollgate_wire::finding::EnvoyDescriptor;

use crate::api::{
    admin::{alerts::UNANSWERED, state::AdminState},
    format::AdminError,
};

mod cluster;
mod envoy;
mod replica;
mod rules;

use replica::FAILED_CALLS;

/// The maximum size of the descriptors of an Envoy, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub(super) async fn diagnose_replica(State(sources): State<AdminState>) -> Result<Json<Value>, AdminError> {
    examined(sources, Vec::new()).await
}

/// The findings, with those in what the descriptors of an Envoy and the rules do together.
pub(super) async fn diagnose_envoy(
    State(sources): State<AdminState>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, AdminError> {
    let body = body.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let sent: Vec<EnvoyDescriptor> =
        serde_json::from_slice(&body).map_err(|error| AdminError::bad_request(error.to_string()))?;
    examined(sources, sent).await
}

async fn examined(sources: AdminState, sent: Vec<EnvoyDescriptor>) -> Result<Json<Value>, AdminError> {
    // With very many rules this takes a while, which no request should wait for.
    let examined = spawn_blocking(move || examination(&sources, &sent));
    examined.await.map(Json).map_err(AdminError::unavailable)
}

/// `findings`, the most urgent ones first; `domains` and `delays` for what the command line compares with an Envoy.
fn examination(sources: &AdminState, sent: &[EnvoyDescriptor]) -> Value {
    let rules = sources.active_rules.current();
    let rules = rules.rules();
    let source = &sources.rule_source;
    let mut findings = rules::status(&sources.active_rules.status(), source);
    findings.extend(rules.into_iter().flat_map(|rules| rules::findings(rules, source)));
    if !sources.api.limiter.looks_up_limits() {
        findings.extend(rules.into_iter().filter_map(rules::without_limit_source));
    }
    findings.extend(replica::findings(sources));
    if let Some(cluster) = &sources.cluster {
        findings.extend(cluster::findings(&cluster.view(), &cluster.stats()));
    }
    // Requests of Envoy that are not answered are failed calls too.
    let of_metrics = sources.history.findings(&*sources.metrics);
    let has_failed = findings.iter().any(|finding| finding.id == FAILED_CALLS);
    findings.extend(of_metrics.into_iter().filter(|finding| !has_failed || finding.id != UNANSWERED));
    findings.extend(rules.into_iter().flat_map(|rules| envoy::findings(rules, source, sent)));
    findings.sort_by_key(|finding| finding.level);
    let domains: Vec<_> = rules.into_iter().flat_map(Rules::domains).map(|domain| &*domain.name).collect();
    json!({
        "program": env!("CARGO_PKG_VERSION"),
        "findings": findings,
        "domains": domains,
        "delays": rules.is_some_and(rules::may_delay),
    })
}
