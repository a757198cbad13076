//! `/counters`: shows, resets or sets one counter. `/store`: the statistics of all counters. `/top`: the keys that were
//! denied most often, and those that were requested most often at clients with quotas.

use axum::{
    Json,
    body::Bytes,
    extract::{Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_counter::{
    algorithm::{Admission, Counter, Limit, PenaltyState},
    descriptor::{self, Entry},
    metrics::TopKeys,
};
use tollgate_limiter::limiter::{ActiveView, CounterRef, LimiterMetrics};
use tollgate_rules::rule_text;
use tollgate_store::{CounterState, OnExpiry, OpenHold, OpenHolds, OwnLimitState};
use tollgate_telemetry::logs::UNLIMITED;
use tracing::info;

use crate::api::{
    admin::state::AdminState,
    error::Error,
    format::{self, AdminError, ClientAddress},
};

/// Maximum number of keys in `/top`.
const KEYS_MAX: usize = 100;

/// The query for a counter: `?domain=D&key=k=v[,k=v]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CounterQuery {
    domain: String,
    key: String,
}

/// The body that sets a counter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetRequest {
    used: u64,
}

/// A parsed query, or the error in it.
type QueryResult = Result<Query<CounterQuery>, axum::extract::rejection::QueryRejection>;

pub(super) async fn get(
    State(state): State<AdminState>,
    query: QueryResult,
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let view = state.api.limiter.view();
    let counter = query.find(&view).await?;
    let found = view.peek(&counter).await.map_err(Error::from)?;
    Ok(Json(query.counter_json(&counter, peeked_json(&found))))
}

pub(super) async fn reset(
    State(state): State<AdminState>,
    peer: ClientAddress,
    query: QueryResult,
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    query.replace(&state, &peer, 0, "reset a counter").await
}

pub(super) async fn set(
    State(state): State<AdminState>,
    peer: ClientAddress,
    query: QueryResult,
    body: Bytes,
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let SetRequest { used } = serde_json::from_slice(&body).map_err(|error| {
        AdminError::bad_request(format!("the body is JSON like {{\"used\": 5}}: {error}"))
    })?;
    query.replace(&state, &peer, used, "set a counter").await
}

/// How hits beyond the limit are stored.
fn note_beyond_limit(limit: &Limit) -> &'static str {
    match (limit.admission(), limit.fresh()) {
        (Admission::Delayed, _) => "a queue stores at most its burst: it is full now",
        (Admission::InFlight, _) => "at most max_in_flight places can be taken: all of them are now",
        // A fresh counter has no refusals to record.
        (Admission::AtOnce, Counter::Window(_) | Counter::Penalized(_)) => {
            "all hits are stored; the window refuses until its end"
        }
        (Admission::AtOnce, Counter::Sliding(_) | Counter::Log(_)) => {
            "all hits are stored, and requests are refused until they have left the window"
        }
        (Admission::AtOnce, Counter::Debt(_) | Counter::Step(_)) => {
            "all hits are stored as a debt (at most overdraft_limit, if set), and requests are refused until it is repaid"
        }
    }
}

