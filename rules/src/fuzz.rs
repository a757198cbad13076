//! The fuzz targets of rule files and resources.

use std::{slice, sync::Arc, time::Duration};

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::{Entry, Secret},
    time::Timestamp,
};

use crate::{
    Unit, compile,
    contents::RuleInput,
    denial_body::{template::DenialBody, text::DenialValues},
    keyed_rules::{KeyedDomain, KeyedRules},
    rule::{Allowance, Rule},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_040_123_456_789);

/// A rule file: it has problems that can be displayed, or rules that can be looked up and limits that decide.
pub fn rules(bytes: &[u8]) {
    used(&RuleInput::file("rules.yaml", bytes), "rules.yaml:");
}

/// Uses all rules of a source, or displays its problems, which begin with this text.
pub fn used(source: &RuleInput, problem: &str) {
    let rules = match compile(slice::from_ref(source)) {
        Ok(rules) => rules,
        Err(problems) => return assert!(problems.to_string().starts_with(problem), "{problems}"),
    };
    for warning in rules.warnings() {
        assert!(!warning.to_string().is_empty());
    }
    let rules = Arc::new(rules);
    let keyed = KeyedRules::new(Some(rules.clone()), Secret::from_bytes([7; 16]));
    for domain in rules.domains() {
        let keyed = keyed.domain(&domain.name).expect("the rules have the domain");
        for value in [&b"/api/1"[..], b"10.1.2.3:80", b"2001:db8::1", b"/\xff\\xFF"] {
            look_up(keyed, &["user", "path", "a", "b", "c"].map(|key| Entry::new(key, value)));
        }
        domain.rules().flat_map(limits).for_each(decide);
        domain.denial_body.iter().for_each(|body| render(body));
        domain.rules().filter_map(|rule| rule.denial_body.as_ref()).for_each(|body| render(body));
    }
}

/// Looks up each part of these entries.
fn look_up(domain: KeyedDomain<'_>, entries: &[Entry<'_>]) {
    for first in 0..entries.len() {
        for last in first..entries.len() {
            let entries = &entries[first..=last];
            domain.trace(entries);
            if let Some(found) = domain.find(entries) {
                found.metric_name(entries);
                for limit in limits(found.rule) {
                    found.key(entries, limit);
                }
            }
        }
    }
}

/// A body of JSON is JSON, whatever its values are.
fn render(body: &DenialBody) {
    let DenialBody::Template(template) = body else { return };
    let names = ["\"}],\\{limit}\n", "</script>\u{0}"];
    let of_number = |number: Option<u64>| DenialValues {
        domain: names[0],
        rule: number.and(Some(names[1])),
        limit: number,
        unit: number.and(Some(Unit::Month)),
        remaining: number,
        retry_after: number.map(Duration::from_millis),
        never_because: number.map(|_| names[1]),
        violated_policies: &names,
    };
    for values in [None, Some(0), Some(u64::MAX)].map(of_number) {
        let Some(text) = template.render(&values) else { continue };
        if !template.content_type().starts_with("text/") {
            serde_json::from_str::<serde_json::Value>(&text).expect("a body of JSON is valid");
        }
    }
}

/// The limits of a rule.
fn limits(rule: &Rule) -> impl Iterator<Item = &Limit> {
    let limit = match &rule.allowance {
        Allowance::Limited(limit) => Some(limit),
        Allowance::Unlimited => None,
    };
    limit.into_iter().chain(&rule.options().candidate)
}

/// Decides each operation at instants that lie far apart, in both directions.
fn decide(limit: &Limit) {
    let mut counter = limit.fresh();
    let instants = [NOW, NOW.plus(1), Timestamp::EPOCH, Timestamp::from_nanos(u64::MAX), NOW];
    for now in instants {
        for operation in [
            Operation::Peek,
            Operation::Charge(1),
            Operation::Charge(limit.allowance()),
            Operation::Charge(u64::MAX),
            Operation::Refund(1),
            Operation::Refund(u64::MAX),
        ] {
            let decision = limit.decide(&mut counter, now, operation);
            if let Some(receipt) = decision.receipt {
                limit.undo(&mut counter, receipt, now);
            }
        }
        limit.idle_at(&counter);
    }
}
