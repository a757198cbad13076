//! Draws the pictures of the documentation that show figures: `cargo run -p tollgate-limiter --example pictures`.
//!
//! For docs/algorithms.md the decisions of each algorithm on the same 42 seconds of requests, which the production code
//! makes; for docs/performance.md the charts of the figures in benches/README.md; and for docs/cluster.md the curves of
//! those in its tables. A test compares the checked-in pictures.

#![allow(clippy::unwrap_used, reason = "a picture without its limit or its figures shows nothing")]

mod chart;
mod curve;

use std::{
    fmt::Write,
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use tollgate_counter::{
    algorithm::{
        Excess, FixedWindow, LeakyQueue, Limit, Operation, Rate, SlidingLog, SlidingWindow, Span,
        SteppedBucket, TokenBucket, Verdict, Window,
    },
    time::{SECOND, Timestamp},
};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");

const MILLISECOND: u64 = SECOND / 1_000;
/// Every limit has this many hits in ten seconds.
const LIMIT: u64 = 5;
const WINDOW: u64 = 10 * SECOND;
/// A window boundary; times in pictures are relative to it.
const START: Timestamp = Timestamp::from_nanos(179_000_000 * WINDOW);
const END_MS: u64 = 42_000;
/// The distance between two points of the line.
const STEP_MS: usize = 20;

/// The times of hits: a burst on each side of a window boundary, slow hits, a burst within a window, three more.
#[rustfmt::skip]
const HITS_MS: [u64; 26] = [
    7_000, 7_600, 8_200, 8_800, 9_400, 10_400, 10_800, 11_200, 11_600, 12_000,
    14_000, 15_500, 17_000, 18_500, 20_000,
    25_000, 25_400, 25_800, 26_200, 26_600, 27_000, 27_400, 27_800,
    31_000, 32_000, 33_000,
];

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}\
                     .small{font-size:12px;fill:#666}.asked{stroke:#777;stroke-width:1.5}.passed{fill:#1668b8}\
                     .refused{stroke:#d1480c;stroke-width:2}.turn{stroke:#c9c9c4}.wait{stroke:#8db9e0}\
                     .left{fill:none;stroke:#333;stroke-width:1.5}.area{fill:#e4e3dc}.band{fill:#dcebf9}";

/// One picture.
struct Picture {
    file: &'static str,
    title: &'static str,
    limit: Limit,
    series: Series,
}

/// What the line below the hits shows.
#[derive(Clone, Copy, PartialEq)]
enum Series {
    Left,
    Held,
    Waiting,
}

/// One hit, in milliseconds since the start.
struct Hit {
    asked: u64,
    /// When it passed, if it did.
    passed: Option<u64>,
}

/// The interval of a window's length in which the most hits passed.
struct BusiestSpan {
    from: u64,
    hits: usize,
}

impl Series {
    fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Held => "held",
            Self::Waiting => "waiting",
        }
    }
}

fn pictures() -> Vec<Picture> {
    let number = |number| NonZeroU64::new(number).unwrap();
    let (span, excess) = (Span::from_nanos(WINDOW).unwrap(), Excess::Refuse);
    let log = |sub_window| SlidingLog { limit: LIMIT, span, sub_window: number(sub_window), excess };
    let pace = Rate::new(number(LIMIT), number(WINDOW));
    let bucket = TokenBucket { rate: pace, burst: LIMIT, excess };
    let picture = |file, title, limit, series| Picture { file, title, limit, series };
    vec![
        picture(
            "fixed_window",
            "fixed_window: 5 in each 10 s",
            Limit::FixedWindow(FixedWindow { limit: LIMIT, window: Window::Aligned(span), excess }),
            Series::Left,
        ),
        picture(
            "sliding_window",
            "sliding_window: 5 in 10 s, by the weighed count",
            Limit::SlidingWindow(SlidingWindow { limit: LIMIT, span, excess }),
            Series::Left,
        ),
        picture(
            "sub_windows",
            "sliding_window: 5 in 10 s, by 5 sub_windows",
            Limit::SlidingLog(log(2 * SECOND)),
            Series::Left,
        ),
        picture("sliding_log", "sliding_log: 5 in any 10 s", Limit::SlidingLog(log(1)), Series::Left),
        picture(
            "token_bucket",
            "token_bucket: 5 in 10 s, evenly; burst 5",
            Limit::TokenBucket(bucket),
            Series::Left,
        ),
        picture(
            "stepped_bucket",
            "token_bucket: 2 more every 4 s; burst 5",
            Limit::SteppedBucket(SteppedBucket {
                amount: number(2),
                interval: number(4 * SECOND),
                burst: LIMIT,
                excess,
            }),
            Series::Left,
        ),
        picture(
            "leaky_bucket",
            "leaky_bucket: leaks 5 in 10 s; burst 2",
            Limit::LeakyBucket(TokenBucket { burst: 2, ..bucket }),
            Series::Held,
        ),
        picture(
            "leaky_queue",
            "leaky_queue: one leaves every 2 s; 4 wait",
            Limit::LeakyQueue(LeakyQueue { rate: pace, burst: Some(4), max_delay: None, timeout: None }),
            Series::Waiting,
        ),
    ]
}

/// The decision on each hit, and what is left at each step of time.
fn replay(limit: &Limit) -> (Vec<Hit>, Vec<(u64, u64)>) {
    let (mut counter, mut hits, mut left) = (limit.fresh(), Vec::new(), Vec::new());
    let mut asked = HITS_MS.into_iter().peekable();
    for at in (0..=END_MS).step_by(STEP_MS) {
        let now = START.plus(at * MILLISECOND);
        left.push((at, limit.decide(&mut counter, now, Operation::Peek).remaining));
        if asked.next_if_eq(&at).is_some() {
            let decision = limit.decide(&mut counter, now, Operation::Charge(1));
            let passed = match decision.verdict {
                Verdict::Pass => Some(at),
                Verdict::Delay(turn) => Some(at + turn.as_millis() as u64),
                Verdict::Refuse { .. } => None,
            };
            hits.push(Hit { asked: at, passed });
            left.push((at, decision.remaining));
        }
    }
    assert!(asked.next().is_none(), "every hit is at a step of time");
    (hits, left)
}

fn busiest(hits: &[Hit]) -> BusiestSpan {
    let passed: Vec<u64> = hits.iter().filter_map(|hit| hit.passed).collect();
    let within =
        |from: u64| passed.iter().filter(|at| from <= **at && **at < from + WINDOW / MILLISECOND).count();
    // Of equal intervals the first.
    let each = passed.iter().rev().map(|&from| BusiestSpan { from, hits: within(from) });
    each.max_by_key(|busiest| busiest.hits).unwrap()
}

fn x(ms: u64) -> f64 {
    76.0 + ms as f64 * 0.015
}

fn y(value: u64) -> f64 {
    218.0 - value as f64 * 14.0
}

/// Steps as an SVG path: horizontal at the old value, then vertical to the new one.
fn steps(values: &[(u64, u64)]) -> String {
    let mut path = format!("M{:.1} {:.0}", x(values[0].0), y(values[0].1));
    for pair in values.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
        write!(path, "H{:.1}V{:.0}", x(pair[1].0), y(pair[1].1)).unwrap();
    }
    path + &format!("H{:.1}", x(END_MS))
}

