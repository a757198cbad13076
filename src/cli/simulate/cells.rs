//! What the text and the page of a report both show: rows of their tables, and notes.

use crate::cli::simulate::{
    event::Skipped,
    report::{Report, RuleDifference, RuleReport},
};

/// The header of [`rule`].
pub(super) const RULE: [&str; 9] =
    ["rule", "asked", "passed", "refused", "share", "users", "users refused", "use", "wait"];
/// The header of [`difference`].
pub(super) const DIFFERENCE: [&str; 7] =
    ["rule", "refused", "by other", "only by first", "only by other", "users only first", "users only other"];

/// The use of a rule.
pub(super) fn rule(rule: &RuleReport) -> Vec<String> {
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
pub(super) fn difference(rule: &RuleDifference) -> Vec<String> {
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
pub(super) fn notes(report: &Report) -> Vec<String> {
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
