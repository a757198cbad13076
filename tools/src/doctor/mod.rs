//! `tollgate doctor`: what commonly goes wrong on a running server and in its cluster, and how to repair it.

use std::{path::PathBuf, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use serde::Deserialize;
use serde_json::json;
use tollgate_counter::printable::escaped;
use tollgate_wire::finding::{DoctorFinding, FindingLevel};

use crate::{
    admin_client,
    command::{FAILURE, examples, print, printable_json},
};

mod envoy;
mod fields;
mod optional_entries;
mod quota_settings;
mod quotas;
mod yaml_text;

/// The name of the command.
pub(super) const NAME: &str = "doctor";

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
    let envoy = Arg::new("envoy")
        .long("envoy")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help("Bootstrap or config dump of an Envoy that asks this server, as YAML or JSON");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the findings as JSON");
    Command::new(NAME)
        .about(
            "Examine a server and its cluster for what commonly goes wrong, and say how to repair it; exits 0 without errors and warnings, 1 with any, 2 without an answer",
        )
        .after_help(examples(&[
            "tollgate doctor",
            "tollgate doctor --to 127.0.0.1:6070 --envoy envoy.yaml",
        ]))
        .args(admin_client::args())
        .args([envoy, json])
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let (program, findings) = match examine(matches) {
        Ok(found) => found,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(FAILURE);
        }
    };
    let text = if matches.get_flag("json") {
        printable_json(&json!({"program": program, "findings": findings}).to_string())
    } else {
        readable(&findings)
    };
    if print((text + "\n").as_bytes()) != ExitCode::SUCCESS {
        return ExitCode::from(FAILURE);
    }
    let is_sound = findings.iter().all(|finding| finding.level == FindingLevel::Advice);
    if is_sound { ExitCode::SUCCESS } else { ExitCode::from(FOUND) }
}

/// The version of the server, and all findings with the most urgent ones first.
fn examine(matches: &ArgMatches) -> Result<(String, Vec<DoctorFinding>), String> {
    let config = matches.get_one::<PathBuf>("envoy").map(|path| envoy::Config::read(path)).transpose()?;
    let call = admin_client::AdminCall { method: "GET", path: "/doctor".to_owned(), body: String::new() };
    let answer = admin_client::ask(matches, &call)?;
    let examination: Examination = serde_json::from_value(answer)
        .map_err(|error| format!("cannot read the answer of the server: {error}"))?;
    let Examination { program, mut findings, domains, delays } = examination;
    findings.extend(config.into_iter().flat_map(|config| config.findings(&domains, delays)));
    findings.sort_by_key(|finding| finding.level);
    Ok((program, findings))
}

fn readable(findings: &[DoctorFinding]) -> String {
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
        (0, 0, 0) => "nothing found".to_owned(),
        (errors, warnings, advice) => {
            format!("{text}errors: {errors}, warnings: {warnings}, advice: {advice}")
        }
    }
}
