//! Findings in what the configuration of an Envoy and the rules do together.

use std::collections::BTreeSet;

use tollgate_counter::algorithm::{Admission, Excess};
use tollgate_rules::{DescriptorRef, Domain, MatchKind, Rule, Rules, composite, nearest};
use tollgate_sources::RuleSource;
use tollgate_wire::finding::{DoctorFinding, EnvoyCharge, EnvoyDescriptor, EnvoyEntry, listed};

use crate::api::admin::doctor::rules::RuleRepairs;

/// Findings in the descriptors that an Envoy sends, if `rules` decide about them.
pub(super) fn findings(rules: &Rules, source: &RuleSource, sent: &[EnvoyDescriptor]) -> Vec<DoctorFinding> {
    let reached: Vec<_> =
        sent.iter().map(|descriptor| (descriptor, Reached::new(rules, descriptor))).collect();
    let mut findings = Vec::new();
    let unmatched = reached.iter().filter_map(|(descriptor, reached)| reached.unmatched(descriptor));
    findings.extend(finding(unmatched, |unmatched| {
        DoctorFinding::warning(
            "envoy_unmatched_descriptor",
            format!("Envoy sends descriptors that no rule matches, and that limit nothing: {unmatched}"),
            format!("correct the keys and values in Envoy, or {}", RuleRepairs::new(source).missing),
        )
    }));
    let endless = rules_of(&reached, EnvoyCharge::EndByCost, is_endless);
    findings.extend(finding(endless, |endless| {
        DoctorFinding::error(
            "envoy_budget_never_ends",
            format!(
                "Envoy charges the cost of a stream at its end to rules that do not charge what is larger than the rest, so the budget never ends: {endless}"
            ),
            format!(
                "add `count_denied: true` to the rate_limit of each, or `overdraft: true`, which makes the next windows pay the rest{}",
                RuleRepairs::new(source).in_overlay
            ),
        )
    }));
    let unchecked = without(sent, &[EnvoyCharge::EndByCost, EnvoyCharge::End], |other| {
        matches!(other, EnvoyCharge::Peek | EnvoyCharge::Request)
    });
    findings.extend(finding(unchecked, |unchecked| {
        DoctorFinding::warning(
            "envoy_charge_without_check",
            format!("Envoy charges descriptors at the end of a stream that it does not send before, so they refuse nothing: {unchecked}"),
            "send the same descriptor at the request too, with `hits_addend: {number: 0}`",
        )
    }));
    let uncharged = without(sent, &[EnvoyCharge::Peek], |other| other != EnvoyCharge::Peek);
    findings.extend(finding(uncharged, |uncharged| {
        DoctorFinding::warning(
            "envoy_check_without_charge",
            format!("Envoy sends descriptors with 0 hits that it never charges, so they refuse nothing: {uncharged}"),
            "send the same descriptor with `apply_on_stream_done: true` and its cost in `hits_addend`",
        )
    }));
    let is_freed = |keys: &Vec<&str>| {
        sent.iter().any(|other| other.charge == EnvoyCharge::EndRefund && keys_of(other) == *keys)
    };
    let taken = reached.iter().filter(|(descriptor, _)| {
        descriptor.charge == EnvoyCharge::Request && !is_freed(&keys_of(descriptor))
    });
    let kept = taken.flat_map(|(descriptor, reached)| reached.rules(descriptor, is_concurrency));
    findings.extend(finding(kept, |kept| {
        DoctorFinding::warning(
            "envoy_place_not_freed",
            format!("Envoy takes places of `concurrency` rules and frees none, so each is taken for hold_max: {kept}"),
            "send the same descriptor with `apply_on_stream_done: true` and `hits_addend: {number: 1, is_negative_hits: true}`: docs/envoy.md",
        )
    }));
    findings
}

/// The finding about these texts, if there are any.
fn finding(
    texts: impl Iterator<Item = String>,
    finding: impl FnOnce(String) -> DoctorFinding,
) -> Option<DoctorFinding> {
    let texts: BTreeSet<_> = texts.collect();
    (!texts.is_empty()).then(|| finding(listed(texts)))
}

/// The rules that descriptors with this charge reach, of those that `is`.
fn rules_of<'f>(
    reached: &'f [(&EnvoyDescriptor, Reached<'_>)],
    charge: EnvoyCharge,
    is: fn(&Rule) -> bool,
) -> impl Iterator<Item = String> + 'f {
    let with_charge = reached.iter().filter(move |(descriptor, _)| descriptor.charge == charge);
    with_charge.flat_map(move |(descriptor, reached)| reached.rules(descriptor, is))
}

