//! The bar charts of docs/performance.md, from the tables of benches/README.md.

use std::fmt::Write;

const LEFT: f64 = 214.0;
const RIGHT: f64 = 668.0;
const TOP: f64 = 76.0;
const BAR: f64 = 22.0;
const ROW: f64 = 32.0;
/// The room for the heading of a group.
const HEADING: f64 = 26.0;

pub const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}\
                     .small{font-size:12px;fill:#666}.group{font-weight:600}.ours{fill:#1668b8}.other{fill:#a9a8a0}";

/// A bar chart of figures in a table.
struct Chart {
    title: &'static str,
    note: &'static str,
    /// What the figures are, for readers that hear the chart.
    summary: &'static str,
    decimals: usize,
    groups: Vec<Group>,
}

/// Servers that were measured in one run.
struct Group {
    heading: &'static str,
    bars: Vec<Bar>,
}

struct Bar {
    name: String,
    figure: f64,
}

/// The rows of the table behind `marker`, each cell with its heading.
pub fn rows<'t>(page: &'t str, marker: &str) -> Vec<Vec<(&'t str, &'t str)>> {
    let (_, table) = page.split_once(marker).unwrap();
    let mut rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let headings = rows.next().unwrap();
    rows.skip(1).map(|cells| headings.iter().copied().zip(cells).collect()).collect()
}

/// The first row that begins with `first`.
fn row<'t>(page: &'t str, marker: &str, first: &str) -> Vec<(&'t str, &'t str)> {
    rows(page, marker).into_iter().find(|row| row[0].1 == first).unwrap()
}

/// The figure of a cell: of `11.59 + 0.84 = 12.43` the sum.
fn figure(cell: &str) -> f64 {
    cell.rsplit('=').next().unwrap().trim().parse().unwrap()
}

fn cpu_a_decision(page: &str) -> Chart {
    let alone = row(page, "<!-- side by side: begin -->", "CPU a decision, 4x50, one key (us)");
    let shared = row(page, "<!-- shared store: begin -->", "4x50, one key");
    let bar = |(name, cell): &(&str, &str)| Bar {
        name: name.trim_end_matches(" (us)").to_owned(),
        figure: figure(cell),
    };
    Chart {
        title: "CPU time a decision, in microseconds: less is better",
        note: "4 connections, 50 requests at a time on each, one key. The groups are two runs: compare bars of one group.",
        summary: "CPU time a decision in microseconds",
        decimals: 1,
        groups: vec![
            // Between the target and the ratio.
            Group {
                heading: "Counters in memory",
                bars: alone[2..alone.len() - 1].iter().map(bar).collect(),
            },
            Group {
                heading: "Counters in Redis, its CPU included",
                bars: shared[1..3].iter().map(bar).collect(),
            },
        ],
    }
}

fn latency(page: &str) -> Chart {
    let group = |heading, marker| {
        let bar = |row: Vec<(&str, &str)>| {
            let (_, quantiles) = row.iter().find(|(heading, _)| *heading == "1,000 a second").unwrap();
            // p50, p99 and p99.9.
            Some(Bar {
                name: row[0].1.to_owned(),
                figure: quantiles.split('/').nth(1)?.trim().parse().unwrap(),
            })
        };
        Group { heading, bars: rows(page, marker).into_iter().filter_map(bar).collect() }
    };
    Chart {
        title: "99th percentile of latency, in milliseconds: less is better",
        note: "1,000 requests a second in an open loop, the server on one core.",
        summary: "99th percentile of latency in milliseconds",
        decimals: 2,
        groups: vec![
            group("By the protocol of each", "<!-- latency direct: begin -->"),
            group("Through an Envoy", "<!-- latency envoy: begin -->"),
        ],
    }
}

impl Chart {
    /// The figure at the right end: a round one that is not below any bar.
    fn scale(&self) -> f64 {
        let figures = self.groups.iter().flat_map(|group| &group.bars).map(|bar| bar.figure);
        let longest = figures.fold(0.0, f64::max);
        let unit = if longest > 10.0 { 10.0 } else { 1.0 };
        (longest / unit).ceil() * unit
    }

    fn draw(&self) -> String {
        let scale = self.scale();
        let mut bars = String::new();
        let mut y = TOP;
        for group in &self.groups {
            writeln!(bars, "<text class=\"group\" x=\"16\" y=\"{:.0}\">{}</text>", y + 12.0, group.heading)
                .unwrap();
            y += HEADING;
            for bar in &group.bars {
                let class = if bar.name.starts_with("Tollgate") { "ours" } else { "other" };
                let width = (RIGHT - LEFT) * bar.figure / scale;
                let middle = y + BAR / 2.0 + 4.0;
                writeln!(
                    bars,
                    "<text x=\"{:.0}\" y=\"{middle:.0}\" text-anchor=\"end\">{}</text>\
                     <rect class=\"{class}\" x=\"{LEFT:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR:.0}\"/>\
                     <text x=\"{:.1}\" y=\"{middle:.0}\">{:.*}</text>",
                    LEFT - 8.0,
                    bar.name,
                    LEFT + width + 6.0,
                    self.decimals,
                    bar.figure,
                )
                .unwrap();
                y += ROW;
            }
            y += 10.0;
        }
        let named = self.groups.iter().flat_map(|group| &group.bars);
        let figures: Vec<_> =
            named.map(|bar| format!("{} {:.*}", bar.name, self.decimals, bar.figure)).collect();
        let Self { title, note, summary, .. } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 724 {y:.0}\" role=\"img\">\n\
             <title>{summary}: {}.</title>\n<style>{STYLE}</style>\n\
             <rect width=\"724\" height=\"{y:.0}\" rx=\"6\" fill=\"#fbfbf8\"/>\n\
             <text class=\"title\" x=\"16\" y=\"28\">{title}</text>\n\
             <text class=\"small\" x=\"16\" y=\"50\">{note}</text>\n{bars}</svg>\n",
            figures.join(", "),
        )
    }
}

/// The names of the charts of docs/performance.md, and the charts.
pub fn drawn(page: &str) -> [(&'static str, String); 2] {
    [("cpu_a_decision", cpu_a_decision(page).draw()), ("latency", latency(page).draw())]
}
