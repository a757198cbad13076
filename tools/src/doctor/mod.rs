//! `tollgate doctor`: what commonly goes wrong on a running server and in its cluster, and how to repair it.

use std::{path::PathBuf, process::ExitCode};

use axum::http::Method;
use clap::{ArgAction, ArgMatches, Command};
use serde::Deserialize;
use serde_json::json;
use tollgate_counter::printable::escaped;
use tollgate_wire::finding::{DoctorFinding, FindingLevel};

use crate::{
    admin_client,
    command::{CommandError, examples, file, flag, printable_json, value},
};

mod action;
mod descriptors;
mod envoy;
mod located;
mod optional_entries;
mod quota_settings;
mod quotas;
mod yaml_text;

/// The exit code if there are findings.
const FOUND: u8 = 1;

/// The answer of a server. Fields that a later version adds are ignored.
#[derive(Debug, Deserialize)]
struct Examination {
    program: String,
    findings: Vec<DoctorFinding>,
    domains: Vec<String>,
    /// Whether a rule may delay requests.
    delays: bool,
}

pub(super) fn command() -> Command {
    let envoy = file(
        "envoy",
        "Bootstrap or config dump of an Envoy that asks this server, as YAML or JSON; repeat it for several files, as of Istio's EnvoyFilters",
    );
    let accept = value(
        "accept",
        "ID",
        "A finding that is known and accepted: it is only counted, and does not change the exit code; repeat it for several",
    );
    let json = flag("json", "Print the findings as JSON");
    Command::new("doctor")
        .about(
            "Examine a server and its cluster for what commonly goes wrong, and say how to repair it; exits 0 without errors and warnings, 1 with any, 2 without an answer",
        )
        .after_help(examples(&[
            "tollgate doctor",
            "tollgate doctor --to 127.0.0.1:6070 --envoy envoy.yaml",
            "tollgate doctor --accept shadow_mode",
        ]))
        .args(admin_client::args())
        .args([envoy, accept].map(|several| several.action(ArgAction::Append)))
        .arg(json)
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let (program, mut findings) = examine(matches)?;
    let accepted: Vec<_> = matches.get_many::<String>("accept").into_iter().flatten().collect();
    let all = findings.len();
    findings.retain(|finding| !accepted.contains(&&finding.id));
    let accepted = all - findings.len();
    let text = if matches.get_flag("json") {
        printable_json(&json!({"program": program, "findings": findings, "accepted": accepted}).to_string())
    } else {
        readable(&findings, accepted)
    };
    let is_sound = findings.iter().all(|finding| finding.level == FindingLevel::Advice);
    Ok((text, if is_sound { ExitCode::SUCCESS } else { ExitCode::from(FOUND) }))
}

/// The version of the server, and all findings with the most urgent ones first.
fn examine(matches: &ArgMatches) -> Result<(String, Vec<DoctorFinding>), String> {
    let paths = matches.get_many::<PathBuf>("envoy");
    let config = paths.map(|paths| envoy::Config::read(paths.map(PathBuf::as_path))).transpose()?;
    let (method, body) = match &config {
        Some(config) => (Method::POST, json!(config.descriptors()).to_string()),
        None => (Method::GET, String::new()),
    };
    let answer = admin_client::ask(matches, method, "/doctor", body)?;
    let examination: Examination = serde_json::from_value(answer)
        .map_err(|error| format!("cannot read the answer of the server: {error}"))?;
    let Examination { program, mut findings, domains, delays } = examination;
    findings.extend(config.into_iter().flat_map(|config| config.findings(&domains, delays)));
    findings.sort_by_key(|finding| finding.level);
    Ok((program, findings))
}

/// `accepted` further findings are left out.
fn readable(findings: &[DoctorFinding], accepted: usize) -> String {
    let mut text = String::new();
    for DoctorFinding { id, level, what, repair, snippet } in findings {
        text +=
            &format!("{} {}: {}\n  repair: {}\n", level.name(), escaped(id), escaped(what), escaped(repair));
        for line in snippet.iter().flat_map(|snippet| snippet.lines()) {
            text += &format!("    {}\n", escaped(line));
        }
        text.push('\n');
    }
    let number = |level| findings.iter().filter(|finding| finding.level == level).count();
    match (number(FindingLevel::Error), number(FindingLevel::Warning), number(FindingLevel::Advice)) {
        (0, 0, 0) if accepted == 0 => "nothing found".to_owned(),
        (errors, warnings, advice) => {
            let accepted = if accepted > 0 { format!(", accepted: {accepted}") } else { String::new() };
            format!("{text}errors: {errors}, warnings: {warnings}, advice: {advice}{accepted}")
        }
    }
}
