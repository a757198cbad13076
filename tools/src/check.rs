//! `tollgate check`: reports every problem of rule files without using them.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Command};
use serde_json::{Value as Json, json};
use tollgate_counter::algorithm::{AlgorithmName, Excess};
use tollgate_rules::{Location, OnOwnerUnavailable, Problem, Problems, Rule, RuleOrigin, Rules};
use tollgate_store::divider::is_divisible;

use crate::command::{CommandError, examples, flag, path};

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Report every problem of a rule file or directory; exits 1 if there is any")
        .after_help(examples(&["tollgate check rules.yaml", "tollgate check rules/ --json > problems.json"]))
        .arg(path("path", "PATH", "Rule file, or directory of rule files").required(true))
        .arg(flag("rlqs", "Warn of limits that the rate limit quota service of Envoy does not divide"))
        .arg(flag("json", "Print the problems and warnings as JSON"))
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let path = matches.get_one::<PathBuf>("path").expect("clap requires it");
    let mut checked = tollgate_rules::load(path);
    if let (Ok(rules), true) = (&mut checked, matches.get_flag("rlqs")) {
        warn_of_undivided(rules);
    }
    let text = if matches.get_flag("json") { report(&checked).to_string() } else { readable(&checked) };
    Ok((text, if checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// A line for each problem or warning, and one for rules without problems.
fn readable(checked: &Result<Rules, Problems>) -> String {
    match checked {
        Ok(rules) => {
            let warnings = rules.warnings().iter().map(|warning| format!("{warning} (a warning)\n"));
            let domains = counted(rules.domains().count(), "domain");
            let good =
                format!("good: {} in {domains}, content {}", counted(rules.len(), "rule"), rules.hash());
            warnings.collect::<String>() + &good
        }
        Err(problems) => problems.to_string(),
    }
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// The rules, if no problem prevents loading them, and the findings in the order of the files.
fn report(checked: &Result<Rules, Problems>) -> Json {
    match checked {
        Ok(rules) => json!({
            "rules": {"number": rules.len(), "domains": rules.domains().count(), "content": rules.hash()},
            "findings": rules.warnings().iter().map(|one| finding("warning", one)).collect::<Json>(),
            "omitted": 0,
        }),
        Err(problems) => {
            let findings: Vec<_> = problems.iter().map(|one| finding("error", one)).collect();
            // Further problems are only counted.
            json!({"rules": null, "omitted": problems.len() - findings.len(), "findings": findings})
        }
    }
}

/// A problem or a warning. Lines and columns are from 1, columns in characters.
fn finding(level: &str, problem: &Problem) -> Json {
    let Problem { location: Location { origin, mark }, what } = problem;
    let (RuleOrigin::File(file) | RuleOrigin::Resource { name: file, .. }) = &**origin;
    json!({"level": level, "file": file, "line": mark.line, "column": mark.column, "message": what})
}

/// Adds a warning for each limit that the rate limit quota service does not divide.
fn warn_of_undivided(rules: &mut Rules) {
    let all = rules.domains().flat_map(|domain| domain.rules());
    let warning = |rule: &Rule| Some(Problem { location: rule.location.clone(), what: unserved(rule)? });
    let warnings = all.filter_map(warning).collect();
    rules.add_warnings(warnings);
}

/// Why the limit of a rule is not divided, and what its buckets let pass; `None` if it is divided, or if there is none.
pub(super) fn unserved(rule: &Rule) -> Option<String> {
    let limit = rule.limit().filter(|limit| !is_divisible(limit))?;
    let key = if limit.penalized().is_some() {
        "penalty".to_owned()
    } else {
        match (limit.excess(), limit.algorithm()) {
            (Excess::Count, _) => "count_denied".to_owned(),
            (Excess::Overdraft(_), _) => "overdraft".to_owned(),
            (Excess::Refuse, Some(AlgorithmName::SlidingWindow)) => "sub_windows".to_owned(),
            (Excess::Refuse, algorithm) => {
                format!("algorithm: {}", algorithm.map_or("classic", AlgorithmName::name))
            }
        }
    };
    let passes = match rule.on_owner_unavailable {
        _ if rule.shadow_mode => "everything passes its buckets, as in shadow mode",
        OnOwnerUnavailable::Allow => "everything passes its buckets, as `on_owner_unavailable` says",
        OnOwnerUnavailable::Deny | OnOwnerUnavailable::LocalShare => "nothing passes its buckets",
    };
    Some(format!("RLQS does not divide a limit with `{key}`, so {passes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_reported_with_their_places() {
        let checked = Rules::parse("rules/a.yaml", "domain: edge\ndescriptor: []\ndomains: x\n");
        let report = report(&checked);
        let places = |key: &str| -> Vec<_> {
            report["findings"].as_array().unwrap().iter().map(|finding| finding[key].clone()).collect()
        };
        assert_eq!(report["rules"], Json::Null);
        assert_eq!(places("line"), [2, 3]);
        assert_eq!(places("column"), [1, 1]);
        assert_eq!(places("level"), ["error", "error"]);
        assert_eq!(places("file"), ["rules/a.yaml", "rules/a.yaml"]);
        let message = report["findings"][0]["message"].as_str().unwrap();
        assert!(message.contains("did you mean `descriptors`"), "{message}");
    }

    #[test]
    fn warnings_are_reported_beside_the_rules() {
        let checked = Rules::parse("a.yaml", "domain: edge\ndescriptors:\n- {key: a, shadow_mode: true}\n");
        let report = report(&checked);
        assert_eq!(report["findings"][0]["level"], "warning");
        assert_eq!(report["findings"][0]["line"], 3);
        assert_eq!(report["rules"]["domains"], 1);
        assert_eq!(report["rules"]["content"], checked.unwrap().hash());
    }

    #[test]
    fn problems_beyond_the_bound_are_counted_as_omitted() {
        let text = "domain: edge\ndescriptors:\n".to_owned() + &"- {value: a}\n".repeat(Problems::MAX + 5);
        let checked = Rules::parse("a.yaml", &text);
        let report = report(&checked);
        assert_eq!(report["findings"].as_array().unwrap().len(), Problems::MAX);
        assert_eq!(report["omitted"], json!(5));
    }

    /// The warnings of a rule with this limit.
    fn warnings(limit: &str) -> Vec<String> {
        let text = format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {{{limit}}}\n");
        let mut rules = Rules::parse("a.yaml", &text).unwrap();
        warn_of_undivided(&mut rules);
        rules.warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limit_that_is_not_divided_is_a_warning_with_its_key() {
        for (limit, key) in [
            ("unit: day, requests_per_unit: 5, algorithm: sliding_log", "algorithm: sliding_log"),
            ("unit: day, requests_per_unit: 5, algorithm: leaky_queue, burst: 1", "algorithm: leaky_queue"),
            ("unit: day, requests_per_unit: 5, algorithm: fixed_window, count_denied: true", "count_denied"),
            ("unit: day, requests_per_unit: 5, algorithm: token_bucket, overdraft: true", "overdraft"),
            ("unit: day, requests_per_unit: 6, algorithm: sliding_window, sub_windows: 6", "sub_windows"),
            (
                "unit: day, requests_per_unit: 5, algorithm: fixed_window, penalty: {after: 3, first: 1m}",
                "penalty",
            ),
        ] {
            let what = format!(
                "a.yaml:4:15: RLQS does not divide a limit with `{key}`, so nothing passes its buckets"
            );
            assert_eq!(warnings(limit), [what]);
        }
        let open = "unit: day, requests_per_unit: 5, algorithm: sliding_log, on_owner_unavailable: allow";
        assert!(
            warnings(open)[0].ends_with("so everything passes its buckets, as `on_owner_unavailable` says")
        );
    }

    #[test]
    fn limit_that_is_divided_is_no_warning() {
        let token_bucket = "unit: day, requests_per_unit: 5, algorithm: token_bucket";
        for limit in ["unit: day, requests_per_unit: 5", token_bucket, "unlimited: true"] {
            assert_eq!(warnings(limit), Vec::<String>::new(), "{limit}");
        }
    }
}
