//! `/counters`: shows, resets or sets one counter.

use axum::{
    Json,
    body::Bytes,
    extract::{Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_limiter::{
    algorithm::{Admission, Counter, Limit, PenaltyState},
    descriptor::{self, Entry},
    limiter::{ActiveView, CounterRef, NoCounter},
    store::{CounterState, OnExpiry, OpenHold, OpenHolds, Replacement},
};
use tracing::info;

use crate::{
    api::admin::{AdminState, client_address::ClientAddress, error::AdminError, format},
    telemetry::logs::UNLIMITED,
};

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
    let snapshot = state.limiter.view();
    let counted = query.find(&snapshot)?;
    let found = snapshot.peek(&counted).await.map_err(admin_error)?;
    Ok(Json(query.counter_json(&counted, kept_json(&found))))
}

pub(super) async fn reset(
    State(state): State<AdminState>,
    peer: ClientAddress,
    query: QueryResult,
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let snapshot = state.limiter.view();
    let counted = query.find(&snapshot)?;
    let replaced = snapshot.replace(&counted, 0).await.map_err(admin_error)?;
    query.audit(&peer, &counted, &replaced, "reset a counter");
    Ok(Json(query.change_json(&counted, &replaced)))
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
    let snapshot = state.limiter.view();
    let counted = query.find(&snapshot)?;
    let replaced = snapshot.replace(&counted, used).await.map_err(admin_error)?;
    query.audit(&peer, &counted, &replaced, "set a counter");
    let mut body = query.change_json(&counted, &replaced);
    if used != 0 && replaced.after.idle_at.is_none() {
        body["note"] =
            "nothing is stored: the memory for counters is full, or the limit stores nothing".into();
    } else if counted.limit.allowance() < used {
        body["note"] = note_beyond_limit(counted.limit).into();
    }
    Ok(Json(body))
}

/// How hits beyond the limit are stored.
fn note_beyond_limit(limit: &Limit) -> &'static str {
    match (limit.admission(), limit.fresh()) {
        (Admission::Delayed, _) => "a queue stores at most its burst: it is full now",
        (Admission::InFlight, _) => "at most max_in_flight places can be taken: all of them are now",
        // A fresh counter has no refusals to remember.
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
    fn find<'s>(&self, snapshot: &'s ActiveView<'_>) -> Result<CounterRef<'s>, AdminError> {
        let entries =
            descriptor::parse(&self.key).map_err(|error| AdminError::bad_request(format!("key: {error}")))?;
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry::new(key, value)).collect();
        snapshot.counter_ref(&self.domain, &entries).map_err(admin_error)
    }

    fn counter_json(&self, counted: &CounterRef<'_>, kept: Value) -> Value {
        let mut body = json!({
            "domain": self.domain,
            "key": self.key,
            "rule": &*counted.rule.path,
            "limit": format::limit(counted.limit, counted.rule.displayed_limit.unit),
            "counter": format::key(counted.key),
            "kind": format::kind(counted.limit),
            "allowance": counted.limit.allowance(),
        });
        if let (Value::Object(all), Value::Object(kept)) = (&mut body, kept) {
            all.extend(kept);
        }
        body
    }

    fn change_json(&self, counted: &CounterRef<'_>, replaced: &Replacement) -> Value {
        let mut body = self.counter_json(counted, kept_json(&replaced.after));
        body["before"] = kept_json(&replaced.before);
        body
    }

    fn audit(&self, peer: &ClientAddress, counted: &CounterRef<'_>, replaced: &Replacement, what: &str) {
        let (before, after) = (replaced.before.peek.remaining, replaced.after.peek.remaining);
        info!(
            name: UNLIMITED,
            %peer,
            domain = self.domain,
            descriptor = self.key,
            rule = &*counted.rule.path,
            remaining_before = before,
            remaining_after = after,
            "{what}"
        );
    }
}

fn admin_error(error: NoCounter) -> AdminError {
    match error {
        NoCounter::NoRules | NoCounter::Unreachable | NoCounter::NoStore => AdminError::unavailable(error),
        NoCounter::NoDomain | NoCounter::NoRule | NoCounter::Unlimited => AdminError::not_found(error),
    }
}

/// The state of a counter; one without stored state equals an unused one.
pub(super) fn kept_json(kept: &CounterState) -> Value {
    let mut body = json!({
        "kept": kept.idle_at.is_some(),
        "remaining": kept.peek.remaining,
        "passes": kept.peek.verdict.passes(),
        "reset_after_ms": format::millis(kept.peek.reset_after),
        "idle_at": kept.idle_at.map(format::instant),
    });
    if kept.holds.count > 0 {
        let OpenHolds { count, hits, first } = &*kept.holds;
        let first: Vec<Value> = first.iter().map(hold_json).collect();
        body["held"] = json!({"reservations": count, "hits": hits, "first": first});
    }
    if let Some(penalty) = &kept.penalty {
        body["penalty"] = penalty_json(penalty);
    }
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
