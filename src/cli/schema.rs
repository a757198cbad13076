//! `tollgate schema`: the JSON Schemas of the files that people write.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use tollgate_limiter::rules;

use crate::{
    cli::{help::examples, output::print},
    settings,
};

const RULES: &str = "rules";
const SETTINGS: &str = "settings";

pub(super) fn command() -> Command {
    let of = Arg::new("of")
        .value_name("FILE")
        .required(true)
        .value_parser([RULES, SETTINGS])
        .help("Kind of file: rule files or settings files");
    Command::new("schema")
        .about("Print the JSON Schema of rule files or of settings files, for editors")
        .after_help(examples(&["tollgate schema rules > rules.schema.json"]))
        .arg(of)
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let of = matches.get_one::<String>("of").expect("clap requires it");
    let schema = if of == RULES { rules::json_schema() } else { settings::json_schema() };
    print(format!("{schema:#}\n").as_bytes())
}
