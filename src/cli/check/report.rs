//! The result of a check, for programs.

use serde::Serialize;
use serde_json::Value as Json;
use tollgate_limiter::rules::{Problem, Problems, RuleOrigin, Rules};

/// What a check found.
#[derive(Debug, Serialize)]
pub(super) struct RulesReport<'r> {
    /// The rules, if no problem prevents loading them.
    rules: Option<Summary<'r>>,
    /// The findings that are kept, in the order of the files.
    findings: Vec<Finding<'r>>,
    /// The number of further problems, which are only counted.
    omitted: usize,
}

/// Rules without problems.
#[derive(Debug, Serialize)]
struct Summary<'r> {
    number: usize,
    domains: usize,
    content: &'r str,
}

/// A problem or a warning.
#[derive(Debug, Serialize)]
struct Finding<'r> {
    level: FindingEffect,
    /// The file, by its path as given.
    file: &'r str,
    /// From 1.
    line: u32,
    /// In characters, from 1.
    column: u32,
    message: &'r str,
}

/// The effect of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingEffect {
    /// The rules cannot be loaded.
    Error,
    /// Probably a mistake.
    Warning,
}

impl<'r> RulesReport<'r> {
    pub(super) fn new(checked: &'r Result<Rules, Problems>) -> Self {
        match checked {
            Ok(rules) => Self {
                rules: Some(Summary {
                    number: rules.len(),
                    domains: rules.domains().count(),
                    content: rules.hash(),
                }),
                findings: rules
                    .warnings()
                    .iter()
                    .map(|one| Finding::new(one, FindingEffect::Warning))
                    .collect(),
                omitted: 0,
            },
            Err(problems) => {
                let findings: Vec<_> =
                    problems.iter().map(|one| Finding::new(one, FindingEffect::Error)).collect();
                Self { rules: None, omitted: problems.len() - findings.len(), findings }
            }
        }
    }

    pub(super) fn json(&self) -> Json {
        serde_json::to_value(self).expect("all keys are text and all numbers are integers")
    }
}

impl<'r> Finding<'r> {
    fn new(problem: &'r Problem, level: FindingEffect) -> Self {
        let Problem { location, what } = problem;
        let (RuleOrigin::File(file) | RuleOrigin::Resource { name: file, .. }) = &*location.origin;
        Self { level, file, line: location.mark.line, column: location.mark.column, message: what }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_are_reported_with_their_places() {
        let checked = Rules::parse("rules/a.yaml", "domain: edge\ndescriptor: []\ndomains: x\n");
        let report = RulesReport::new(&checked).json();
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
        let report = RulesReport::new(&checked).json();
        assert_eq!(report["findings"][0]["level"], "warning");
        assert_eq!(report["findings"][0]["line"], 3);
        assert_eq!(report["rules"]["domains"], 1);
        assert_eq!(report["rules"]["content"], checked.unwrap().hash());
    }

    #[test]
    fn problems_beyond_the_bound_are_counted_as_omitted() {
        let text = "domain: edge\ndescriptors:\n".to_owned() + &"- {value: a}\n".repeat(Problems::MAX + 5);
        let checked = Rules::parse("a.yaml", &text);
        let report = RulesReport::new(&checked).json();
        assert_eq!(report["findings"].as_array().unwrap().len(), Problems::MAX);
        assert_eq!(report["omitted"], json!(5));
    }
}
