//! The tools of the command line: commands that do not start the service. `tollgate` has them beside it.

use std::process::ExitCode;

use clap::{ArgMatches, Command};

mod admin_client;
mod ask;
mod bench;
mod check;
mod columns;
mod command;
mod counters;
mod diff;
mod doctor;
mod explain;
mod limits;
mod request;
mod simulate;
mod target;

#[cfg(any(test, feature = "testing"))]
pub use command::examples_of;
pub use command::{USAGE, examples, print};

use command::report;

/// The tools, in the order of the help.
pub fn commands() -> [Command; 9] {
    [
        check::command(),
        ask::command(),
        bench::command(),
        explain::command(),
        counters::command(),
        limits::command(),
        diff::command(),
        doctor::command(),
        simulate::command(),
    ]
}

/// Runs the tool with this name, and fails if there is none.
pub fn run(tool: &str, matches: &ArgMatches) -> ExitCode {
    match tool {
        "check" => check::run(matches),
        "ask" => report(ask::run(matches)),
        "bench" => report(bench::run(matches)),
        "explain" => report(explain::run(matches)),
        "counters" => report(counters::run(matches)),
        "limits" => report(limits::run(matches)),
        diff::NAME => diff::run(matches),
        doctor::NAME => doctor::run(matches),
        "simulate" => report(simulate::run(matches)),
        _unknown => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_examples_that_parse() {
        let program = || Command::new("tollgate").subcommands(commands());
        for tool in commands() {
            let examples = examples_of(&tool);
            assert!(!examples.is_empty(), "{} has no example", tool.get_name());
            for words in examples {
                assert!(words[0] == "tollgate" && words[1] == tool.get_name(), "{words:?}");
                if let Err(error) = program().try_get_matches_from(&words) {
                    panic!("{words:?}: {error}");
                }
            }
        }
    }
}
