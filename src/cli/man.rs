//! `tollgate man`: the manual pages.

use std::{io, process::ExitCode};

use clap::{Arg, ArgMatches, Command, builder::PossibleValuesParser};
use clap_mangen::Man;

use crate::cli::{help::examples, output::print};

/// The command, for a program with these other commands.
pub(super) fn command(commands: Vec<String>) -> Command {
    let of = Arg::new("command")
        .value_name("COMMAND")
        .value_parser(PossibleValuesParser::new(commands))
        .help("Command to describe; without it, the page lists the commands");
    Command::new("man")
        .about("Print a manual page in roff, as in `tollgate man serve | man -l -`")
        .after_help(examples(&["tollgate man serve | man -l -"]))
        .arg(of)
}

/// Prints a page of `program`, the whole command line.
pub(super) fn run(matches: &ArgMatches, program: Command) -> ExitCode {
    let name = matches.get_one::<String>("command").map(String::as_str);
    match page(name, program) {
        Ok(page) => print(&page),
        Err(error) => {
            eprintln!("cannot write the page: {error}");
            ExitCode::FAILURE
        }
    }
}

fn page(name: Option<&str>, program: Command) -> io::Result<Vec<u8>> {
    let version = program.get_version().unwrap_or_default().to_owned();
    let mut program = program.disable_help_subcommand(true);
    // Gives each command its full name, as in `tollgate-serve`.
    program.build();
    let described = name.and_then(|name| program.find_subcommand(name)).unwrap_or(&program);
    let mut page = Vec::new();
    Man::new(described.clone().version(version)).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::CATALOG;

    fn text(name: Option<&str>) -> String {
        String::from_utf8(page(name, crate::cli::command()).unwrap()).unwrap().replace("\\-", "-")
    }

    #[test]
    fn page_of_the_program_names_every_command() {
        let page = text(None);
        for command in crate::cli::command().get_subcommands() {
            assert!(page.contains(&format!("tollgate-{}(1)", command.get_name())), "{}", command.get_name());
        }
    }

    #[test]
    fn page_of_serve_describes_every_setting() {
        let page = text(Some("serve"));
        assert!(page.contains(".TH tollgate-serve 1"));
        for setting in CATALOG {
            assert!(page.contains(&format!("--{}", setting.flag())), "{}", setting.name);
        }
    }
}
