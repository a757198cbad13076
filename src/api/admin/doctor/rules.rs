//! Findings in the rules.

use tollgate_counter::algorithm::Admission;
use tollgate_rules::{DescriptorRef, Domain, MatchKind, Rule, Rules, RulesStatus};
use tollgate_sources::{RuleSource, RuleSourceKind};
use tollgate_wire::finding::{DoctorFinding, listed};

/// A value that no pattern contains, so that only a `*` matches it.
const ANY_TEXT: &str = "\u{1f}";

/// A rate in hits a second above which a limit refuses nothing that a replica can decide.
const REFUSING_RATE_MAX: f64 = 1e9;

/// The decisions from which the share of refusals says something.
const DECISIONS_MIN: u64 = 1_000;

/// What to do about the rules of a source.
pub(super) struct RuleRepairs {
    /// The repair if there are no rules.
    load: String,
    /// The repair if the rules have problems.
    problems: String,
    /// The repair if the rules have warnings.
    warnings: String,
    /// The repair if a rule is missing.
    pub(super) missing: String,
    /// Where a key that a control plane does not know is added.
    pub(super) in_overlay: &'static str,
}

impl RuleRepairs {
    pub(super) fn new(source: &RuleSource) -> Self {
        let name = &source.name;
        let correct = "correct these places, which probably have a mistake";
        match source.kind {
            RuleSourceKind::Files => Self {
                load: format!(
                    "put rules at {name}, or set rules.path (--rules) to where they are; `tollgate check {name}` reports what prevents loading them"
                ),
                problems: "correct these places; the server loads the files as soon as they change"
                    .to_owned(),
                warnings: format!("{correct}; `tollgate check {name}` reports them before they are deployed"),
                missing: format!("add rules for it at {name}"),
                in_overlay: "",
            },
            RuleSourceKind::Url => Self {
                load: format!(
                    "let {name} answer with a rule file; `curl -fsS {name} > rules.yaml && tollgate check rules.yaml` reports what prevents loading it, and the log has the reason of each failed request"
                ),
                problems: format!(
                    "correct the text at {name}, or its server; it is asked again after rules.url.interval"
                ),
                warnings: format!(
                    "{correct}; `tollgate check FILE` reports them before the text is published"
                ),
                missing: format!("add rules for it at {name}"),
                in_overlay: "",
            },
            RuleSourceKind::Xds => Self {
                load: format!(
                    "let the control plane at {name} send RateLimitConfig resources; the log says whether it is connected and what it sends"
                ),
                problems: format!(
                    "correct the resources at the control plane, {name}, which has been told of the problems"
                ),
                warnings: format!("{correct}; the control plane, or rules.overlay, has them"),
                missing: format!("let the control plane at {name} send rules for it"),
                in_overlay: ", in the file of rules.overlay",
            },
        }
    }
}

