//! The report as text.

use crate::simulate::{
    event::Skipped,
    report::{RuleDifference, RulesComparison, SimulationReport, UserReport},
    stats::RuleReport,
    suggest::Goal,
};

/// The length of the timeline in characters.
pub(super) const TIMELINE_WIDTH: usize = 60;
/// From no requests to the most of any bin.
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The header of [`rule`].
const RULE: [&str; 9] =
    ["rule", "asked", "passed", "refused", "share", "users", "users refused", "use", "wait"];
/// The header of [`difference`].
const DIFFERENCE: [&str; 7] =
    ["rule", "refused", "by other", "only by first", "only by other", "users only first", "users only other"];

/// The report, by paragraphs.
pub(super) fn text(report: &SimulationReport, goal: Option<Goal>) -> String {
    let mut parts = vec![summary(report)];
    parts.push(columns(&RULE, report.by_rule.iter().map(rule).collect()));
    if report.timeline.bins.len() > 1 {
        parts.push(timeline(report));
    }
    parts.extend(users("refused most", &report.refused_most));
    if let Some(comparison) = &report.comparison {
        parts.extend(compared(report, comparison));
    }
    if let Some(goal) = goal {
        parts.push(match &*report.suggestions {
            [] => "no suggestion: no rule with a limit was asked".to_owned(),
            some => {
                some.iter().map(|suggestion| suggestion.yaml(goal)).collect::<String>().trim_end().to_owned()
            }
        });
    }
    parts.join("\n\n")
}

fn summary(report: &SimulationReport) -> String {
    let mut lines = Vec::new();
    if !report.complete {
        lines.push("interrupted: these are the results of a part of the traffic".to_owned());
    }
    let between = report.from.as_ref().zip(report.to.as_ref());
    let between = between.map(|(from, to)| format!(" from {from} to {to}")).unwrap_or_default();
    lines.push(format!("{}: {} requests{between}", report.input, report.requests));
    lines.push(format!(
        "passed {}, refused {} ({})",
        report.passed,
        report.refused,
        percent(report.share_refused)
    ));
    lines.push(format!(
        "read in {:.2} s, decided in {:.2} s ({:.0} decisions a second)",
        report.speed.reading_seconds, report.speed.deciding_seconds, report.speed.decisions_per_second
    ));
    lines.extend(notes(report));
    lines.join("\n")
}

