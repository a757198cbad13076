//! Findings in the rules.

use tollgate_counter::algorithm::Admission;
use tollgate_rules::{DescriptorRef, Domain, MatchKind, Rule, Rules, RulesStatus};
use tollgate_wire::finding::{DoctorFinding, listed};

/// A value that no pattern contains, so that only a `*` matches it.
const ANY_TEXT: &str = "\u{1f}";

/// A rate in hits a second above which a limit refuses nothing that a replica can decide.
const REFUSING_RATE_MAX: f64 = 1e9;

/// Findings in the outcome of the loads so far.
pub(super) fn status(status: &RulesStatus) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    if status.generation == 0 {
        findings.push(DoctorFinding::error(
            "no_rules",
            "no rules are loaded: every request is answered UNAVAILABLE",
            "set rules.path (--rules) to a file or directory of rules; `tollgate check PATH` reports what prevents loading it",
        ));
    }
    if let Some(error) = &status.last_error {
        let problems = error.problems.iter().map(ToString::to_string);
        findings.push(DoctorFinding::error(
            "rule_problems",
            format!("the current rules cannot be loaded, and the previous ones stay: {}", listed(problems)),
            "correct these places; the server loads the files as soon as they change",
        ));
    }
    if let Some(problems) = &status.overlay_problems {
        findings.push(DoctorFinding::error(
            "overlay_problems",
            format!("the overlay cannot be used: {}", listed(problems.iter().map(ToString::to_string))),
            "correct these places in the file of rules.overlay",
        ));
    }
    findings
}

/// Findings in the active rules.
pub(super) fn findings(rules: &Rules) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    if rules.is_empty() {
        findings.push(DoctorFinding::warning(
            "no_limits",
            "no descriptor has a rate_limit: every request passes",
            "add a rate_limit to the descriptors that are to be limited",
        ));
    }
    if !rules.warnings().is_empty() {
        let warnings = rules.warnings().iter().map(ToString::to_string);
        findings.push(DoctorFinding::warning(
            "rule_warnings",
            listed(warnings),
            "correct these places, which probably have a mistake; `tollgate check PATH` reports them before they are deployed",
        ));
    }
    if rules.unknown_fields() > 0 {
        let number = rules.unknown_fields();
        findings.push(DoctorFinding::warning(
            "unknown_fields",
            format!("the control plane sends fields that this version ignores, in {number} descriptors: their limits may not be those that it means"),
            "upgrade Tollgate to a version that knows these fields, or do not use them; `warnings` of `/rules` names the fields and the first descriptor of each resource",
        ));
    }
    let each = || rules.domains().flat_map(Domain::rules);
    let never_pass: Vec<_> =
        each().filter(|rule| rule.limit().is_some_and(|limit| limit.allowance() == 0)).collect();
    findings.extend(rules_finding(
        &never_pass,
        "never_passes",
        "these rules let nothing pass",
        "raise requests_per_unit or burst, unless the rule is a ban on purpose",
    ));
    let never_refuse: Vec<_> = each().filter(|rule| never_refuses(rule)).collect();
    findings.extend(rules_finding(
        &never_refuse,
        "never_refuses",
        "these rules can hardly refuse anything: they allow more than a thousand million hits a second",
        "lower requests_per_unit, or write `unlimited: true`, which takes no counter",
    ));
    let mut hidden = Vec::new();
    for domain in rules.domains() {
        add_hidden(&domain.descriptors().collect::<Vec<_>>(), &mut hidden);
    }
    if !hidden.is_empty() {
        findings.push(DoctorFinding::warning(
            "never_applies",
            format!(
                "these descriptors never apply, because a pattern before them matches the same: {}",
                listed(hidden)
            ),
            "declare the more specific pattern first: of two patterns that match, the first one applies",
        ));
    }
    findings
}

/// Whether a rule may delay requests.
pub(super) fn may_delay(rules: &Rules) -> bool {
    rules.domains().flat_map(Domain::rules).any(|rule| rule.admission() == Some(Admission::Delayed))
}

fn rules_finding(rules: &[&Rule], id: &str, what: &str, repair: &str) -> Option<DoctorFinding> {
    let places = rules.iter().map(|rule| format!("{} at {}", rule.label(), rule.location));
    (!rules.is_empty()).then(|| DoctorFinding::warning(id, format!("{what}: {}", listed(places)), repair))
}

fn never_refuses(rule: &Rule) -> bool {
    let rate = rule.limit().and_then(|limit| {
        let seconds = limit.period()?.as_secs_f64();
        Some(limit.hits_per_period() as f64 / seconds)
    });
    rate.is_some_and(|rate| rate > REFUSING_RATE_MAX)
}

/// Patterns that match nothing that an earlier pattern of their level does not match.
fn add_hidden(level: &[DescriptorRef<'_>], hidden: &mut Vec<String>) {
    let patterns: Vec<_> = level.iter().filter(|one| one.kind() == MatchKind::Pattern).collect();
    for (index, pattern) in patterns.iter().enumerate() {
        let sample = pattern.composite().replace('*', ANY_TEXT);
        let by = patterns[..index].iter().find(|earlier| earlier.matches(&sample));
        hidden.extend(by.map(|by| {
            format!(
                "{} ({}) behind {} ({})",
                pattern.composite(),
                pattern.location(),
                by.composite(),
                by.location()
            )
        }));
    }
    for descriptor in level {
        add_hidden(&descriptor.descriptors().collect::<Vec<_>>(), hidden);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_rules::{
        Documents, RuleInput, RuleOrigin, Unknown, compile,
        yaml::{self, Mark, YamlProblem},
    };

    use super::*;

    #[test]
    fn unknown_fields_of_a_control_plane_are_a_finding() {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        let file = RuleInput::file("f", format!("{{domain: d, descriptors: [{{key: a, {limit}}}]}}"));
        let newer = RuleInput::resource(b"{domain: e}".to_vec(), |_path, bytes| Documents {
            origin: RuleOrigin::file("r"),
            stream: yaml::load(bytes),
            unknown: Some(Unknown {
                first: YamlProblem { mark: Mark::START, what: "new".to_owned() },
                count: 3,
            }),
        });
        let of = |sources: &[RuleInput]| findings(&compile(sources).unwrap());
        let found = of(&[file.clone(), newer]);
        let unknown: Vec<_> = found.iter().filter(|finding| finding.id == "unknown_fields").collect();
        assert!(unknown.len() == 1 && unknown[0].what.contains("in 3 descriptors"), "{found:?}");
        assert_eq!(of(&[file]), []);
    }
}
