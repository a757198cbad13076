//! The command line: the service, what is generated from its settings and flags, and the tools.

use std::{env, ffi::OsString, path::Path, process::ExitCode};

mod generated;
mod serve;

/// The name of the program.
const NAME: &str = "tollgate";
/// The name of the program of envoyproxy/ratelimit.
const REFERENCE: &str = "ratelimit";

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let arguments = arguments(env::args_os());
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        // clap's own exit code is 2, which means "over limit" here.
        Err(error) => {
            let printed = error.print();
            return match (printed, error.use_stderr()) {
                (Ok(()), false) => ExitCode::SUCCESS,
                (Err(_), false) => ExitCode::FAILURE,
                (_, true) => ExitCode::from(tollgate_tools::USAGE),
            };
        }
    };
    match matches.subcommand() {
        Some((serve::NAME, serve)) => serve::run(serve),
        Some(("schema", schema)) => generated::schema(schema),
        Some(("completions", completions)) => generated::completions(completions, command()),
        Some(("man", man)) => generated::man(man, command()),
        Some((tool, matches)) => tollgate_tools::run(tool, matches),
        // clap has required a command.
        None => ExitCode::FAILURE,
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
        .after_help(tollgate_tools::examples(&[
            "tollgate serve --rules rules.yaml",
            "tollgate ask edge remote_address=203.0.113.7",
        ]))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommands(tollgate_tools::commands())
        .subcommand(generated::schema_command())
        .subcommand(generated::completions_command());
    let commands = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    program.subcommand(generated::man_command(commands))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::settings::value_type::Setting;

    #[test]
    fn every_command_has_examples_that_parse() {
        let program = command();
        for described in program.get_subcommands().chain([&program]) {
            let examples = tollgate_tools::examples_of(described);
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
    fn tools_ask_the_listeners_of_default_settings() {
        for (tool, setting) in [
            ("ask", "grpc.listen"),
            ("bench", "grpc.listen"),
            ("counters", "admin.listen"),
            ("doctor", "admin.listen"),
            ("explain", "admin.listen"),
            ("limits", "http.listen"),
        ] {
            let program = command();
            let tool = program.find_subcommand(tool).unwrap();
            let to = tool.get_arguments().find(|flag| flag.get_id() == "to").unwrap();
            let to: SocketAddr = to.get_default_values()[0].to_str().unwrap().parse().unwrap();
            let listen: SocketAddr = Setting::named(setting).unwrap().default.parse().unwrap();
            assert!(to.ip().is_loopback());
            assert_eq!(to.port(), listen.port(), "{setting}");
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
