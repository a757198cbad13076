//! `/explain`: what would be decided about a request, and why. Nothing is charged.

use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::{
    algorithm::{Ask, Verdict},
    api::{
        Error,
        admin::{Desk, Refused, counters, words},
        descriptor_text,
        proto::envoy::{
            extensions::common::ratelimit::v3::RateLimitDescriptor, service::ratelimit::v3::RateLimitRequest,
        },
        rls,
    },
    limiter::{self, Checked, Explanation, Part, Status, Unanswered, Uncounted},
    rules::{How, LevelTrace, NodeTrace, Rule},
    time::Timestamp,
};

/// As for `/json`.
pub(super) async fn of_message(State(desk): State<Desk>, body: Body) -> Result<Json<Value>, Refused> {
    let read = desk.reader.read(body).await;
    let read = read.map_err(|rejected| Refused(rejected.status(), rejected.to_string()))?;
    explain(&desk, read.message()).await
}

/// `?domain=D&key=k=v[,k=v]`, with more `key`s for more descriptors, and `hits=N` or `refund=N`; 0 hits look.
pub(super) async fn of_query(
    State(desk): State<Desk>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, Refused> {
    let Query(pairs) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| Refused::bad(format!("`{text}` is no number of hits")));
    let bounds = desk.reader.bounds();
    let mut request = RateLimitRequest::default();
    let (mut hits, mut refunds) = (None, false);
    for (name, value) in pairs {
        match name.as_str() {
            "domain" => request.domain = value,
            "key" => {
                let index = request.descriptors.len();
                bounds.descriptor(index).map_err(Refused::bad)?;
                let entries = descriptor_text::parse(&value).map_err(Refused::bad)?;
                let others = entries.len().saturating_sub(1);
                bounds.entry(index, others).map_err(Refused::bad)?;
                request.descriptors.push(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() });
            }
            "hits" => (hits, refunds) = (Some(number(&value)?), false),
            "refund" => (hits, refunds) = (Some(number(&value)?), true),
            _another => return Err(Refused::bad(format!("`{name}` is none of domain, key, hits, refund"))),
        }
    }
    for descriptor in &mut request.descriptors {
        (descriptor.hits_addend, descriptor.is_negative_hits) = (hits, refunds);
    }
    explain(&desk, &request.encode_to_vec()).await
}

async fn explain(desk: &Desk, message: &[u8]) -> Result<Json<Value>, Refused> {
    let snapshot = desk.limiter.snapshot();
    let request = rls::decode(message, desk.reader.bounds()).map_err(|error| unanswered(error.into()))?;
    let descriptors = request.descriptors().map_err(unanswered)?;
    let asked = request.limiter_request(&descriptors, None);
    let explanation = snapshot.explain(&asked).await.map_err(|error| match error {
        Unanswered::Elsewhere => Refused::unavailable(Uncounted::Unreachable),
        Unanswered::EmptyDomain
        | Unanswered::NoDescriptors
        | Unanswered::NoRules
        | Unanswered::Joining
        | Unanswered::Overloaded => unanswered(error.into()),
    })?;
    Ok(Json(all(&asked, &explanation)))
}

fn unanswered(error: Error) -> Refused {
    if error.is_caller_error() { Refused::bad(error) } else { Refused::unavailable(error) }
}

fn all(request: &limiter::Request<'_>, explanation: &Explanation<'_>) -> Value {
    let Explanation { answer, now, .. } = explanation;
    let refusing: Vec<_> = answer.statuses.iter().filter(|status| !status.passes).map(Status::name).collect();
    let descriptors: Vec<_> = request
        .descriptors
        .iter()
        .zip(explanation.told())
        .map(|(descriptor, (status, part))| {
            let mut told = json!({
                "descriptor": descriptor_text::format(descriptor.entries.iter().map(|entry| (entry.key, entry.value))),
                "asks": in_words(descriptor.ask),
                "code": code(status.passes),
            });
            match part {
                None => told["why"] = "no rules for this domain".into(),
                Some(part) => tell(part, status, *now, &mut told),
            }
            told
        })
        .collect();
    json!({
        "domain": request.domain,
        "at": words::instant(*now),
        "code": code(answer.passes),
        "passes_in_shadow_mode": answer.passes_in_shadow,
        "delay_ms": words::millis(answer.delay),
        "refused_by": refusing,
        "descriptors": descriptors,
    })
}

/// Adds what is to be said of one descriptor.
fn tell(part: &Part<'_>, status: &Status<'_>, now: Timestamp, told: &mut Value) {
    told["why"] = why(part).into();
    told["levels"] = part.levels.iter().map(level).collect();
    if let Some(rule) = part.rule {
        told["rule"] = of_rule(rule, part);
    }
    if let Some(check) = &part.check {
        let unit = status.limit.as_ref().and_then(|limit| limit.unit);
        told["limit"] = words::limit(&check.limit, unit).into();
        told["counter"] = counter(check);
        told["verdict"] = verdict(check, now);
        // As the answer tells it: after these hits.
        told["remaining"] = status.remaining.into();
    }
    if let Some(candidate) = &part.candidate {
        told["candidate"] = json!({
            "limit": words::limit(&candidate.limit, None),
            "counter": counter(candidate),
            "verdict": verdict(candidate, now),
            "remaining": candidate.decision.remaining,
        });
    }
}

