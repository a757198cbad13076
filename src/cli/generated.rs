//! `tollgate schema`, `completions` and `man`: what other programs read, made of the catalogs and the flags.

use std::{io, process::ExitCode};

use clap::{Arg, ArgMatches, Command, builder::PossibleValuesParser, value_parser};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use tollgate_tools::{examples, print};

use crate::settings;

const RULES: &str = "rules";
const SETTINGS: &str = "settings";

/// The command `schema`.
pub(super) fn schema_command() -> Command {
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

/// Prints the schema of a kind of file.
pub(super) fn schema(matches: &ArgMatches) -> ExitCode {
    let of = matches.get_one::<String>("of").expect("clap requires it");
    let text = if of == RULES { tollgate_rules::json_schema() } else { settings::json_schema() };
    print(format!("{text:#}\n").as_bytes())
}

/// The command `completions`.
pub(super) fn completions_command() -> Command {
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
pub(super) fn completions(matches: &ArgMatches, program: Command) -> ExitCode {
    let shell = matches.get_one::<Shell>("shell").expect("clap requires it");
    print(&script(*shell, program))
}

fn script(shell: Shell, mut program: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    generate(shell, &mut program, name, &mut script);
    script
}

/// The command `man`, for a program with these other commands.
pub(super) fn man_command(commands: Vec<String>) -> Command {
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
pub(super) fn man(matches: &ArgMatches, program: Command) -> ExitCode {
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
    use clap::ValueEnum;

    use super::*;
    use crate::settings::CATALOG;

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
