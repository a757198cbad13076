//! The result of a check in SARIF 2.1.0, the format of code scanning.

use serde_json::{Value as Json, json};

use crate::cli::{
    admin_client::percent_encode,
    check::report::{Finding, Level, Report},
};

/// A SARIF log with one run.
pub(super) fn log(report: &Report<'_>) -> Json {
    let kinds = [Level::Error, Level::Warning].map(kind);
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "tollgate",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": kinds,
            }},
            "invocations": [{
                "executionSuccessful": true,
                "toolExecutionNotifications": notifications(report),
            }],
            "columnKind": "unicodeCodePoints",
            "results": report.findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

/// The identifier of a kind of findings, and its description.
fn described(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::Error => ("invalid-rules", "The rules cannot be loaded."),
        Level::Warning => ("suspicious-rules", "The rules can be loaded but probably have a mistake."),
    }
}

fn kind(level: Level) -> Json {
    let (id, text) = described(level);
    json!({"id": id, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}})
}

/// A problem that is only counted must not look like none.
fn notifications(report: &Report<'_>) -> Vec<Json> {
    match report.omitted {
        0 => Vec::new(),
        omitted => {
            vec![
                json!({"level": "warning", "message": {"text": format!("{omitted} more problems are not listed")}}),
            ]
        }
    }
}

fn result(finding: &Finding<'_>) -> Json {
    let (id, _) = described(finding.level);
    json!({
        "ruleId": id,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(finding.file)},
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }}],
    })
}

/// A path as a URI: relative if the path is.
fn uri(path: &str) -> String {
    let scheme = if path.starts_with('/') { "file://" } else { "" };
    let parts: Vec<_> = path.split('/').filter(|part| *part != ".").map(percent_encode).collect();
    format!("{scheme}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::rules::{Problems, Rules};

    use super::*;

    #[test]
    fn problem_is_a_result_with_its_place() {
        let checked = Rules::parse("my rules/a.yaml", "domain: edge\ndescriptors: []\nvalue: x\n");
        let log = log(&Report::of(&checked));
        let run = &log["runs"][0];
        let (result, kinds) = (&run["results"][0], &run["tool"]["driver"]["rules"]);
        assert_eq!((&log["version"], result["level"].as_str()), (&json!("2.1.0"), Some("error")));
        assert!(kinds.as_array().unwrap().iter().any(|kind| kind["id"] == result["ruleId"]));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "my%20rules/a.yaml");
        assert_eq!(place["region"], json!({"startLine": 3, "startColumn": 1}));
        assert!(result["message"]["text"].as_str().unwrap().contains("`value`"));
    }

    #[test]
    fn rules_without_problems_have_an_empty_list_of_results() {
        let checked = Rules::parse("a.yaml", "domain: edge\ndescriptors: [{key: user}]\n");
        let log = log(&Report::of(&checked));
        assert_eq!(log["runs"][0]["results"], json!([]));
    }

    #[test]
    fn omitted_problems_are_a_notification() {
        let text = "domain: edge\ndescriptors:\n".to_owned() + &"- {value: a}\n".repeat(Problems::MAX + 5);
        let checked = Rules::parse("a.yaml", &text);
        let log = log(&Report::of(&checked));
        let notifications = &log["runs"][0]["invocations"][0]["toolExecutionNotifications"];
        assert_eq!(notifications[0]["message"]["text"], "5 more problems are not listed");
    }

    #[test]
    fn paths_become_uris_that_keep_their_directories() {
        assert_eq!(uri("./rules/a-b_c.yaml"), "rules/a-b_c.yaml");
        assert_eq!(uri("/etc/tollgate/ä.yaml"), "file:///etc/tollgate/%C3%A4.yaml");
        assert_eq!(uri("a:b%.yaml"), "a%3Ab%25.yaml", "no scheme, and no escape of the name");
    }
}
