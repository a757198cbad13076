//! `tollgate check`: reports every problem of rule files without using them.

use std::{path::PathBuf, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use tollgate_limiter::rules::{self, Problems, Rules};

use crate::cli::{check::report::RulesReport, help::examples, output::print_line};

mod quotas;
mod report;

pub(super) use quotas::unserved;

pub(super) fn command() -> Command {
    let path = Arg::new("path")
        .value_name("PATH")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::AnyPath)
        .help("Rule file, or directory of rule files");
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    Command::new("check")
        .about("Report every problem of a rule file or directory; exits 1 if there is any")
        .after_help(examples(&["tollgate check rules.yaml", "tollgate check rules/ --json > problems.json"]))
        .arg(path)
        .arg(flag("rlqs").help("Warn of limits that the rate limit quota service of Envoy does not divide"))
        .arg(flag("json").help("Print the problems and warnings as JSON"))
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let path = matches.get_one::<PathBuf>("path").expect("clap requires it");
    let mut checked = rules::load(path);
    if let (Ok(rules), true) = (&mut checked, matches.get_flag("rlqs")) {
        quotas::warn(rules);
    }
    let text = if matches.get_flag("json") {
        RulesReport::new(&checked).json().to_string()
    } else {
        readable(&checked)
    };
    print_line(text, if checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