/// Descriptors with one of these charges whose keys no descriptor has that is sent otherwise.
fn without<'f>(
    sent: &'f [EnvoyDescriptor],
    charges: &'f [EnvoyCharge],
    otherwise: impl Fn(EnvoyCharge) -> bool + 'f,
) -> impl Iterator<Item = String> + 'f {
    let chosen = sent.iter().filter(|one| charges.contains(&one.charge) && !one.entries.is_empty());
    let is_alone = move |one: &&EnvoyDescriptor| {
        let keys = keys_of(one);
        !sent
            .iter()
            .any(|other| otherwise(other.charge) && (other.entries.is_empty() || keys_of(other) == keys))
    };
    chosen.filter(is_alone).map(EnvoyDescriptor::displayed)
}

fn keys_of(descriptor: &EnvoyDescriptor) -> Vec<&str> {
    descriptor.entries.iter().map(|entry| &*entry.key).collect()
}

/// Whether a charge that is larger than the rest changes nothing.
fn is_endless(rule: &Rule) -> bool {
    rule.limit().is_some_and(|limit| {
        !limit.is_classic() && limit.excess() == Excess::Refuse && limit.admission() == Admission::AtOnce
    })
}

fn is_concurrency(rule: &Rule) -> bool {
    rule.admission() == Some(Admission::InFlight)
}

/// What a descriptor of Envoy may reach in the rules.
#[derive(Debug)]
struct Reached<'r> {
    /// In each domain that has rules, the descriptors that it may match.
    matched: Vec<DescriptorRef<'r>>,
    /// The keys that are known where it matches nothing. `None` if it matches, or if no domain has rules.
    known: Option<(&'r str, Vec<&'r str>)>,
}

impl<'r> Reached<'r> {
    fn new(rules: &'r Rules, descriptor: &EnvoyDescriptor) -> Self {
        let mut reached = Self { matched: Vec::new(), known: None };
        if descriptor.entries.is_empty() {
            return reached;
        }
        let domains = descriptor.domains.iter().filter_map(|name| domain(rules, name));
        for domain in domains {
            match matched(domain, &descriptor.entries) {
                Ok(matched) => reached.matched.extend(matched),
                Err(known) => {
                    reached.known.get_or_insert((&domain.name, known));
                }
            }
        }
        if !reached.matched.is_empty() {
            reached.known = None;
        }
        reached
    }

    /// The descriptor and what it probably means, if no rule matches it.
    fn unmatched(&self, descriptor: &EnvoyDescriptor) -> Option<String> {
        let (domain, known) = self.known.as_ref()?;
        let meant = descriptor.entries.iter().find_map(|entry| nearest(&entry.key, known.iter().copied()));
        let hint = meant.map_or_else(String::new, |meant| format!(", did you mean {meant:?}?"));
        Some(format!("{} in domain {domain:?}{hint}", descriptor.displayed()))
    }

    /// The rules that the descriptor may reach, of those that `is`.
    fn rules(&self, descriptor: &EnvoyDescriptor, is: fn(&Rule) -> bool) -> Vec<String> {
        let rules = self.matched.iter().filter_map(DescriptorRef::rule).filter(|rule| is(rule));
        rules
            .map(|rule| format!("{} reaches {} at {}", descriptor.displayed(), rule.label(), rule.location))
            .collect()
    }
}

/// The domain, or the one that a misspelt name most likely means.
fn domain<'r>(rules: &'r Rules, name: &str) -> Option<&'r Domain> {
    let find = |name: &str| rules.domains().find(|domain| *domain.name == *name);
    let names: Vec<_> = rules.domains().map(|domain| &*domain.name).collect();
    find(name).or_else(|| find(nearest(name, names.iter().copied())?))
}

/// The descriptors of a domain that these entries may match, or the keys of the level in which none matches.
fn matched<'r>(domain: &'r Domain, entries: &[EnvoyEntry]) -> Result<Vec<DescriptorRef<'r>>, Vec<&'r str>> {
    let mut level: Vec<_> = domain.descriptors().collect();
    let mut here = Vec::new();
    for entry in entries {
        here = chosen(&level, entry);
        if here.is_empty() {
            return Err(level.iter().map(|one| &*one.node.key).collect());
        }
        level = here.iter().flat_map(DescriptorRef::descriptors).collect();
    }
    Ok(here)
}

/// Whether rules know these keys in this order, whatever the values.
pub(super) fn knows_keys(domain: &Domain, keys: impl Iterator<Item = String>) -> bool {
    let entries: Vec<_> = keys.map(|key| EnvoyEntry { key, value: None }).collect();
    matched(domain, &entries).is_ok()
}

