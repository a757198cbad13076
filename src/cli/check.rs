//! `tollgate check`: reports every problem of rule files without using them.

use std::{path::PathBuf, process::ExitCode};

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};

use crate::rules;

pub(super) fn command() -> Command {
    let path = Arg::new("path")
        .value_name("PATH")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::AnyPath)
        .help("Rule file, or directory of rule files");
    Command::new("check")
        .about("Report every problem of a rule file or directory; exits 1 if there is any")
        .arg(path)
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let path = matches.get_one::<PathBuf>("path").expect("clap requires it");
    match rules::load(path) {
        Ok(rules) => {
            for warning in rules.warnings() {
                println!("{warning} (a warning)");
            }
            let domains = counted(rules.domains().count(), "domain");
            println!("good: {} in {domains}, content {}", counted(rules.len(), "rule"), rules.hash());
            ExitCode::SUCCESS
        }
        Err(problems) => {
            println!("{problems}");
            ExitCode::FAILURE
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
