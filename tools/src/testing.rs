//! What tests read of the help of commands.

use clap::Command;

/// The words of each example in the help of a command, as a shell reads them up to a pipe or a redirection.
pub fn examples_of(command: &Command) -> Vec<Vec<String>> {
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
            other => words.last_mut().expect("there is always a word").push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
