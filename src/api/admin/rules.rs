//! `/rules` and `/rlconfig`: the active rules and their status.

use std::{fmt::Write as _, path::Path};

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;
use tollgate_counter::{files, printable::escaped, time::Timestamp};
use tollgate_rules::{
    Allowance, DecisionTotals, GroupedKey, Location, OnOwnerUnavailable, Problems, Rule, RuleOrigin, Rules,
    RulesStatus, rule_text, yaml::Mark,
};
use tollgate_sources::RuleSource;

use crate::api::{
    admin::state::AdminState,
    format::{self, AdminError},
};

/// The maximum number of listed rules.
const LISTED_MAX: usize = 500;
/// The maximum number of problems that are displayed with their lines.
const DISPLAYED_PROBLEMS_MAX: usize = 20;
/// The lines before and after that of a problem that are displayed.
const LINES_AROUND: usize = 2;
/// The maximum length of a displayed line, in characters.
const LINE_MAX: usize = 200;
/// The part of a file that is read to show its lines, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The query of `/rules`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusQuery {
    list: Option<String>,
}

/// The status of the active rules, their warnings, and the number of rules of each domain. With `?list=WORDS` also the
/// rules with all of these words, each with its decisions so far, and the lines of problems.
pub(super) async fn status(
    State(state): State<AdminState>,
    query: Result<Query<StatusQuery>, QueryRejection>,
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::bad_request(error.body_text()))?;
    let Some(words) = query.list else {
        let status = state.active_rules.status();
        return Ok(Json(status_json(&state, &status)));
    };
    // With very many rules this takes a while, which no request should wait for.
    let listed = spawn_blocking(move || {
        let status = state.active_rules.status();
        let mut body = status_json(&state, &status);
        body["list"] = list_json(&state, &words);
        if let Some(error) = &status.last_error {
            body["last_error"]["shown"] = displayed_problems(&error.problems).into();
        }
        body
    });
    listed.await.map(Json).map_err(AdminError::unavailable)
}

fn status_json(state: &AdminState, status: &RulesStatus) -> Value {
    let rules = state.active_rules.current();
    let rules = rules.rules();
    let warnings: Vec<_> = rules.map_or(&[][..], Rules::warnings).iter().map(ToString::to_string).collect();
    let domains: Map<_, _> = rules
        .into_iter()
        .flat_map(Rules::domains)
        .map(|domain| (domain.name.to_string(), domain.rules().count().into()))
        .collect();
    json!({
        "source": source_json(&state.rule_source),
        "generation": status.generation,
        "hash": status.hash,
        "version": status.version,
        "load_errors": status.load_errors,
        "loaded_at": status.loaded_at.map(format::instant),
        "domains": domains,
        "overlay_problems": status.overlay_problems.as_ref().map(|problems| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        }),
        "warnings": warnings,
        "last_error": status.last_error.as_ref().map(|error| json!({
            "at": format::instant(error.at),
            "problems": error.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })),
    })
}

/// Where the rules come from. For a URL also when the server last had the active rules, and whether they are those of
/// the copy.
fn source_json(source: &RuleSource) -> Value {
    let mut body = json!({"kind": source.kind.name(), "name": &*source.name});
    if let Some(stats) = &source.url {
        let confirmed_at = stats.confirmed_at();
        body["confirmed_at"] =
            (confirmed_at != Timestamp::EPOCH).then(|| format::instant(confirmed_at)).into();
        body["from_copy"] = stats.is_from_copy().into();
    }
    body
}

/// The first rules with all of `words`, in the order of the files. A sample of `/live` refers to a rule by its index in
/// the set with this hash.
fn list_json(state: &AdminState, words: &str) -> Value {
    let rules = state.active_rules.current();
    let words = words.to_lowercase();
    let mut found = 0_usize;
    let mut listed = Vec::new();
    let domains = rules.rules().into_iter().flat_map(Rules::domains);
    let each = domains.flat_map(|domain| domain.rules().map(|rule| (&*domain.name, rule)));
    for (index, (domain, rule)) in each.enumerate().filter(|(_, (_, rule))| has_words(rule, &words)) {
        found += 1;
        if listed.len() < LISTED_MAX {
            listed.push(rule_json(index, domain, rule));
        }
    }
    json!({"hash": rules.rules().map(Rules::hash), "found": found, "rules": listed})
}