/// What led to the limit that applies, or to none.
fn why(part: &Part<'_>) -> String {
    let Some(last) = part.levels.last() else {
        return "the caller brings a limit, so no rule was looked for".to_owned();
    };
    let Some(node) = &last.chosen else {
        let depth = part.levels.len();
        return format!("no limit: nothing matches `{}`, entry {depth} of the descriptor", last.text);
    };
    match (part.rule, part.replaced_by.as_slice()) {
        (None, _) => {
            let deeper = if node.has_children { "; there are descriptors below it" } else { "" };
            format!("no limit: {} at {} has no rate_limit{deeper}", written(node), node.place)
        }
        (Some(rule), []) if part.check.is_none() => format!("no limit: {} is unlimited", rule.path),
        (Some(rule), []) => format!("the limit of {}", rule.path),
        (Some(rule), by) => {
            let by: Vec<_> = by.iter().map(|rule| format!("{} at {}", rule.path, rule.place)).collect();
            format!("no limit: {} is replaced by {}", rule.path, by.join(", "))
        }
    }
}

fn level(level: &LevelTrace<'_>) -> Value {
    let chosen = level.chosen.as_ref();
    let mut told = json!({
        "looked_up": level.text,
        "matched": chosen.map(|node| json!({
            "descriptor": written(node),
            "how": how(node.how),
            "at": node.place.to_string(),
            "shared": node.is_shared,
        })),
    });
    let best = chosen.and_then(|node| node.how);
    let others: Vec<_> = level
        .losers
        .iter()
        .map(|node| {
            let why = lost(node.how, best);
            json!({"descriptor": written(node), "at": node.place.to_string(), "why": why})
        })
        .collect();
    told["others"] = others.into();
    told["others_more"] = level.losers_more.into();
    if chosen.is_none() {
        let there: Vec<_> = level
            .strangers
            .iter()
            .map(|node| json!({"descriptor": written(node), "at": node.place.to_string()}))
            .collect();
        told["there"] = there.into();
        told["there_more"] = level.strangers_more.into();
    }
    told
}

/// A node as key and value.
fn written(node: &NodeTrace<'_>) -> String {
    if node.value.is_empty() { node.key.to_owned() } else { format!("{}={}", node.key, node.value) }
}

fn how(how: Option<How>) -> &'static str {
    match how {
        Some(How::Exact) => "exactly",
        Some(How::Pattern) => "by its pattern",
        Some(How::KeyOnly) => "by its key alone",
        None => "not at all",
    }
}

/// Why a node that matches was not chosen.
fn lost(how: Option<How>, best: Option<How>) -> &'static str {
    match (how, best) {
        (Some(How::Pattern), Some(How::Pattern)) => "its pattern matches too, but is declared later",
        (Some(How::Pattern), Some(How::Exact)) => "its pattern matches too, but an exact match goes before",
        (Some(How::KeyOnly), Some(How::Exact)) => "its key alone matches too, but an exact match goes before",
        (Some(How::KeyOnly), Some(How::Pattern)) => "its key alone matches too, but a pattern goes before",
        (Some(How::Exact | How::Pattern), Some(How::KeyOnly))
        | (Some(How::KeyOnly), Some(How::KeyOnly))
        | (Some(How::Exact), Some(How::Exact | How::Pattern))
        | (None, _)
        | (_, None) => "it does not match",
    }
}

fn of_rule(rule: &Rule, part: &Part<'_>) -> Value {
    let replaced_by: Vec<_> = part.replaced_by.iter().map(|rule| rule.path.as_str()).collect();
    json!({
        "path": rule.path,
        "name": rule.name,
        "at": rule.place.to_string(),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "on_owner_unavailable": rule.on_owner_unavailable.name(),
        "lease": rule.lease,
        "replaces": rule.replaces,
        "replaced_by": replaced_by,
    })
}

fn counter(check: &Checked) -> Value {
    let mut told = json!({
        "key": words::key(check.key),
        "kind": words::kind(&check.limit),
        "allowance": check.limit.allowance(),
    });
    told["before"] = counters::kept(&check.before);
    told
}

fn verdict(check: &Checked, now: Timestamp) -> Value {
    let decision = &check.decision;
    let reset_after_ms = words::millis(decision.reset_after);
    match decision.verdict {
        Verdict::Pass => json!({"passes": true, "reset_after_ms": reset_after_ms}),
        Verdict::Delay(turn) => {
            json!({"passes": true, "delay_ms": words::millis(turn), "reset_after_ms": reset_after_ms})
        }
        Verdict::Refuse { retry_after: None } => {
            json!({"passes": false, "never": true, "reset_after_ms": reset_after_ms})
        }
        Verdict::Refuse { retry_after: Some(wait) } => {
            let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            json!({
                "passes": false,
                "retry_after_ms": words::millis(wait),
                "passes_at": words::instant(now.plus(nanos)),
                "reset_after_ms": reset_after_ms,
            })
        }
    }
}

fn in_words(ask: Ask) -> String {
    match ask {
        Ask::Look => "a look".to_owned(),
        Ask::Charge(hits) => format!("to charge {hits}"),
        Ask::Refund(hits) => format!("to refund {hits}"),
    }
}

fn code(passes: bool) -> &'static str {
    if passes { "OK" } else { "OVER_LIMIT" }
}
