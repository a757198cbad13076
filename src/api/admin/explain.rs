//! `/explain`: what would be decided about a request, and why. Charges nothing.

use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
};
use prost::Message as _;
use serde_json::{Value, json};
use tollgate_counter::{
    algorithm::{Admission, HitRate, Operation, Verdict},
    descriptor,
    time::Timestamp,
};
use tollgate_limiter::limiter::{
    self, CheckExplanation, DescriptorExplanation, Explanation, LimiterError, NoCounter, Status,
};
use tollgate_quota::QuotaService;
use tollgate_rules::{DescriptorRef, LevelTrace, MatchKind, Rule, StoredTerms, TreeNode, rule_text};
use tollgate_store::{
    OwnTerms,
    divider::{LimitPart, SubscriberId, SubscriberState, Subscribers},
};
use tollgate_wire::{
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor, service::ratelimit::v3::RateLimitRequest,
    },
};

use crate::api::{
    admin::{counters, state::AdminState},
    call::Method,
    denial_body::When,
    error::Error,
    format::{self, AdminError},
    rls,
};

/// Explains a request in the format of `/json`.
pub(super) async fn explain_message(
    State(state): State<AdminState>,
    body: Body,
) -> Result<Json<Value>, AdminError> {
    let read = state.reader.read(Method::ShouldRateLimit, body).await?;
    explain(&state, &read.message).await
}

/// Explains `?domain=D&key=k=v[,k=v]`, with a `key` for each descriptor, and `hits=N` or `refund=N`; 0 hits charge
/// nothing.
pub(super) async fn explain_query(
    State(state): State<AdminState>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, AdminError> {
    let Query(pairs) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| AdminError::bad_request(format!("`{text}` is not a number of hits")))
    };
    let bounds = state.reader.bounds;
    let mut request = RateLimitRequest::default();
    let mut hits = None;
    let mut refunds = false;
    for (name, value) in pairs {
        match name.as_str() {
            "domain" => request.domain = value,
            "key" => {
                let index = request.descriptors.len();
                bounds.descriptor(index).map_err(AdminError::bad_request)?;
                let entries = descriptor_text::parse(&value).map_err(AdminError::bad_request)?;
                let others = entries.len().saturating_sub(1);
                bounds.entry(index, others).map_err(AdminError::bad_request)?;
                request.descriptors.push(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() });
            }
            "hits" => (hits, refunds) = (Some(number(&value)?), false),
            "refund" => (hits, refunds) = (Some(number(&value)?), true),
            _another => {
                return Err(AdminError::bad_request(format!(
                    "`{name}` is not one of domain, key, hits, refund"
                )));
            }
        }
    }
    for descriptor in &mut request.descriptors {
        (descriptor.hits_addend, descriptor.is_negative_hits) = (hits, refunds);
    }
    explain(&state, &request.encode_to_vec()).await
}

async fn explain(state: &AdminState, message: &[u8]) -> Result<Json<Value>, AdminError> {
    let view = state.api.limiter.view();
    let request =
        rls::decode(message, state.reader.bounds).map_err(Error::with_malformed_text(rls::MALFORMED))?;
    let asked = request.limiter_request(None).map_err(Error::from)?;
    let explanation = view.explain(&asked).await.map_err(|error| match error {
        LimiterError::Remote => NoCounter::Unreachable.into(),
        LimiterError::NoRules | LimiterError::Joining | LimiterError::NoStore | LimiterError::Overloaded => {
            Error::from(error)
        }
    })?;
    let mut body = explanation_json(&asked, &explanation);
    if let (Some(quotas), Some(descriptors)) = (&state.quotas, body["descriptors"].as_array_mut()) {
        for (descriptor, (_, part)) in descriptors.iter_mut().zip(explanation.descriptors()) {
            let Some(check) = part.and_then(|part| part.check.as_ref()) else { continue };
            // In a cluster the owner of the counter divides.
            let elsewhere = check.before.details.subscribers.clone();
            if let Some(subscribers) = elsewhere.or_else(|| quotas.subscribers(check.key)) {
                descriptor["shares"] = shares_json(quotas, &subscribers);
            }
        }
    }
    let rules = view.rules();
    let modes = state.api.limiter.modes();
    let answer = &explanation.answer;
    let never = answer.never_because(modes, &asked);
    let when = When { retry_after: answer.retry_after(modes, &asked), never_because: never.as_deref() };
    let denial_body = state.api.denial_bodies.body_of(asked.domain(), rules, answer, modes, when);
    body["denial_body"] =
        denial_body.map(|body| json!({"content_type": body.content_type, "text": body.text})).into();
    let status = state.active_rules.status();
    body["rules"] = json!({"hash": status.hash, "version": status.version});
    Ok(Json(body))
}