/// Findings in the outcome of the loads so far.
pub(super) fn status(status: &RulesStatus, source: &RuleSource) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    if status.generation == 0 {
        findings.push(DoctorFinding::error(
            "no_rules",
            "no rules are loaded: every request is answered UNAVAILABLE",
            RuleRepairs::new(source).load,
        ));
    }
    if let Some(error) = &status.last_error {
        let problems = error.problems.iter().map(ToString::to_string);
        findings.push(DoctorFinding::error(
            "rule_problems",
            format!("the current rules cannot be loaded, and the previous ones stay: {}", listed(problems)),
            RuleRepairs::new(source).problems,
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
pub(super) fn findings(rules: &Rules, source: &RuleSource) -> Vec<DoctorFinding> {
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
            RuleRepairs::new(source).warnings,
        ));
    }
    if rules.unknown_fields > 0 {
        let number = rules.unknown_fields;
        findings.push(DoctorFinding::warning(
            "unknown_fields",
            format!("the control plane sends fields that this version ignores, in {number} descriptors: their limits may not be those that it means"),
            "upgrade Tollgate to a version that knows these fields, or do not use them; `warnings` of `/rules` names the fields and the first descriptor of each resource",
        ));
    }
    findings.extend(rules_finding(
        rules,
        |rule| rule.limit().is_some_and(|limit| limit.allowance() == 0),
        DoctorFinding::advice,
        "never_passes",
        "these rules let nothing pass",
        "raise requests_per_unit or burst, unless the rule is a ban on purpose",
    ));
    findings.extend(rules_finding(
        rules,
        never_refuses,
        DoctorFinding::warning,
        "never_refuses",
        "these rules can hardly refuse anything: they allow more than a thousand million hits a second",
        "lower requests_per_unit, or write `unlimited: true`, which takes no counter",
    ));
    findings.extend(rules_finding(
        rules,
        refuses_much,
        DoctorFinding::advice,
        "refuses_much",
        "these rules have refused more than half of their descriptors since they were loaded",
        "`tollgate counters`, `/top` and the page of the admin listener show the keys that are denied most often; raise the limit if they are not those that it is for",
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

/// A finding if rules look limits of keys up, and this replica does not.
pub(super) fn without_limit_source(rules: &Rules) -> Option<DoctorFinding> {
    rules_finding(
        rules,
        Rule::looks_up_limits,
        DoctorFinding::warning,
        "no_limits_source",
        "these rules have `own: {from: source}`, and limits.source is none, so all of their keys have the numbers of the rule",
        "set limits.source, or remove `from`",
    )
}

/// Whether a rule may delay requests.
pub(super) fn may_delay(rules: &Rules) -> bool {
    rules.domains().flat_map(Domain::rules).any(|rule| rule.admission() == Some(Admission::Delayed))
}

/// A finding about the rules that `is`, if there are any.
fn rules_finding(
    rules: &Rules,
    is: fn(&Rule) -> bool,
    finding: fn(&str, String, String) -> DoctorFinding,
    id: &str,
    what: &str,
    repair: &str,
) -> Option<DoctorFinding> {
    let found = rules.domains().flat_map(Domain::rules).filter(|rule| is(rule));
    let mut places = found.map(|rule| format!("{} at {}", rule.label(), rule.location)).peekable();
    places.peek()?;
    Some(finding(id, format!("{what}: {}", listed(places)), repair.to_owned()))
}

/// Whether a rule that lets something pass has refused more than half of many descriptors.
fn refuses_much(rule: &Rule) -> bool {
    if rule.limit().is_none_or(|limit| limit.allowance() == 0) {
        return false;
    }
    let Some(totals) = rule.stats.as_ref().map(|stats| stats.totals()) else { return false };
    let decisions = totals.ok + totals.over_limit;
    decisions >= DECISIONS_MIN && totals.over_limit * 2 > decisions
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
    let patterns: Vec<_> = level.iter().filter(|one| one.node.declared_kind == MatchKind::Pattern).collect();
    for (index, pattern) in patterns.iter().enumerate() {
        let sample = pattern.node.composite().replace('*', ANY_TEXT);
        let by = patterns[..index].iter().find(|earlier| earlier.matches(&sample));
        hidden.extend(by.map(|by| {
            format!(
                "{} ({}) behind {} ({})",
                pattern.node.composite(),
                pattern.node.location,
                by.node.composite(),
                by.node.location
            )
        }));
    }
    for descriptor in level {
        add_hidden(&descriptor.descriptors().collect::<Vec<_>>(), hidden);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_counter::time::Timestamp;
    use tollgate_rules::{
        ActiveRules, Documents, RuleEvent, RuleInput, RuleOrigin, Unknown, compile,
        yaml::{self, Located, Mark},
    };

    use super::*;

    #[test]
    fn repair_names_the_source_of_the_rules() {
        for (kind, loaded, added) in [
            (RuleSourceKind::Files, "tollgate check the-source", "at the-source"),
            (RuleSourceKind::Url, "curl -fsS the-source", "at the-source"),
            (RuleSourceKind::Xds, "control plane at the-source", "control plane at the-source"),
        ] {
            let source = RuleSource::new(kind, "the-source");
            let found = status(&RulesStatus::default(), &source);
            assert!(found[0].repair.contains(loaded), "{found:?}");
            assert!(RuleRepairs::new(&source).missing.contains(added));
        }
    }

    #[test]
    fn rule_that_refuses_most_of_many_descriptors_is_advice() {
        let rules = Rules::parse(
            "f",
            "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        );
        let active = ActiveRules::from_rules(rules.unwrap(), Timestamp::EPOCH);
        let current = active.current();
        let rules = current.rules().unwrap();
        let stats = rules.domains().next().unwrap().rules().next().unwrap().stats.as_ref().unwrap();
        let found = || findings(rules, &RuleSource::new(RuleSourceKind::Files, "the-source"));
        for _ in 0..500 {
            stats.count_plain(RuleEvent::default());
            stats.count_plain(RuleEvent { over_limit: true, ..RuleEvent::default() });
        }
        assert_eq!(found(), []);
        stats.count_plain(RuleEvent { over_limit: true, ..RuleEvent::default() });
        let found = found();
        assert_eq!((&*found[0].id, found[0].level.name()), ("refuses_much", "advice"));
    }

    #[test]
    fn unknown_fields_of_a_control_plane_are_a_finding() {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        let file = RuleInput::file("f", format!("{{domain: d, descriptors: [{{key: a, {limit}}}]}}"));
        let newer = RuleInput::resource(b"{domain: e}".to_vec(), |_path, bytes| Documents {
            origin: RuleOrigin::file("r"),
            stream: yaml::load(bytes),
            unknown: Some(Unknown { first: Located::new(Mark::START, "new"), count: 3 }),
        });
        let of = |sources: &[RuleInput]| {
            findings(&compile(sources).unwrap(), &RuleSource::new(RuleSourceKind::Files, "the-source"))
        };
        let found = of(&[file.clone(), newer]);
        let unknown: Vec<_> = found.iter().filter(|finding| finding.id == "unknown_fields").collect();
        assert!(unknown.len() == 1 && unknown[0].what.contains("in 3 descriptors"), "{found:?}");
        assert_eq!(of(&[file]), []);
    }
}
