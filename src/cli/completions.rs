//! `tollgate completions`: the completion script of a shell.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

use crate::cli::{help::examples, output::print};

pub(super) fn command() -> Command {
    let shell = Arg::new("shell")
        .value_name("SHELL")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("Shell that reads the script");
    Command::new("completions")
        .about("Print the completion script of a shell")
        .after_help(examples(&["tollgate completions bash > /etc/bash_completion.d/tollgate"]))
        .arg(shell)
}

/// Prints the script for `program`, the whole command line.
pub(super) fn run(matches: &ArgMatches, program: Command) -> ExitCode {
    let shell = matches.get_one::<Shell>("shell").expect("clap requires it");
    print(&script(*shell, program))
}

fn script(shell: Shell, mut program: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    generate(shell, &mut program, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn script_of_every_shell_has_every_command_and_setting() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell, crate::cli::command())).unwrap();
            let program = crate::cli::command();
            let commands = program.get_subcommands().map(Command::get_name);
            let flags = crate::settings::CATALOG.iter().map(crate::settings::Setting::flag);
            for word in commands.map(str::to_owned).chain(flags) {
                assert!(script.contains(&word), "{shell}: {word}");
            }
        }
    }
}