fn explanation_json(request: &limiter::Request<'_>, explanation: &Explanation<'_>) -> Value {
    let Explanation { answer, now, .. } = explanation;
    let refusing: Vec<_> =
        answer.statuses.iter().filter(|status| !status.passes).map(Status::label).collect();
    let descriptors: Vec<_> = request
        .descriptors()
        .iter()
        .zip(explanation.descriptors())
        .map(|(descriptor, (status, part))| {
            let mut body = json!({
                "descriptor": descriptor::format(descriptor.entries.iter().map(|entry| (entry.key, entry.value))),
                "asks": operation_text(descriptor.operation),
                "code": code(status.passes),
            });
            match part {
                None => body["why"] = "no rules for this domain".into(),
                Some(part) => add_part(part, status, *now, &mut body),
            }
            body
        })
        .collect();
    json!({
        "domain": request.domain(),
        "at": format::instant(*now),
        "code": code(answer.passes),
        "passes_in_shadow_mode": answer.passes_in_shadow,
        "delay_ms": format::millis(answer.delay),
        "refused_by": refusing,
        "descriptors": descriptors,
    })
}

/// Adds the explanation of one descriptor.
fn add_part(part: &DescriptorExplanation<'_>, status: &Status<'_>, now: Timestamp, body: &mut Value) {
    body["why"] = reason(part).into();
    body["levels"] = part.levels.iter().map(level).collect();
    if let Some(rule) = part.rule {
        body["rule"] = rule_json(rule, part);
    }
    if let Some(StoredTerms { limit, displayed_limit }) = &part.stored {
        body["stored_limit"] = match displayed_limit.requests_per_unit {
            OwnTerms::UNLIMITED => "unlimited".into(),
            _limited => rule_text::limit(limit, displayed_limit.unit).into(),
        };
    }
    if let Some(check) = &part.check {
        body["limit_from"] = status.limit_from.name().into();
        let unit = status.limit.as_ref().and_then(|limit| limit.unit);
        body["limit"] = rule_text::limit(&check.limit, unit).into();
        body["counter"] = counter(check);
        body["verdict"] = verdict(check, now);
        // As in the response: after these hits.
        body["remaining"] = status.remaining.into();
    }
    if let Some(candidate) = &part.candidate {
        body["candidate"] = json!({
            "limit": rule_text::limit(&candidate.limit, None),
            "counter": counter(candidate),
            "verdict": verdict(candidate, now),
            "remaining": candidate.decision.remaining,
        });
    }
}

/// The reason why a limit or no limit applies.
fn reason(part: &DescriptorExplanation<'_>) -> String {
    let Some(last) = part.levels.last() else {
        return "the request contains a limit, so no rule was looked up".to_owned();
    };
    let Some(found) = &last.chosen else {
        let depth = part.levels.len();
        return format!("no limit: nothing matches `{}`, entry {depth} of the descriptor", last.text);
    };
    match (part.rule, part.replaced_by.as_slice()) {
        (None, _) => {
            let deeper =
                if found.descriptors().next().is_some() { "; it has nested descriptors" } else { "" };
            format!("no limit: {} at {} has no rate_limit{deeper}", written(found), found.node.location)
        }
        (Some(rule), []) if part.check.is_none() => format!("no limit: {} is unlimited", rule.label()),
        (Some(rule), []) => format!("the limit of {}", rule.label()),
        (Some(rule), by) => {
            let by: Vec<_> = by.iter().map(|rule| format!("{} at {}", rule.label(), rule.location)).collect();
            format!("no limit: {} is replaced by {}", rule.label(), by.join(", "))
        }
    }
}

fn level(level: &LevelTrace<'_>) -> Value {
    let chosen = level.chosen.as_ref();
    let mut body = json!({
        "looked_up": level.text,
        "matched": chosen.map(|found| json!({
            "descriptor": written(found),
            "how": how(found.matched),
            "at": found.node.location.to_string(),
            "shared": found.is_shared(),
            "counted_as": level.counted_as,
        })),
    });
    let best = chosen.and_then(|found| found.matched);
    let others: Vec<_> = level
        .other_matches
        .iter()
        .map(|found| {
            let why = not_chosen_reason(found.matched, best);
            json!({"descriptor": written(found), "at": found.node.location.to_string(), "why": why})
        })
        .collect();
    body["others"] = others.into();
    body["others_more"] = level.other_matches_more.into();
    if chosen.is_none() {
        let there: Vec<_> = level
            .non_matches
            .iter()
            .map(|found| json!({"descriptor": written(found), "at": found.node.location.to_string()}))
            .collect();
        body["there"] = there.into();
        body["there_more"] = level.non_matches_more.into();
    }
    body
}

/// A node as key and value.
fn written(found: &DescriptorRef<'_>) -> String {
    let TreeNode { key, value, .. } = found.node;
    if value.is_empty() { key.to_string() } else { format!("{key}={value}") }
}

