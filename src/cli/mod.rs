//! The command line: each command is a thin client of the library.

use std::process::ExitCode;

mod ask;
mod check;
mod serve;

/// Exit codes that mean more than success and failure.
const OVER_LIMIT: u8 = 2;

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let matches = command().get_matches();
    match matches.subcommand() {
        Some(("serve", serve)) => serve::run(serve),
        Some(("check", check)) => check::run(check),
        Some(("ask", ask)) => ask::run(ask),
        // clap has refused every other command.
        Some(_) | None => ExitCode::FAILURE,
    }
}

fn command() -> clap::Command {
    clap::Command::new("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Decides whether requests may pass: a rate limit service for Envoy and for everything that speaks gRPC")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(check::command())
        .subcommand(ask::command())
}
