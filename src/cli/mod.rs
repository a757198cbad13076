//! The command line. Each command is a thin client of the library.

use std::{env, ffi::OsString, path::Path, process::ExitCode};

mod admin_client;
mod ask;
mod bench;
mod check;
mod command;
mod counters;
mod diff;
mod doctor;
mod explain;
mod generated;
mod request;
mod serve;
mod simulate;
mod target;

use command::{FAILURE, report};

/// The name of the program.
const NAME: &str = "tollgate";
/// The name of the program of envoyproxy/ratelimit.
const REFERENCE: &str = "ratelimit";

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let arguments = arguments(env::args_os());
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        // clap's own exit code is 2, which means "over limit" here.
        Err(error) => {
            let printed = error.print();
            return if printed.is_ok() && !error.use_stderr() {
                ExitCode::SUCCESS
            } else {
                misused(arguments.get(1))
            };
        }
    };
    match matches.subcommand() {
        Some((serve::NAME, serve)) => serve::run(serve),
        Some(("check", check)) => check::run(check),
        Some(("ask", ask)) => report(ask::run(ask)),
        Some(("bench", bench)) => report(bench::run(bench)),
        Some(("explain", explain)) => report(explain::run(explain)),
        Some(("counters", counters)) => report(counters::run(counters)),
        Some(("diff", diff)) => diff::run(diff),
        Some(("doctor", doctor)) => doctor::run(doctor),
        Some(("simulate", simulate)) => report(simulate::run(simulate)),
        Some(("schema", schema)) => generated::schema(schema),
        Some(("completions", completions)) => generated::completions(completions, command()),
        Some(("man", man)) => generated::man(man, command()),
        // clap has refused all other commands.
        Some(_) | None => ExitCode::FAILURE,
    }
}

/// The exit code for arguments that the command with this name does not take.
fn misused(command: Option<&OsString>) -> ExitCode {
    if command.is_some_and(|name| name == diff::NAME || name == doctor::NAME) {
        ExitCode::from(FAILURE)
    } else {
        ExitCode::FAILURE
    }
}

/// The arguments of this program. Under the name of envoyproxy/ratelimit it starts in its place.
fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.into_iter().collect();
    let program = given.first().and_then(|path| Path::new(path).file_name());
    if program.is_some_and(|name| name == REFERENCE) {
        let flag = format!("--{}={}", serve::COMPAT, serve::ENVOY_RATELIMIT);
        given.splice(1..1, [serve::NAME.into(), flag.into()]);
    }
    if given.get(1).is_some_and(|command| command == serve::NAME) {
        given = serve::set_aside_unknown(given);
    }
    given
}

fn command() -> clap::Command {
    let program = clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Rate limit service for Envoy and other gRPC clients")
        .after_help(command::examples(&[
            "tollgate serve --rules rules.yaml",
            "tollgate ask edge remote_address=203.0.113.7",
        ]))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(check::command())
        .subcommand(ask::command())
        .subcommand(bench::command())
        .subcommand(explain::command())
        .subcommand(counters::command())
        .subcommand(diff::command())
        .subcommand(doctor::command())
        .subcommand(simulate::command())
        .subcommand(generated::schema_command())
        .subcommand(generated::completions_command());
    let commands = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    program.subcommand(generated::man_command(commands))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of each example in the help of a command, as a shell reads them up to a pipe or a redirection.
    pub(super) fn examples_of(command: &clap::Command) -> Vec<Vec<String>> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace("\\\n", "");
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        lines.map(words).collect()
    }

    /// Single quotes keep what is between them in one word.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for character in line.trim().chars() {
            match character {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                '|' | '>' if !is_quoted => {
                    words.pop();
                    break;
                }
                other => words.last_mut().unwrap().push(other),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let program = command();
        for described in program.get_subcommands().chain([&program]) {
            let examples = examples_of(described);
            assert!(!examples.is_empty(), "{} has no example", described.get_name());
            for words in examples {
                let is_own = described.get_name() == NAME || words[1] == described.get_name();
                assert!(is_own && words[0] == NAME, "{words:?}");
                if let Err(error) = command().try_get_matches_from(&words) {
                    panic!("{words:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn program_called_ratelimit_serves_with_its_variables() {
        let of = |given: &[&str]| arguments(given.iter().map(OsString::from));
        assert_eq!(of(&["/bin/ratelimit"]), ["/bin/ratelimit", "serve", "--compat=envoy-ratelimit"]);
        assert_eq!(of(&["/tollgate", "check", "x"]), ["/tollgate", "check", "x"]);
        assert!(command().try_get_matches_from(of(&["ratelimit", "--log-level", "info"])).is_ok());
    }

    #[test]
    fn unknown_arguments_are_set_aside_in_the_place_of_ratelimit_only() {
        let of = |given: &[&str]| arguments(given.iter().map(OsString::from));
        let unknown = "--quotaRateLimitServiceAddr=0.0.0.0:18002";
        let expected = [
            "ratelimit",
            "serve",
            "--compat=envoy-ratelimit",
            "--log-level",
            "info",
            "--",
            unknown,
            "-v",
            "2",
        ];
        let given = of(&["ratelimit", unknown, "--log-level", "info", "-v", "2"]);
        assert_eq!(given, expected);
        assert!(command().try_get_matches_from(given).is_ok());
        let given = of(&["tollgate", "serve", "--compat", "envoy-ratelimit", unknown]);
        assert_eq!(given, ["tollgate", "serve", "--compat", "envoy-ratelimit", "--", unknown]);
        for given in [&["tollgate", "serve", unknown][..], &["ratelimit", "--log-level"]] {
            assert!(command().try_get_matches_from(of(given)).is_err(), "{given:?}");
        }
        let help = command().try_get_matches_from(of(&["ratelimit", "--help"])).unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
    }
}