fn draw(picture: &Picture) -> String {
    let (hits, mut values) = replay(&picture.limit);
    for (at, value) in &mut values {
        match picture.series {
            Series::Left => {}
            Series::Held => *value = picture.limit.allowance() - *value,
            Series::Waiting => {
                let waits = |hit: &&Hit| hit.asked <= *at && hit.passed.is_some_and(|turn| *at < turn);
                *value = hits.iter().filter(waits).count() as u64;
            }
        }
    }
    let passed = hits.iter().filter(|hit| hit.passed.is_some()).count();
    let busiest = busiest(&hits);
    let summary = format!("{} asked, {passed} passed, {} refused", hits.len(), hits.len() - passed);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 724 252\" role=\"img\">\n\
         <title>{}. {summary}; at most {} passed within 10 s.</title>\n<style>{STYLE}</style>\n\
         <rect width=\"724\" height=\"252\" rx=\"6\" fill=\"#fbfbf8\"/>\n",
        picture.title, busiest.hits,
    );
    frame(&mut svg, picture, &summary, &busiest);
    let path = steps(&values);
    let (left, right, ground) = (x(0), x(END_MS), y(0));
    writeln!(svg, "<path class=\"area\" d=\"{path}L{right:.1} {ground:.0}H{left:.1}Z\"/>").unwrap();
    writeln!(svg, "<path class=\"left\" d=\"{path}\"/>").unwrap();
    for hit in &hits {
        mark(&mut svg, hit);
    }
    svg + "</svg>\n"
}