fn how(how: Option<MatchKind>) -> &'static str {
    match how {
        Some(MatchKind::Exact) => "exactly",
        Some(MatchKind::Network) => "by its network",
        Some(MatchKind::Pattern) => "by its pattern",
        Some(MatchKind::KeyOnly) => "by its key alone",
        None => "not at all",
    }
}

/// The reason why a node was not chosen.
fn not_chosen_reason(how: Option<MatchKind>, best: Option<MatchKind>) -> String {
    let (Some(how), Some(best)) = (how, best) else { return "it does not match".to_owned() };
    let found = match how {
        MatchKind::Exact => "it matches exactly too",
        MatchKind::Network if best == MatchKind::Exact => "its network contains the address",
        MatchKind::Network => "its network contains the address too",
        MatchKind::Pattern => "its pattern matches too",
        MatchKind::KeyOnly => "its key alone matches too",
    };
    let but = match best {
        MatchKind::Exact => "an exact match takes precedence",
        MatchKind::Network if how == best => "a longer prefix takes precedence",
        MatchKind::Network => "a network takes precedence",
        MatchKind::Pattern if how == best => "is declared later",
        MatchKind::Pattern => "a pattern takes precedence",
        MatchKind::KeyOnly => "a key alone takes precedence",
    };
    format!("{found}, but {but}")
}

fn rule_json(rule: &Rule, part: &DescriptorExplanation<'_>) -> Value {
    let replaced_by: Vec<_> = part.replaced_by.iter().map(|rule| &*rule.path).collect();
    let limit = rule.limit().map(|limit| rule_text::limit(limit, rule.displayed_limit.unit));
    json!({
        "path": &*rule.path,
        "name": rule.options().name,
        "limit": limit.as_deref().unwrap_or("unlimited"),
        "at": rule.location.to_string(),
        "overlay": rule.options().overlay.as_ref().map(ToString::to_string),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "on_owner_unavailable": rule.on_owner_unavailable.name(),
        "lease": rule.lease,
        "headers": !rule.is_hidden,
        "denial_body": rule.denial_body.as_ref().map(ToString::to_string),
        "quota_unit": rule.options().quota_unit,
        "replaces": rule.options().replaces,
        "groups": rule_text::groups(rule),
        "quotas": rule_text::quotas(rule),
        "replaced_by": replaced_by,
    })
}

fn stream_name(SubscriberId { replica, stream, .. }: SubscriberId) -> String {
    if replica == 0 {
        format!("stream {stream}")
    } else {
        format!("stream {stream} of replica {replica:016x}")
    }
}

/// The shares of a limit: those of the clients with the greatest demand.
fn shares_json(quotas: &QuotaService, subscribers: &Subscribers) -> Value {
    let Subscribers { first, number, callers } = subscribers;
    let share = |state: &SubscriberState| {
        let SubscriberState { id, demand, part, ends_after, has_ended } = state;
        let client = quotas.client(*id).map(|address| address.to_string());
        let mut share = json!({
            "client": client.unwrap_or_else(|| stream_name(*id)),
            "demand_per_second": demand,
            "ends_after_ms": format::millis(*ends_after),
            "has_ended": has_ended,
        });
        match part {
            LimitPart::Share(HitRate { per_second, burst }) => {
                share["share"] = json!({"per_second": per_second, "burst": burst});
            }
            LimitPart::Slice { hits, left } => share["slice"] = json!({"hits": hits, "left": left}),
        }
        share
    };
    json!({
        "clients": number,
        "callers_per_second": callers,
        "first": first.iter().map(share).collect::<Vec<_>>(),
    })
}

fn counter(check: &CheckExplanation) -> Value {
    let mut body = json!({
        "key": format::key(check.key),
        "kind": rule_text::kind(&check.limit),
        "allowance": check.limit.allowance(),
    });
    body["before"] = counters::peeked_json(&check.before);
    body
}

fn verdict(check: &CheckExplanation, now: Timestamp) -> Value {
    let decision = &check.decision;
    let mut body = json!({
        "passes": decision.verdict.passes(),
        "reset_after_ms": format::millis(decision.reset_after),
    });
    match decision.verdict {
        Verdict::Pass => {}
        Verdict::Delay(turn) => body["delay_ms"] = format::millis(turn).into(),
        // Places may be freed at any time.
        Verdict::Refuse { retry_after: None } => {
            body["never"] = (check.limit.admission() != Admission::InFlight).into();
        }
        Verdict::Refuse { retry_after: Some(wait) } => {
            body["retry_after_ms"] = format::millis(wait).into();
            body["passes_at"] = format::instant(now.after(wait)).into();
        }
    }
    body
}

fn operation_text(operation: Operation) -> String {
    match operation {
        Operation::Peek => "a look".to_owned(),
        Operation::Charge(hits) => format!("to charge {hits}"),
        Operation::Refund(hits) => format!("to refund {hits}"),
    }
}

fn code(passes: bool) -> &'static str {
    if passes { "OK" } else { "OVER_LIMIT" }
}