impl CounterQuery {
    async fn find<'s>(&self, view: &'s ActiveView<'_>) -> Result<CounterRef<'s>, AdminError> {
        let entries =
            descriptor::parse(&self.key).map_err(|error| AdminError::bad_request(format!("key: {error}")))?;
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry::new(key, value)).collect();
        Ok(view.counter_ref(&self.domain, &entries).await.map_err(Error::from)?)
    }

    fn counter_json(&self, counter: &CounterRef<'_>, peeked: Value) -> Value {
        let mut body = json!({
            "domain": self.domain,
            "key": self.key,
            "rule": &*counter.rule.path,
            "name": counter.rule.options().name,
            "limit": rule_text::limit(&counter.limit, counter.displayed_limit.unit),
            "counter": format::key(counter.key),
            "kind": rule_text::kind(&counter.limit),
            "allowance": counter.limit.allowance(),
        });
        if let (Value::Object(all), Value::Object(peeked)) = (&mut body, peeked) {
            all.extend(peeked);
        }
        body
    }

    /// Replaces the counter by one with so many hits, and logs `what` was done.
    async fn replace(
        &self,
        state: &AdminState,
        peer: &ClientAddress,
        used: u64,
        what: &str,
    ) -> Result<Json<Value>, AdminError> {
        let view = state.api.limiter.view();
        let counter = self.find(&view).await?;
        let [before, after] = view.replace(&counter, used).await.map_err(Error::from)?;
        info!(
            name: UNLIMITED,
            %peer,
            domain = self.domain,
            descriptor = self.key,
            rule = &*counter.rule.label(),
            remaining_before = before.peek.remaining,
            remaining_after = after.peek.remaining,
            "{what}"
        );
        let mut body = self.counter_json(&counter, peeked_json(&after));
        body["before"] = peeked_json(&before);
        if used != 0 && after.idle_at.is_none() {
            body["note"] =
                "nothing is stored: the memory for counters is full, or the limit stores nothing".into();
        } else if counter.limit.allowance() < used {
            body["note"] = note_beyond_limit(&counter.limit).into();
        }
        Ok(Json(body))
    }
}

/// The state of a counter; one without stored state equals an unused one.
pub(super) fn peeked_json(peeked: &CounterState) -> Value {
    let mut body = json!({
        "kept": peeked.idle_at.is_some(),
        "remaining": peeked.peek.remaining,
        "passes": peeked.peek.verdict.passes(),
        "reset_after_ms": format::millis(peeked.peek.reset_after),
        "idle_at": peeked.idle_at.map(format::instant),
    });
    if peeked.details.holds.count > 0 {
        let OpenHolds { count, hits, first } = &*peeked.details.holds;
        let first: Vec<Value> = first.iter().map(hold_json).collect();
        body["held"] = json!({"reservations": count, "hits": hits, "first": first});
    }
    if let Some(penalty) = &peeked.details.penalty {
        body["penalty"] = penalty_json(penalty);
    }
    if let Some(own) = peeked.details.own_limit.as_ref().filter(|own| own.terms.is_some()) {
        body["own_limit"] = own_limit_json(own);
    }
    body
}

/// A limit of its own, with what its caller has retained with it.
fn own_limit_json(own: &OwnLimitState) -> Value {
    let mut body = serde_json::from_slice(&own.record).unwrap_or_else(|_| json!({}));
    body["version"] = own.version.into();
    body["expires_after_ms"] = own.expires_after.map(format::millis).into();
    body
}

fn penalty_json(penalty: &PenaltyState) -> Value {
    let PenaltyState { refusals, penalties, ends_after, forgotten_after } = penalty;
    json!({
        "ends_after_ms": ends_after.map(format::millis),
        "penalties": penalties,
        "refusals": refusals,
        "forgotten_after_ms": format::millis(*forgotten_after),
    })
}

fn hold_json(hold: &OpenHold) -> Value {
    json!({
        "id": hold.id.to_string(),
        "hits": hold.hits,
        "expires_after_ms": format::millis(hold.expires_after),
        "on_expiry": match hold.on_expiry {
            OnExpiry::Release => "release",
            OnExpiry::Charge => "charge",
        },
    })
}

/// `/store`: the statistics of the counters.
pub(super) async fn store(State(state): State<AdminState>) -> Json<Value> {
    Json(store_json(&state))
}

/// The statistics of the counters in memory, as JSON.
pub(super) fn store_json(state: &AdminState) -> Value {
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
            "checks": stats.counts.checks.get(),
            "batches": stats.counts.batches.get(),
            "conflicts": stats.counts.conflicts.get(),
            "refused_locally": stats.counts.refused_locally.get(),
            "degraded": stats.degraded,
            "lost": stats.counts.lost.get(),
        });
    }
    page
}

/// `/top`: the most frequent keys since the start.
pub(super) async fn top(State(state): State<AdminState>) -> Json<Value> {
    Json(top_json(state.api.limiter.metrics(), KEYS_MAX))
}

/// The keys that were denied most often, and those that were requested most often at clients with quotas; at most `max`
/// of each.
pub(super) fn top_json(metrics: &LimiterMetrics, max: usize) -> Value {
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
