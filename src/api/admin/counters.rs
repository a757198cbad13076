//! `/counters`: one counter, looked at, reset or set.

use axum::{
    Json,
    body::Bytes,
    extract::{Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::info;

use crate::{
    algorithm::Limit,
    api::{
        admin::{Desk, Peer, Refused, words},
        descriptor_text,
    },
    descriptor::Entry,
    limiter::{Counted, Snapshot, Uncounted},
    store::{Kept, Replaced},
    telemetry::logs::UNLIMITED,
};

/// Which counter: `?domain=D&key=k=v[,k=v]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    domain: String,
    key: String,
}

/// What a counter is set to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    used: u64,
}

/// A query that was read, or why it was not.
type Asked = Result<Query<Which>, axum::extract::rejection::QueryRejection>;

pub(super) async fn get(State(desk): State<Desk>, which: Asked) -> Result<Json<Value>, Refused> {
    let Query(which) = which.map_err(|error| Refused::bad(error.body_text()))?;
    let snapshot = desk.limiter.snapshot();
    let counted = which.find(&snapshot)?;
    let found = snapshot.look(&counted).await.map_err(refused)?;
    Ok(Json(which.told(&counted, kept(&found))))
}

pub(super) async fn reset(
    State(desk): State<Desk>,
    peer: Peer,
    which: Asked,
) -> Result<Json<Value>, Refused> {
    let Query(which) = which.map_err(|error| Refused::bad(error.body_text()))?;
    let snapshot = desk.limiter.snapshot();
    let counted = which.find(&snapshot)?;
    let replaced = snapshot.replace(&counted, 0).await.map_err(refused)?;
    which.audit(&peer, &counted, &replaced, "reset a counter");
    Ok(Json(which.changed(&counted, &replaced)))
}

pub(super) async fn set(
    State(desk): State<Desk>,
    peer: Peer,
    which: Asked,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Query(which) = which.map_err(|error| Refused::bad(error.body_text()))?;
    let Set { used } = serde_json::from_slice(&body)
        .map_err(|error| Refused::bad(format!("the body is JSON like {{\"used\": 5}}: {error}")))?;
    let snapshot = desk.limiter.snapshot();
    let counted = which.find(&snapshot)?;
    let replaced = snapshot.replace(&counted, used).await.map_err(refused)?;
    which.audit(&peer, &counted, &replaced, "set a counter");
    let mut told = which.changed(&counted, &replaced);
    if used != 0 && replaced.after.idle_at.is_none() {
        told["note"] = "nothing is kept: there is no memory for it, or the limit holds nothing".into();
    } else if counted.limit.allowance() < used {
        told["note"] = beyond(counted.limit).into();
    }
    Ok(Json(told))
}

/// What becomes of hits beyond the limit.
fn beyond(limit: &Limit) -> &'static str {
    match limit {
        Limit::Classic(_) | Limit::FixedWindow(_) => "all hits are held; this window refuses to its end",
        Limit::SlidingWindow(_) | Limit::SubWindows(_) | Limit::SlidingLog(_) => {
            "all hits are held, and refuse until they have left the window"
        }
        Limit::TokenBucket(_) | Limit::SteppedBucket(_) | Limit::LeakyBucket(_) => {
            "all hits are held as a debt (at most overdraft_limit where there is one), refused until it is paid"
        }
        Limit::LeakyQueue(_) => "a queue holds no more than it lets wait: it is full now",
    }
}

impl Which {
    fn find<'s>(&self, snapshot: &'s Snapshot<'_>) -> Result<Counted<'s>, Refused> {
        let entries =
            descriptor_text::parse(&self.key).map_err(|error| Refused::bad(format!("key: {error}")))?;
        let entries: Vec<_> =
            entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
        snapshot.counted(&self.domain, &entries).map_err(refused)
    }

    fn told(&self, counted: &Counted<'_>, kept: Value) -> Value {
        let mut told = json!({
            "domain": self.domain,
            "key": self.key,
            "rule": counted.rule.path,
            "limit": words::limit(counted.limit, counted.rule.shown.unit),
            "counter": words::key(counted.key),
            "kind": words::kind(counted.limit),
            "allowance": counted.limit.allowance(),
        });
        if let (Value::Object(all), Value::Object(kept)) = (&mut told, kept) {
            all.extend(kept);
        }
        told
    }

    fn changed(&self, counted: &Counted<'_>, replaced: &Replaced) -> Value {
        let mut told = self.told(counted, kept(&replaced.after));
        told["before"] = kept(&replaced.before);
        told
    }

    fn audit(&self, peer: &Peer, counted: &Counted<'_>, replaced: &Replaced, what: &str) {
        let (before, after) = (replaced.before.look.remaining, replaced.after.look.remaining);
        info!(
            name: UNLIMITED,
            %peer,
            domain = self.domain,
            descriptor = self.key,
            rule = counted.rule.path,
            remaining_before = before,
            remaining_after = after,
            "{what}"
        );
    }
}

fn refused(error: Uncounted) -> Refused {
    match error {
        Uncounted::NoRules | Uncounted::Unreachable => Refused::unavailable(error),
        Uncounted::NoDomain | Uncounted::NoRule | Uncounted::Unlimited => Refused::not_found(error),
    }
}

/// What is kept, where nothing is the same as an unused counter.
pub(super) fn kept(kept: &Kept) -> Value {
    json!({
        "kept": kept.idle_at.is_some(),
        "remaining": kept.look.remaining,
        "passes": kept.look.verdict.passes(),
        "reset_after_ms": words::millis(kept.look.reset_after),
        "idle_at": kept.idle_at.map(words::instant),
    })
}