/// Left-aligned first column, right-aligned others.
pub(super) fn columns(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut all = vec![header.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    all.extend(rows);
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(index, (cell, width))| match index {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A line for all requests and one for those refused, each of them relative to its own maximum.
fn timeline(report: &SimulationReport) -> String {
    let per_character = report.timeline.bins.len().div_ceil(TIMELINE_WIDTH).max(1);
    let chunks = || report.timeline.bins.chunks(per_character);
    let all: Vec<u64> = chunks().map(|bins| bins.iter().map(|bin| bin.passed + bin.refused).sum()).collect();
    let refused: Vec<u64> = chunks().map(|bins| bins.iter().map(|bin| bin.refused).sum()).collect();
    let line = |name: &str, numbers: &[u64]| {
        let max = numbers.iter().copied().max().unwrap_or_default();
        format!("{name:<9}{}  up to {max}", levels(numbers, max))
    };
    let seconds = report.timeline.bin_seconds * per_character as u64;
    format!("timeline, {seconds} s each\n{}\n{}", line("requests", &all), line("refused", &refused))
}

/// A character for each number, none of which is above `max`.
pub(super) fn levels(numbers: &[u64], max: u64) -> String {
    let level = |number: &u64| {
        let eighths = (u128::from(*number) * 8).div_ceil(u128::from(max.max(1)));
        // At most 8.
        LEVELS[eighths as usize]
    };
    numbers.iter().map(level).collect()
}

fn users(title: &str, users: &[UserReport]) -> Option<String> {
    let row = |user: &UserReport| {
        let about = if user.error > 0 { format!(" (at most {} less)", user.error) } else { String::new() };
        format!("  {:>9}  {}{about}", user.refused, user.descriptor)
    };
    let rows: Vec<_> = users.iter().map(row).collect();
    (!rows.is_empty()).then(|| format!("{title}\n{}", rows.join("\n")))
}

fn compared(report: &SimulationReport, other: &RulesComparison) -> Vec<String> {
    let line = |name: &str, passed, refused, share| {
        vec![name.to_owned(), format!("{passed}"), format!("{refused}"), percent(share)]
    };
    let totals = columns(
        &["compared", "passed", "refused", "share"],
        vec![
            line(&report.rules, report.passed, report.refused, report.share_refused),
            line(&other.rules, other.passed, other.refused, other.share_refused),
        ],
    );
    let rows = other.by_rule.iter().map(difference).collect();
    let mut parts = vec![totals, columns(&DIFFERENCE, rows)];
    parts.extend(users(&format!("refused only by {}", report.rules), &other.users_refused_only_by_first));
    parts.extend(users(&format!("refused only by {}", other.rules), &other.users_refused_only_by_other));
    parts
}

/// The use of a rule.
fn rule(rule: &RuleReport) -> Vec<String> {
    vec![
        rule.rule.clone(),
        rule.asked.to_string(),
        rule.passed.to_string(),
        rule.refused.to_string(),
        percent(rule.share_refused),
        rule.users.to_string(),
        rule.users_refused.to_string(),
        rule.highest_use.map_or("-".to_owned(), |highest| format!("{:.0} %", highest * 100.0)),
        if rule.longest_wait_ms == 0 { "-".to_owned() } else { format!("{} ms", rule.longest_wait_ms) },
    ]
}

/// A rule on both sides of a comparison.
fn difference(rule: &RuleDifference) -> Vec<String> {
    let numbers = [
        rule.refused_by_first,
        rule.refused_by_other,
        rule.refused_only_by_first,
        rule.refused_only_by_other,
        rule.users_refused_only_by_first,
        rule.users_refused_only_by_other,
    ];
    std::iter::once(rule.rule.clone()).chain(numbers.map(|number| number.to_string())).collect()
}

/// What the numbers leave out, and what would be refused otherwise.
fn notes(report: &SimulationReport) -> Vec<String> {
    let skipped = &report.skipped;
    let mut lines = unread(skipped);
    for (number, what) in [
        (skipped.unrecorded, "requests that the service left out of the recording or the log"),
        (report.out_of_order, "requests earlier than one before them, decided at its time"),
        (report.descriptors_without_rule, "descriptors that match no rule, and pass"),
        (report.users_left_out, "requests of users beyond --users-max, not in the numbers of users"),
        (skipped.dropped_retries, "retries dropped, because too many were pending"),
    ] {
        if number > 0 {
            lines.push(format!("{what}: {number}"));
        }
    }
    for rule in &report.by_rule {
        for (number, how) in [
            (rule.refused_in_shadow, "without its shadow mode"),
            (rule.refused_by_candidate, "by its candidate"),
        ] {
            if number > 0 {
                lines.push(format!("{}: {number} would be refused {how}", rule.rule));
            }
        }
    }
    lines
}

/// The error for an input without a single descriptor that matches a rule, with the reasons. `unmatched` are the
/// descriptors that match none.
pub(super) fn nothing_decided(skipped: &Skipped, unmatched: u64) -> String {
    let why = match unmatched {
        0 => "nothing was decided: the input has no request with a descriptor".to_owned(),
        _ => format!("nothing was decided: no rule matches any of the {unmatched} descriptors"),
    };
    std::iter::once(why).chain(unread(skipped)).collect::<Vec<_>>().join("\n")
}

/// The lines of the input that gave no request.
fn unread(skipped: &Skipped) -> Vec<String> {
    let mut lines = Vec::new();
    if skipped.bad_lines > 0 {
        lines.push(format!("bad lines, left out: {}", skipped.bad_lines));
        lines.extend(skipped.first_bad_lines.iter().map(|bad| format!("  line {}: {}", bad.line, bad.why)));
    }
    if skipped.without_descriptor > 0 {
        let number = skipped.without_descriptor;
        lines.push(format!("lines without a descriptor, because a field is missing or empty: {number}"));
    }
    lines
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