fn frame(svg: &mut String, picture: &Picture, summary: &str, busiest: &BusiestSpan) {
    let right = x(END_MS);
    writeln!(svg, "<text class=\"title\" x=\"16\" y=\"25\">{}</text>", picture.title).unwrap();
    writeln!(svg, "<text class=\"small\" x=\"{right:.1}\" y=\"25\" text-anchor=\"end\">{summary}</text>")
        .unwrap();
    let (from, width) = (x(busiest.from), x(WINDOW / MILLISECOND) - x(0));
    writeln!(
        svg,
        "<rect class=\"band\" x=\"{from:.1}\" y=\"38\" width=\"{width:.1}\" height=\"94\"/>\n\
         <text class=\"small\" x=\"{:.1}\" y=\"52\">within 10 s: {} passed</text>",
        from + 5.0,
        busiest.hits,
    )
    .unwrap();
    for turn in (0..=END_MS).step_by(10_000) {
        let at = x(turn);
        let seconds = turn / 1_000;
        writeln!(
            svg,
            "<path class=\"turn\" d=\"M{at:.1} 58V{:.0}\"/>\n\
             <text class=\"small\" x=\"{at:.1}\" y=\"238\" text-anchor=\"middle\">{seconds} s</text>",
            y(0),
        )
        .unwrap();
    }
    let lanes = [("asked", 72.0), ("passed", 97.0), ("refused", 122.0)];
    let most = match picture.series {
        Series::Left | Series::Held => picture.limit.allowance(),
        Series::Waiting => picture.limit.allowance() - 1,
    };
    let middle = (y(0) + y(most)) / 2.0 + 4.0;
    for (name, height) in lanes.into_iter().chain([(picture.series.name(), middle)]) {
        writeln!(svg, "<text x=\"16\" y=\"{height:.0}\">{name}</text>").unwrap();
    }
    for value in [0, most] {
        writeln!(
            svg,
            "<path class=\"turn\" d=\"M{:.1} {height:.0}H{right:.1}\"/>\
             <text class=\"small\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"end\">{value}</text>",
            x(0),
            x(0) - 5.0,
            y(value) + 4.0,
            height = y(value),
        )
        .unwrap();
    }
}

fn mark(svg: &mut String, hit: &Hit) {
    let at = x(hit.asked);
    writeln!(svg, "<path class=\"asked\" d=\"M{at:.1} 62v11\"/>").unwrap();
    match hit.passed {
        Some(turn) => {
            let out = x(turn);
            if hit.asked < turn {
                writeln!(svg, "<path class=\"wait\" d=\"M{at:.1} 74L{out:.1} 92\"/>").unwrap();
            }
            if turn <= END_MS {
                writeln!(svg, "<circle class=\"passed\" cx=\"{out:.1}\" cy=\"92\" r=\"3.2\"/>").unwrap();
            }
        }
        None => {
            writeln!(svg, "<path class=\"refused\" d=\"M{:.1} 114l6 6m0 -6l-6 6\"/>", at - 3.0).unwrap();
        }
    }
}

/// The names of all pictures, and their contents.
fn drawn() -> Vec<(&'static str, String)> {
    let algorithms = pictures().into_iter().map(|picture| (picture.file, draw(&picture)));
    let page = |name| fs::read_to_string(Path::new(DOCS).join(name)).unwrap();
    let charts = chart::drawn(&page("../benches/README.md"));
    algorithms.chain(charts).chain([curve::drawn(&page("cluster.md"))]).collect()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DOCS).join("pictures").join(name).with_extension("svg")
}

fn main() {
    for (name, svg) in drawn() {
        fs::write(path_of(name), svg).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_docs_match_drawn_pictures() {
        for (name, svg) in drawn() {
            let path = path_of(name);
            let checked_in = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                checked_in == svg,
                "{} is not: run `cargo run -p tollgate-limiter --example pictures`",
                path.display()
            );
        }
    }
}
