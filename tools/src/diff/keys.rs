//! The keys of a descriptor and its rule, as text that can be compared.

use tollgate_counter::printable::escaped;
use tollgate_rules::{DescriptorRef, Rule, RuleOptions, rule_text};

use crate::diff::difference::KeyValueChange;

/// The keys whose values differ. A key that one side lacks has its default there.
pub(super) fn changes(old: Option<DescriptorRef<'_>>, new: Option<DescriptorRef<'_>>) -> Vec<KeyValueChange> {
    let rules = (old.and_then(|old| old.rule()), new.and_then(|new| new.rule()));
    let (old, new) = (old.map(values).unwrap_or_default(), new.map(values).unwrap_or_default());
    let longer = if old.len() < new.len() { &new } else { &old };
    let value =
        |values: &Values, key| values.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
    let mut changes = Vec::new();
    for (key, _) in longer {
        let change = KeyValueChange { key, old: value(&old, *key), new: value(&new, *key) };
        let stated = |value: &Option<String>| value.clone().unwrap_or_else(|| default_of(key).to_owned());
        if stated(&change.old) != stated(&change.new) {
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

type Values = Vec<(&'static str, String)>;

/// The value of a key that a rule file does not name.
fn default_of(key: &str) -> &'static str {
    match key {
        // Always stated where there is a limit.
        "limit" | DISPLAYED => "",
        "on_owner_unavailable" => "local_share",
        "lease" | "headers" => "true",
        "denial_body" => AS_SET,
        "name" | "replaces" | "metadata" | "quota_unit" | "quotas" | "candidate" | "group" => NONE,
        MATCH => TEXT,
        _ => "false",
    }
}

const NONE: &str = "none";
/// How values are compared, and the default.
const MATCH: &str = "match";
const TEXT: &str = "text";
/// The body of refusals by a rule for which the setting decides.
const AS_SET: &str = "as denial.body";
/// The number and unit in responses, which can change without the limit.
const DISPLAYED: &str = "shown in responses";

/// Keys of the rule, and of the descriptor, which exist without a rule.
fn values(descriptor: DescriptorRef<'_>) -> Values {
    let mut values = descriptor.rule().map_or_else(|| vec![("limit", "no limit".to_owned())], rule_values);
    let compared = if descriptor.node.network().is_some() { "cidr" } else { TEXT };
    values.push((MATCH, compared.to_owned()));
    values.push(("share_threshold", descriptor.node.share_threshold.to_string()));
    values.push(("value_to_metric", descriptor.node.value_to_metric.to_string()));
    values
}

fn rule_values(rule: &Rule) -> Values {
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
    let text = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
    let replaced = (!replaces.is_empty()).then(|| replaces.join(", "));
    let unit = displayed_limit.unit.map_or("unknown", |unit| unit.name());
    vec![
        ("limit", limit(rule)),
        (DISPLAYED, format!("{} per {unit}", displayed_limit.requests_per_unit)),
        ("candidate", text(candidate.as_ref().map(|limit| rule_text::limit(limit, None)))),
        ("name", text(name.clone())),
        ("replaces", text(replaced)),
        ("shadow_mode", shadow_mode.to_string()),
        ("quota_mode", quota_mode.to_string()),
        ("on_owner_unavailable", on_owner_unavailable.name().to_owned()),
        ("lease", lease.to_string()),
        ("headers", (!is_hidden).to_string()),
        ("quota_unit", text(quota_unit.clone())),
        ("quotas", text((!quotas.is_empty()).then(|| rule_text::quotas(rule).join(", ")))),
        ("own", text(own.as_ref().map(|own| own.to_string()))),
        ("detailed_metric", detailed_metric.to_string()),
        ("group", text((!groups.is_empty()).then(|| rule_text::groups(rule).join(", ")))),
        (
            "denial_body",
            denial_body.as_ref().map_or_else(|| AS_SET.to_owned(), |body| escaped(&body.to_string())),
        ),
        ("metadata", text(metadata.clone().map(|map| serde_json::Value::Object(map).to_string()))),
    ]
}

/// The limit of a rule in words.
pub(super) fn limit(rule: &Rule) -> String {
    rule.limit()
        .map_or_else(|| "unlimited".to_owned(), |limit| rule_text::limit(limit, rule.displayed_limit.unit))
}
