//! What the commands have in common: their runtime, the end of their help, what they print, and their exit codes.

use std::{
    io::{self, IsTerminal as _, Write as _, stderr},
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, ArgAction, ValueHint, value_parser};
use serde_json::Value;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};
use tollgate_counter::printable;

/// The exit code for a command line or settings that are wrong, as in `sysexits.h`.
pub const USAGE: u8 = 64;
/// The exit code for a request over its limit.
pub(super) const OVER_LIMIT: u8 = 2;
/// The exit code for a request to which no rule applies.
pub(super) const NO_RULE: u8 = 3;

/// Why a command has no result.
#[derive(Debug)]
pub(super) enum CommandError {
    /// The arguments of the command are wrong together.
    Usage(String),
    /// The command could not do what its arguments say.
    Failed(String),
}

impl From<String> for CommandError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Runs a command that waits for a server.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(work)
}

/// A flag without a value.
pub(super) fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// A flag with a value.
pub(super) fn value(name: &'static str, value_name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value_name).help(help)
}

/// A flag with the path of a file.
pub(super) fn file(name: &'static str, help: &'static str) -> Arg {
    path(name, "FILE", help).long(name).value_hint(ValueHint::FilePath)
}

/// An argument that is the path of a file or of a directory.
pub(super) fn path(name: &'static str, value_name: &'static str, help: &'static str) -> Arg {
    let path = Arg::new(name).value_name(value_name).value_parser(value_parser!(PathBuf));
    path.value_hint(ValueHint::AnyPath).help(help)
}

/// Parses one of the names of an enum.
macro_rules! one_of {
    ($named:ty) => {
        clap::builder::TypedValueParser::map(
            clap::builder::PossibleValuesParser::new(<$named>::NAMED.map(|(name, _)| name)),
            |given| {
                let found = <$named>::NAMED.iter().find(|(name, _)| *name == given);
                found.expect("clap has refused all other names").1
            },
        )
    };
}

pub(super) use one_of;

/// The end of a command's help: command lines that work as they are, beside the files that they name.
pub fn examples(command_lines: &[&str]) -> String {
    let lines = command_lines.iter().map(|line| format!("\n  {line}"));
    format!("Examples:{}", lines.collect::<String>())
}

/// The signals that end a command.
pub(super) struct Interrupts([Signal; 2]);

impl Interrupts {
    pub(super) fn new() -> Result<Self, String> {
        let received = |kind| signal(kind).map_err(|error| error.to_string());
        Ok(Self([received(SignalKind::interrupt())?, received(SignalKind::terminate())?]))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// Waits for `work`, and meanwhile shows `line` on a terminal, at this interval; `None` if a signal comes first.
pub(super) async fn with_progress<T>(
    work: impl Future<Output = T>,
    interrupts: &mut Interrupts,
    every: Duration,
    line: impl Fn() -> String,
) -> Option<T> {
    let shows_progress = stderr().is_terminal();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut work = pin!(work);
    let ended = loop {
        tokio::select! {
            ended = &mut work => break Some(ended),
            () = interrupts.next() => break None,
            _ = ticks.tick(), if shows_progress => show_progress(&line()),
        }
    };
    if shows_progress {
        show_progress("");
    }
    ended
}

/// Shows how far a command is, in place of what was shown before on this line of the terminal.
pub(super) fn show_progress(line: &str) {
    // Return to the beginning of the line and clear it.
    eprint!("\r\x1b[2K{line}");
}

/// Prints what a command has found, or why it has found nothing. Returns `failure` if it could not do what it was asked.
pub(super) fn report(found: Result<(String, ExitCode), CommandError>, failure: ExitCode) -> ExitCode {
    match found {
        Ok((text, code)) => {
            let printed = print((text + "\n").as_bytes());
            if printed == ExitCode::SUCCESS { code } else { failure }
        }
        Err(CommandError::Usage(why)) => {
            eprintln!("{why}");
            ExitCode::from(USAGE)
        }
        Err(CommandError::Failed(why)) => {
            eprintln!("{why}");
            failure
        }
    }
}

/// Writes to the standard output, and returns whether that worked. A reader that has closed it is an error and no panic.
pub fn print(bytes: &[u8]) -> ExitCode {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The text of a value of an answer, for a terminal; empty if it has none.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map(printable::escaped).unwrap_or_default()
}

/// The items of a value of an answer; none if it is no list.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// JSON with hidden characters in the escapes of JSON, for a terminal.
pub(super) fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if printable::is_hidden(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text += &format!("\\u{unit:04x}");
            }
        } else {
            text.push(character);
        }
    }
    text
}