fn has_words(rule: &Rule, words: &str) -> bool {
    if words.trim().is_empty() {
        return true;
    }
    let text =
        format!("{} {} {}", rule.path, rule.options().name.as_deref().unwrap_or_default(), rule.location);
    let text = text.to_lowercase();
    words.split_whitespace().all(|word| text.contains(word))
}

fn rule_json(index: usize, domain: &str, rule: &Rule) -> Value {
    let limit = match &rule.allowance {
        Allowance::Unlimited => "unlimited".to_owned(),
        Allowance::Limited(limit) => rule_text::limit(limit, rule.displayed_limit.unit),
    };
    json!({
        "index": index,
        "domain": domain,
        "path": &*rule.path,
        "name": rule.options().name,
        "at": rule.location.to_string(),
        "limit": limit,
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "candidate": rule.options().candidate.as_ref().map(|candidate| rule_text::limit(candidate, None)),
        "replaces": rule.options().replaces,
        "groups": rule_text::groups(rule),
        "quotas": rule_text::quotas(rule),
        "denial_body": rule.denial_body.as_ref().map(ToString::to_string),
        "totals": rule.stats.as_ref().map(|stats| numbers(&stats.totals())),
    })
}

/// Descriptors that passed, and that were refused; hits that were charged, and charged near the limit; descriptors that
/// only passed in shadow mode, and that a candidate would have refused.
pub(super) fn numbers(totals: &DecisionTotals) -> [u64; 6] {
    let DecisionTotals { ok, over_limit, hits, near_limit_hits, shadow_denials, candidate_denials } = *totals;
    [ok, over_limit, hits, near_limit_hits, shadow_denials, candidate_denials]
}

/// The first problems, each with the lines of the file around it as they are now.
fn displayed_problems(problems: &Problems) -> Vec<Value> {
    let displayed = problems.iter().take(DISPLAYED_PROBLEMS_MAX);
    displayed
        .map(|problem| {
            let Location { origin, mark } = &problem.location;
            let lines = match &**origin {
                RuleOrigin::File(path) => lines_around(Path::new(&**path), *mark),
                RuleOrigin::Resource { .. } => Vec::new(),
            };
            json!({
                "at": problem.location.to_string(),
                "line": mark.line,
                "column": mark.column,
                "what": problem.what,
                "lines": lines,
            })
        })
        .collect()
}

/// Numbers and texts of the lines around `mark`; none if the file cannot be read.
fn lines_around(path: &Path, mark: Mark) -> Vec<(usize, String)> {
    let bytes = files::read_prefix(path, FILE_BYTES_MAX).unwrap_or_default();
    let line = usize::try_from(mark.line).unwrap_or(usize::MAX);
    let first = line.saturating_sub(LINES_AROUND + 1);
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().enumerate().skip(first).take(line.saturating_add(LINES_AROUND) - first);
    lines.map(|(index, text)| (index + 1, text.chars().take(LINE_MAX).collect())).collect()
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
    let path = &rule.path;
    let number = rule.displayed_limit.requests_per_unit;
    let shadow = rule.shadow_mode;
    let quota = rule.quota_mode;
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{path}: unit={unit} requests_per_unit={number}, shadow_mode: {shadow}, quota_mode: {quota}"
    );
    if let Allowance::Limited(limit) = &rule.allowance {
        for (key, value) in rule_text::own_keys(limit, rule.displayed_limit.unit) {
            let _ = write!(text, ", {key}: {value}");
        }
    }
    if rule.on_owner_unavailable != OnOwnerUnavailable::default() {
        let _ = write!(text, ", on_owner_unavailable: {}", rule.on_owner_unavailable.name());
    }
    for GroupedKey { key, group } in &rule.options().groups {
        let _ = write!(text, ", group of {key}: {group}");
    }
    if !rule.lease {
        text.push_str(", lease: false");
    }
    if rule.is_hidden {
        text.push_str(", headers: false");
    }
    if let Some(unit) = &rule.options().quota_unit {
        let _ = write!(text, ", quota_unit: {unit}");
    }
    for quota in rule_text::quotas(rule) {
        let _ = write!(text, ", quota of {quota}");
    }
    if let Some(body) = &rule.denial_body {
        let _ = write!(text, ", denial_body: {}", escaped(&body.to_string()));
    }
    if let Some(candidate) = &rule.options().candidate {
        let _ = write!(text, ", candidate: {{{}}}", rule_text::limit(candidate, None));
    }
    text.push('\n');
}
