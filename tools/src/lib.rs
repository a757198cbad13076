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
mod testing;

pub use command::{USAGE, examples, print};
#[cfg(any(test, feature = "testing"))]
pub use testing::examples_of;

use command::report;

/// The exit code of tools that find differences or faults, if they fail: 1 means that there are some.
const FAILURE: u8 = 2;

/// The tools, in the order of the help.
pub fn commands() -> [Command; 9] {
    [
        check::command(),
        ask::command(),
        bench::flags::command(),
        explain::command(),
        counters::command(),
        limits::command(),
        diff::command(),
        doctor::command(),
        simulate::flags::command(),
    ]
}

/// Runs the tool with this name, and fails if there is none.
pub fn run(tool: &str, matches: &ArgMatches) -> ExitCode {
    let (found, failure) = match tool {
        "check" => (check::run(matches), ExitCode::FAILURE),
        "ask" => (ask::run(matches), ExitCode::FAILURE),
        "bench" => (bench::run(matches), ExitCode::FAILURE),
        "explain" => (explain::run(matches), ExitCode::FAILURE),
        "counters" => (counters::run(matches), ExitCode::FAILURE),
        "limits" => (limits::run(matches), ExitCode::FAILURE),
        "diff" => (diff::run(matches), ExitCode::from(FAILURE)),
        "doctor" => (doctor::run(matches), ExitCode::from(FAILURE)),
        "simulate" => (simulate::run(matches), ExitCode::FAILURE),
        _unknown => return ExitCode::FAILURE,
    };
    report(found, failure)
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
