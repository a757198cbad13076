//! The bar chart of docs/performance.md, from the tables of the same page.

use std::fmt::Write;

const LEFT: f64 = 214.0;
const RIGHT: f64 = 668.0;
const TOP: f64 = 76.0;
const BAR: f64 = 22.0;
const ROW: f64 = 32.0;
/// The room for the heading of a group.
const HEADING: f64 = 26.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}\
                     .small{font-size:12px;fill:#666}.group{font-weight:600}.ours{fill:#1668b8}.other{fill:#a9a8a0}";

/// Servers that were measured in one run.
struct Group {
    heading: &'static str,
    bars: Vec<Bar>,
}

struct Bar {
    name: String,
    microseconds: f64,
}

/// The cells of the first row that begins with `first`, below the heading row of the table behind `marker`; each with
/// its heading.
fn row<'t>(page: &'t str, marker: &str, first: &str) -> Vec<(&'t str, &'t str)> {
    let (_, table) = page.split_once(marker).unwrap();
    let mut rows = table
        .lines()
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let headings = rows.next().unwrap();
    let cells = rows.find(|cells| cells[0] == first).unwrap();
    headings.into_iter().zip(cells).collect()
}

/// The figure of a cell: of `11.59 + 0.84 = 12.43` the sum.
fn figure(cell: &str) -> f64 {
    cell.rsplit('=').next().unwrap().trim().parse().unwrap()
}

fn groups(page: &str) -> [Group; 2] {
    let alone = row(page, "<!-- side by side: begin -->", "CPU a decision, 4x50, one key (us)");
    let shared = row(page, "<!-- shared store: begin -->", "4x50, one key");
    let bar = |(name, cell): &(&str, &str)| Bar {
        name: name.trim_end_matches(" (us)").to_owned(),
        microseconds: figure(cell),
    };
    [
        // Between the target and the ratio.
        Group { heading: "Counters in memory", bars: alone[2..alone.len() - 1].iter().map(bar).collect() },
        Group {
            heading: "Counters in Redis, its CPU included",
            bars: shared[1..3].iter().map(bar).collect(),
        },
    ]
}

/// The least multiple of ten that is not below any bar.
fn scale(groups: &[Group]) -> f64 {
    let longest = groups.iter().flat_map(|group| &group.bars).map(|bar| bar.microseconds).fold(0.0, f64::max);
    (longest / 10.0).ceil() * 10.0
}

/// The chart of the tables of docs/performance.md.
pub fn draw(page: &str) -> String {
    let groups = groups(page);
    let scale = scale(&groups);
    let mut bars = String::new();
    let mut y = TOP;
    for group in &groups {
        writeln!(bars, "<text class=\"group\" x=\"16\" y=\"{:.0}\">{}</text>", y + 12.0, group.heading)
            .unwrap();
        y += HEADING;
        for bar in &group.bars {
            let class = if bar.name.starts_with("Tollgate") { "ours" } else { "other" };
            let width = (RIGHT - LEFT) * bar.microseconds / scale;
            let middle = y + BAR / 2.0 + 4.0;
            writeln!(
                bars,
                "<text x=\"{:.0}\" y=\"{middle:.0}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"{class}\" x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR:.0}\"/>\
                 <text x=\"{:.1}\" y=\"{middle:.0}\">{:.1}</text>",
                LEFT - 8.0,
                bar.name,
                LEFT + width + 6.0,
                bar.microseconds,
            )
            .unwrap();
            y += ROW;
        }
        y += 10.0;
    }
    let named = groups.iter().flat_map(|group| &group.bars);
    let summary: Vec<_> = named.map(|bar| format!("{} {:.1}", bar.name, bar.microseconds)).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 724 {y:.0}\" role=\"img\">\n\
         <title>CPU time a decision in microseconds: {}.</title>\n<style>{STYLE}</style>\n\
         <rect width=\"724\" height=\"{y:.0}\" rx=\"6\" fill=\"#fbfbf8\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">CPU time a decision, in microseconds: less is better</text>\n\
         <text class=\"small\" x=\"16\" y=\"50\">4 connections, 50 requests at a time on each, one key. The groups \
         are two runs: compare bars of one group.</text>\n{bars}</svg>\n",
        summary.join(", "),
    )
}
