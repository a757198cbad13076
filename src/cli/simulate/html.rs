//! The report as one page without scripts and without other files.

use crate::cli::simulate::{
    cells::{self, percent},
    report::{Report, TimelineReport, UserReport},
    stats::Bin,
    suggest::Goal,
};

const STYLE: &str = include_str!("page.css");
/// The size of a plot, in units of its own.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 220.0;

/// The page.
pub(super) fn page(report: &Report, goal: Option<Goal>) -> String {
    let mut body = String::from("<main>\n<h1>Simulation</h1>\n");
    if !report.complete {
        body.push_str("<p class=\"note\">Interrupted: these are the results of a part of the traffic.</p>\n");
    }
    let between = report.from.as_ref().zip(report.to.as_ref());
    let between = between.map(|(from, to)| format!(" from {from} to {to}")).unwrap_or_default();
    body.push_str(&format!(
        "<p>{} requests of {}{between}, decided by {}: {} passed, <b>{} refused ({})</b>.</p>\n",
        report.requests,
        isolated(&report.input),
        isolated(&report.rules),
        report.passed,
        report.refused,
        percent(report.share_refused)
    ));
    for note in cells::notes(report) {
        body.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(&note)));
    }
    body.push_str(&timeline("Requests over time", &report.timeline));
    body.push_str("<h2>Rules</h2>\n");
    body.push_str(&table("Rules", &cells::RULE, report.by_rule.iter().map(cells::rule)));
    if !report.refused_most.is_empty() {
        body.push_str("<h2>Refused most</h2>\n");
        body.push_str(&users("Refused most", &report.refused_most));
    }
    if let Some(other) = &report.comparison {
        body.push_str(&format!(
            "<h2>Compared with {}</h2>\n<p>{} passed, {} refused ({}).</p>\n",
            isolated(&other.rules),
            other.passed,
            other.refused,
            percent(other.share_refused)
        ));
        body.push_str(&timeline("Requests over time, by the other rules", &other.timeline));
        body.push_str(&table("Comparison", &cells::DIFFERENCE, other.by_rule.iter().map(cells::difference)));
        for (by, list) in [
            (&report.rules, &other.users_refused_only_by_first),
            (&other.rules, &other.users_refused_only_by_other),
        ] {
            if !list.is_empty() {
                let table = users(&format!("Refused only by {by}"), list);
                body.push_str(&format!("<h3>Refused only by {}</h3>\n{table}", isolated(by)));
            }
        }
    }
    if let Some(goal) = goal.filter(|_| !report.suggestions.is_empty()) {
        let yaml: String = report.suggestions.iter().map(|suggestion| suggestion.yaml(goal)).collect();
        let yaml = scrolled("Suggested limits", &format!("<pre>{}</pre>\n", escaped(&yaml)));
        body.push_str(&format!("<h2>Suggested limits</h2>\n{yaml}"));
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Simulation</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn users(name: &str, users: &[UserReport]) -> String {
    let row = |user: &UserReport| vec![user.descriptor.clone(), user.refused.to_string()];
    table(name, &["descriptor", "refused"], users.iter().map(row))
}

fn table(name: &str, header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |cells: &mut dyn Iterator<Item = &str>, name: &str| {
        cells.map(|cell| format!("<{name}>{}</{name}>", escaped(cell))).collect::<String>()
    };
    let mut text = format!("<table>\n<tr>{}</tr>\n", cells(&mut header.iter().copied(), "th"));
    for row in rows {
        text.push_str(&format!("<tr>{}</tr>\n", cells(&mut row.iter().map(String::as_str), "td")));
    }
    scrolled(name, &(text + "</table>\n"))
}

/// Content that may be wider than the window. It can be focused, so that the keyboard scrolls it too.
fn scrolled(name: &str, content: &str) -> String {
    let name = escaped(name);
    format!("<div class=\"scroll\" role=\"region\" aria-label=\"{name}\" tabindex=\"0\">\n{content}</div>\n")
}

/// Stacked bars of passed and refused requests.
fn timeline(title: &str, timeline: &TimelineReport) -> String {
    let max = timeline.bins.iter().map(|bin| bin.passed + bin.refused).max().unwrap_or_default();
    if max == 0 {
        return String::new();
    }
    let width = WIDTH / timeline.bins.len() as f64;
    let height = |number: u64| number as f64 / max as f64 * HEIGHT;
    let bar = |class: &str, index: usize, top: f64, height: f64| {
        let left = index as f64 * width;
        format!(
            "<rect class=\"{class}\" x=\"{left:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
        )
    };
    let mut bars = String::new();
    for (index, Bin { passed, refused }) in timeline.bins.iter().enumerate() {
        let (low, high) = (height(*passed), height(*refused));
        if *passed > 0 {
            bars.push_str(&bar("passed", index, HEIGHT - low, low));
        }
        if *refused > 0 {
            bars.push_str(&bar("refused", index, HEIGHT - low - high, high));
        }
    }
    let seconds = timeline.bin_seconds;
    format!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">\
         <line class=\"axis\" x1=\"0\" y1=\"{HEIGHT}\" x2=\"{WIDTH}\" y2=\"{HEIGHT}\"/>{bars}</svg>\n\
         <figcaption>{title}, from {}, {seconds} s each, at most {max}: \
         <span class=\"passed\">passed</span>, <span class=\"refused\">refused</span></figcaption>\n</figure>\n",
        escaped(&timeline.start)
    )
}

/// Text within a sentence, whose order it does not change if it is written from right to left.
fn isolated(text: &str) -> String {
    format!("<bdi>{}</bdi>", escaped(text))
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}
