//! `/rules` and `/rlconfig`: the active rules and their status.

use std::fmt::Write as _;

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use crate::{
    api::admin::{AdminState, format},
    rules::{Allowance, OnOwnerUnavailable, Rule, Rules},
};

/// The status of the active rules, their warnings, and the number of rules of each domain.
pub(super) async fn status(State(state): State<AdminState>) -> Json<Value> {
    let status = state.active_rules.status();
    let rules = state.active_rules.current();
    let rules = rules.rules();
    let warnings: Vec<_> = rules.map_or(&[][..], Rules::warnings).iter().map(ToString::to_string).collect();
    let domains: Map<_, _> = rules
        .into_iter()
        .flat_map(Rules::domains)
        .map(|domain| (domain.name.clone(), domain.rules().count().into()))
        .collect();
    Json(json!({
        "generation": status.generation,
        "hash": status.hash,
        "version": status.version,
        "load_errors": status.load_errors,
        "loaded_at": status.loaded_at.map(format::instant),
        "domains": domains,
        "overlay_problems": status.overlay_problems.map(|problems| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        }),
        "warnings": warnings,
        "last_error": status.last_error.map(|error| json!({
            "at": format::instant(error.at),
            "problems": error.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })),
    }))
}

/// A line for each rule in the format of envoyproxy/ratelimit, followed by the keys that only Tollgate has.
pub(super) async fn lines(State(state): State<AdminState>) -> String {
    let mut text = String::new();
    let rules = state.active_rules.current();
    for domain in rules.rules().into_iter().flat_map(Rules::domains) {
        domain.rules().for_each(|rule| line(rule, &mut text));
    }
    text
}

fn line(rule: &Rule, text: &mut String) {
    let unit = rule.displayed_limit.unit.map_or("unknown", |unit| unit.name()).to_uppercase();
    let (path, number) = (&rule.path, rule.displayed_limit.requests_per_unit);
    let (shadow, quota) = (rule.shadow_mode, rule.quota_mode);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{path}: unit={unit} requests_per_unit={number}, shadow_mode: {shadow}, quota_mode: {quota}"
    );
    if let Allowance::Limited(limit) = &rule.allowance {
        for (key, value) in format::own_keys(limit, rule.displayed_limit.unit) {
            let _ = write!(text, ", {key}: {value}");
        }
    }
    if rule.on_owner_unavailable != OnOwnerUnavailable::default() {
        let _ = write!(text, ", on_owner_unavailable: {}", rule.on_owner_unavailable.name());
    }
    if !rule.lease {
        text.push_str(", lease: false");
    }
    if let Some(candidate) = &rule.candidate {
        let _ = write!(text, ", candidate: {{{}}}", format::limit(candidate, None));
    }
    text.push('\n');
}
