//! The command line. Each command is a thin client of the library.

use std::process::ExitCode;

mod admin_client;
mod ask;
mod bench;
mod check;
mod counters;
mod explain;
mod request;
mod serve;
mod target;

/// The exit code for a request over its limit.
const OVER_LIMIT: u8 = 2;

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        // clap's own exit code is 2, which means "over limit" here.
        Err(error) => {
            let printed = error.print();
            return if printed.is_ok() && !error.use_stderr() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
    };
    match matches.subcommand() {
        Some(("serve", serve)) => serve::run(serve),
        Some(("check", check)) => check::run(check),
        Some(("ask", ask)) => ask::run(ask),
        Some(("bench", bench)) => bench::run(bench),
        Some(("explain", explain)) => explain::run(explain),
        Some(("counters", counters)) => counters::run(counters),
        // clap has refused all other commands.
        Some(_) | None => ExitCode::FAILURE,
    }
}

fn command() -> clap::Command {
    clap::Command::new("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Rate limit service for Envoy and other gRPC clients")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(check::command())
        .subcommand(ask::command())
        .subcommand(bench::command())
        .subcommand(explain::command())
        .subcommand(counters::command())
}
