//! `tollgate diff`: which limits change for which descriptors between two sets of rule files.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Command};
use serde_json::json;

use crate::command::{CommandError, examples, flag, path};

mod compare;
mod difference;
mod keys;

use difference::Difference;

/// The exit code if the rules differ.
const DIFFERENT: u8 = 1;

pub(super) fn command() -> Command {
    Command::new("diff")
        .about(
            "Show which limits change for which descriptors between two sets of rules; exits 0 if none does, 1 if any does, 2 on errors",
        )
        .after_help(examples(&["tollgate diff rules.yaml new.yaml"]))
        .arg(path("old", "OLD", "Rule file, or directory of rule files, that is active").required(true))
        .arg(path("new", "NEW", "Rule file, or directory of rule files, that replaces it").required(true))
        .arg(flag("json", "Print the differences as JSON"))
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let load = |name: &str| tollgate_rules::load(matches.get_one::<PathBuf>(name).expect("clap requires it"));
    let (old, new) = match (load("old"), load("new")) {
        (Ok(old), Ok(new)) => (old, new),
        (old, new) => {
            let problems = [old.err(), new.err()].into_iter().flatten();
            let problems: Vec<_> = problems.map(|problems| problems.to_string()).collect();
            return Err(CommandError::Failed(problems.join("\n")));
        }
    };
    let old_hash = old.hash().to_owned();
    let new_hash = new.hash().to_owned();
    let differences = compare::differences(old, new);
    let text = if matches.get_flag("json") {
        json!({
            "equal": differences.is_empty(),
            "old": old_hash,
            "new": new_hash,
            "differences": differences,
        })
        .to_string()
    } else {
        readable(&differences, old_hash == new_hash)
    };
    let code = if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) };
    Ok((text, code))
}

fn readable(differences: &[Difference], is_same_content: bool) -> String {
    match differences {
        [] if is_same_content => "equal: the same content".to_owned(),
        [] => "equal: no limit changes for any descriptor".to_owned(),
        _ => {
            let parts: Vec<_> = differences.iter().map(ToString::to_string).collect();
            let number = parts.len();
            let s = if parts.len() == 1 { "" } else { "s" };
            format!("{}\n\n{number} difference{s}", parts.join("\n\n"))
        }
    }
}
