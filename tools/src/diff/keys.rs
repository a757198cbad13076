//! The keys of a descriptor and its rule, as text that can be compared.

use tollgate_counter::printable::escaped;
use tollgate_rules::{DescriptorRef, Rule, RuleOptions, rule_text};

use crate::diff::difference::KeyValueChange;

/// The keys whose values differ. A key that one side lacks has its default there.
pub(super) fn changes(old: Option<DescriptorRef<'_>>, new: Option<DescriptorRef<'_>>) -> Vec<KeyValueChange> {
    let rules = (old.and_then(|old| old.rule()), new.and_then(|new| new.rule()));
    let (old, new) = (old.map(rows).unwrap_or_default(), new.map(rows).unwrap_or_default());
    let longer = if old.len() < new.len() { &new } else { &old };
    let value = |rows: &[KeyRow], key| rows.iter().find(|row| row.key == key).map(|row| row.value.clone());
    let mut changes = Vec::new();
    for KeyRow { key, default, .. } in longer {
        let change = KeyValueChange { key, old: value(&old, *key), new: value(&new, *key) };
        if change.old.as_deref().unwrap_or(default) != change.new.as_deref().unwrap_or(default) {
            changes.push(change);
        }
    }
    // A limit in another unit of the same length is the same limit.
    if let (Some(old), Some(new)) = (rules.0, rules.1)
        && old.allowance == new.allowance
    {
        changes.retain(|change| change.key != "limit");
    }
    // Otherwise the number in responses follows from the limit.
    if changes.iter().any(|change| change.key == "limit") {
        changes.retain(|change| change.key != DISPLAYED);
    }
    changes
}

/// A key with its value.
struct KeyRow {
    key: &'static str,
    value: String,
    /// The value if a rule file does not name the key; empty for what is always stated where there is a limit.
    default: &'static str,
}

const NONE: &str = "none";
/// How values are compared, unless a rule file says it.
const TEXT: &str = "text";
/// The body of refusals by a rule for which the setting decides.
const AS_SET: &str = "as denial.body";
/// The number and unit in responses, which can change without the limit.
const DISPLAYED: &str = "shown in responses";

fn row(key: &'static str, value: impl ToString, default: &'static str) -> KeyRow {
    KeyRow { key, value: value.to_string(), default }
}

/// Keys of the rule, and of the descriptor, which exist without a rule.
fn rows(descriptor: DescriptorRef<'_>) -> Vec<KeyRow> {
    let mut rows = descriptor.rule().map_or_else(|| vec![row("limit", "no limit", "")], rule_rows);
    let compared = if descriptor.node.network().is_some() { "cidr" } else { TEXT };
    rows.extend([
        row("match", compared, TEXT),
        row("share_threshold", descriptor.node.share_threshold, "false"),
        row("value_to_metric", descriptor.node.value_to_metric, "false"),
    ]);
    rows
}

fn rule_rows(rule: &Rule) -> Vec<KeyRow> {
    // Every field, so that a new one is compared too.
    let Rule {
        path: _,
        allowance: _,
        on_owner_unavailable,
        lease,
        shadow_mode,
        quota_mode,
        detailed_metric,
        is_hidden,
        denial_body,
        displayed_limit,
        location: _,
        options: _,
        stats: _,
    } = rule;
    let RuleOptions { name, candidate, replaces, groups, metadata, quota_unit, quotas, own, overlay: _ } =
        rule.options();
    let optional = |key, value: Option<String>| row(key, value.as_deref().unwrap_or(NONE), NONE);
    let replaced = (!replaces.is_empty()).then(|| replaces.join(", "));
    let unit = displayed_limit.unit.map_or("unknown", |unit| unit.name());
    let own = own.as_ref().map_or_else(|| NONE.to_owned(), |own| own.to_string());
    let body = denial_body.as_ref().map_or_else(|| AS_SET.to_owned(), |body| escaped(&body.to_string()));
    vec![
        row("limit", limit(rule), ""),
        row(DISPLAYED, format!("{} per {unit}", displayed_limit.requests_per_unit), ""),
        optional("candidate", candidate.as_ref().map(|limit| rule_text::limit(limit, None))),
        optional("name", name.clone()),
        optional("replaces", replaced),
        row("shadow_mode", shadow_mode, "false"),
        row("quota_mode", quota_mode, "false"),
        row("on_owner_unavailable", on_owner_unavailable.name(), "local_share"),
        row("lease", lease, "true"),
        row("headers", !is_hidden, "true"),
        optional("quota_unit", quota_unit.clone()),
        optional("quotas", (!quotas.is_empty()).then(|| rule_text::quotas(rule).join(", "))),
        row("own", own, NONE),
        row("detailed_metric", detailed_metric, "false"),
        optional("group", (!groups.is_empty()).then(|| rule_text::groups(rule).join(", "))),
        row("denial_body", body, AS_SET),
        optional("metadata", metadata.clone().map(|map| serde_json::Value::Object(map).to_string())),
    ]
}

/// The limit of a rule in words.
pub(super) fn limit(rule: &Rule) -> String {
    rule.limit()
        .map_or_else(|| "unlimited".to_owned(), |limit| rule_text::limit(limit, rule.displayed_limit.unit))
}