/// The descriptors of a level that an entry chooses: one, or all that it may if its value is not known.
fn chosen<'r>(level: &[DescriptorRef<'r>], entry: &EnvoyEntry) -> Vec<DescriptorRef<'r>> {
    let EnvoyEntry { key, value } = entry;
    let Some(value) = value else {
        // `key: a_b` is also `key: a` with `value: b`.
        let begin = format!("{key}_");
        let may_match = |one: &&DescriptorRef<'_>| {
            *one.node.key == **key
                || one.node.key.starts_with(&begin)
                || one.node.declared_kind == MatchKind::Pattern && one.node.key.contains('*')
        };
        return level.iter().filter(may_match).copied().collect();
    };
    let text = composite(key, value);
    let is = |one: &DescriptorRef<'_>, kind| one.node.declared_kind == kind;
    let exact = level.iter().find(|one| !is(one, MatchKind::Pattern) && one.node.composite() == text);
    let network = || level.iter().find(|one| is(one, MatchKind::Network) && *one.node.key == **key);
    let pattern = || level.iter().find(|one| is(one, MatchKind::Pattern) && one.matches(&text));
    let any = || level.iter().find(|one| is(one, MatchKind::KeyOnly) && one.node.composite() == *key);
    exact.or_else(network).or_else(pattern).or_else(any).into_iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use tollgate_sources::RuleSourceKind;

    use super::*;

    const RULES: &str = "
domain: shop
descriptors:
  - {key: connection, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: team, rate_limit: {unit: minute, requests_per_unit: 100, algorithm: fixed_window}}
  - {key: owed, rate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket, overdraft: true}}
  - {key: calls, rate_limit: {algorithm: concurrency, max_in_flight: 5}}
  - key: route
    value: login
    descriptors:
      - {key: account, value: 'a*', rate_limit: {unit: minute, requests_per_unit: 5}}
";

    fn descriptor(domain: &str, entries: &[(&str, Option<&str>)], charge: EnvoyCharge) -> EnvoyDescriptor {
        let entry = |(key, value): &(&str, Option<&str>)| EnvoyEntry {
            key: (*key).to_owned(),
            value: value.map(str::to_owned),
        };
        EnvoyDescriptor {
            domains: vec![domain.to_owned()],
            entries: entries.iter().map(entry).collect(),
            charge,
            at: None,
        }
    }

    fn found(sent: &[EnvoyDescriptor]) -> Vec<DoctorFinding> {
        findings(
            &Rules::parse("rules.yaml", RULES).unwrap(),
            &RuleSource::new(RuleSourceKind::Files, "the-source"),
            sent,
        )
    }

    fn ids(sent: &[EnvoyDescriptor]) -> Vec<String> {
        found(sent).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn descriptor_that_no_rule_matches_is_named_with_the_nearest_key() {
        let sent = [
            descriptor("shopp", &[("conection", Some("established"))], EnvoyCharge::Request),
            descriptor("shop", &[("route", Some("login")), ("account", None)], EnvoyCharge::Request),
            descriptor("shop", &[("connection", Some("any"))], EnvoyCharge::Request),
            descriptor("other", &[("x", None)], EnvoyCharge::Request),
            descriptor("shop", &[], EnvoyCharge::Request),
        ];
        let found = found(&sent);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].id, "envoy_unmatched_descriptor");
        let named = ": (conection=established) in domain \"shop\", did you mean \"connection\"?";
        assert!(found[0].what.ends_with(named), "{found:?}");
        for entries in [&[("route", Some("logout"))][..], &[("route", Some("login")), ("user", None)]] {
            assert_eq!(
                ids(&[descriptor("shop", entries, EnvoyCharge::Request)]),
                ["envoy_unmatched_descriptor"]
            );
        }
    }

    #[test]
    fn budget_that_is_charged_at_the_end_needs_a_rule_that_counts_all() {
        let budget = |key| {
            let sent = |charge| descriptor("shop", &[(key, None)], charge);
            found(&[sent(EnvoyCharge::Peek), sent(EnvoyCharge::EndByCost)])
        };
        let endless = budget("team");
        assert_eq!(endless.len(), 1, "{endless:?}");
        assert_eq!((&*endless[0].id, endless[0].level.name()), ("envoy_budget_never_ends", "error"));
        assert!(endless[0].what.ends_with("(team) reaches shop.team at rules.yaml:5:29"), "{endless:?}");
        assert!(endless[0].repair.contains("`count_denied: true`"), "{endless:?}");
        // A rule without an algorithm counts refused hits, and an overdraft is paid later.
        assert_eq!((budget("connection"), budget("owed")), (Vec::new(), Vec::new()));
    }

    #[test]
    fn check_and_charge_need_each_other() {
        let sent = |charge| descriptor("shop", &[("connection", None)], charge);
        assert_eq!(ids(&[sent(EnvoyCharge::EndByCost)]), ["envoy_charge_without_check"]);
        assert_eq!(ids(&[sent(EnvoyCharge::Peek)]), ["envoy_check_without_charge"]);
        assert_eq!(ids(&[sent(EnvoyCharge::Request), sent(EnvoyCharge::End)]), Vec::<String>::new());
    }

    #[test]
    fn place_that_is_taken_needs_a_refund() {
        let sent = |charge| descriptor("shop", &[("calls", None)], charge);
        assert_eq!(ids(&[sent(EnvoyCharge::Request)]), ["envoy_place_not_freed"]);
        assert_eq!(ids(&[sent(EnvoyCharge::Request), sent(EnvoyCharge::EndRefund)]), Vec::<String>::new());
    }
}
