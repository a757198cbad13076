//! What the help texts of commands have in common.

/// The end of a command's help: command lines that work as they are, next to the files that they name.
pub(super) fn examples(command_lines: &[&str]) -> String {
    let lines = command_lines.iter().map(|line| format!("\n  {line}"));
    format!("Examples:{}", lines.collect::<String>())
}
