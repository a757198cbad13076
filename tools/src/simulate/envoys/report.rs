//! The result of a simulation with Envoys, for people and for programs.

use std::{collections::VecDeque, path::Path, time::Duration};

use serde::Serialize;
use tollgate_counter::time::SECOND;
use tollgate_rules::{Rule, rule_text};

use crate::simulate::{
    stats::share,
    table::{self, percent},
};

/// The lengths of time of which the one with the most requests is reported, in seconds.
const SPANS: [u64; 3] = [1, 10, 60];

/// What a simulation found.
#[derive(Debug, Serialize)]
pub(super) struct EnvoysReport {
    rules: String,
    rule: String,
    /// The place of the rule in its file.
    at: String,
    limit: String,
    shadow_mode: bool,
    seconds: u64,
    asked: u64,
    passed: u64,
    refused: u64,
    share_refused: f64,
    /// The most that all Envoys together let pass in any time of such a length.
    most_passed: Vec<Most>,
    /// The length of the intervals of `shares` and `passed_over_time`.
    interval_seconds: u64,
    envoys: Vec<EnvoyReport>,
}

/// The most that passed in any time of this length.
#[derive(Clone, Copy, Debug, Serialize)]
struct Most {
    seconds: u64,
    requests: u64,
}

/// The result of one Envoy.
#[derive(Debug, Serialize)]
pub(super) struct EnvoyReport {
    bucket: String,
    requests_per_second: f64,
    asked: u64,
    passed: u64,
    refused: u64,
    /// At the end of each interval, what the last assignment gives: requests a second of a rate, requests of a slice;
    /// `None` if everything passes.
    shares: Vec<Option<u64>>,
    passed_over_time: Vec<u64>,
}

impl EnvoyReport {
    pub(super) fn new(bucket: String, requests_per_second: f64) -> Self {
        let shares = Vec::new();
        let passed_over_time = Vec::new();
        Self { bucket, requests_per_second, asked: 0, passed: 0, refused: 0, shares, passed_over_time }
    }

    /// Begins the next interval.
    pub(super) fn begin_bin(&mut self) {
        self.shares.push(None);
        self.passed_over_time.push(0);
    }

    /// Counts requests.
    pub(super) fn add(&mut self, asked: u64, passed: u64) {
        self.asked += asked;
        self.passed += passed;
        self.refused += asked - passed;
        if let Some(last) = self.passed_over_time.last_mut() {
            *last += passed;
        }
    }

    /// Sets the share of now.
    pub(super) fn set_share(&mut self, share: Option<u64>) {
        if let Some(last) = self.shares.last_mut() {
            *last = share;
        }
    }

    fn cells(&self, number: usize) -> Vec<String> {
        let share_at_end = self.shares.last().copied().flatten();
        vec![
            number.to_string(),
            self.bucket.clone(),
            self.requests_per_second.to_string(),
            self.asked.to_string(),
            self.passed.to_string(),
            self.refused.to_string(),
            percent(share(self.refused, self.asked)),
            share_at_end.map_or("-".to_owned(), |share| share.to_string()),
        ]
    }
}

/// Requests in the last minute, to find the most of any time.
#[derive(Debug)]
pub(super) struct RequestSpans {
    tick: u64,
    ticks: VecDeque<u64>,
    sums: [u64; SPANS.len()],
    most: [u64; SPANS.len()],
}

impl RequestSpans {
    pub(super) fn new(tick: u64) -> Self {
        Self { tick, ticks: VecDeque::new(), sums: [0; SPANS.len()], most: [0; SPANS.len()] }
    }

    /// Adds what passed in a tick.
    pub(super) fn add(&mut self, passed: u64) {
        self.ticks.push_back(passed);
        for (index, seconds) in SPANS.into_iter().enumerate() {
            let length = (seconds * SECOND / self.tick) as usize;
            let ended = self.ticks.len().checked_sub(length + 1).map_or(0, |ended| self.ticks[ended]);
            self.sums[index] = self.sums[index] + passed - ended;
            self.most[index] = self.most[index].max(self.sums[index]);
        }
        let longest = (SPANS[SPANS.len() - 1] * SECOND / self.tick) as usize;
        if self.ticks.len() > longest {
            self.ticks.pop_front();
        }
    }
}

impl EnvoysReport {
    pub(super) fn new(
        path: &Path,
        rule: &Rule,
        duration: Duration,
        interval_seconds: u64,
        spans: &RequestSpans,
        envoys: Vec<EnvoyReport>,
    ) -> Self {
        let sum = |of: fn(&EnvoyReport) -> u64| envoys.iter().map(of).sum::<u64>();
        let asked = sum(|envoy| envoy.asked);
        let passed = sum(|envoy| envoy.passed);
        let refused = sum(|envoy| envoy.refused);
        let limit = rule.limit().map(|limit| rule_text::limit(limit, rule.displayed_limit.unit));
        let most = SPANS.into_iter().zip(spans.most);
        Self {
            rules: path.display().to_string(),
            rule: rule.path.to_string(),
            at: rule.location.to_string(),
            limit: limit.unwrap_or_default(),
            shadow_mode: rule.shadow_mode,
            seconds: duration.as_secs(),
            asked,
            passed,
            refused,
            share_refused: share(refused, asked),
            most_passed: most.map(|(seconds, requests)| Most { seconds, requests }).collect(),
            interval_seconds,
            envoys,
        }
    }

    /// The report, by paragraphs.
    pub(super) fn text(&self) -> String {
        let demand: f64 = self.envoys.iter().map(|envoy| envoy.requests_per_second).sum();
        let number = self.envoys.len();
        let seconds = self.seconds;
        let shadow = if self.shadow_mode { ", in shadow mode" } else { "" };
        let most: Vec<_> =
            self.most_passed.iter().map(|most| format!("{} in {} s", most.requests, most.seconds)).collect();
        let summary = [
            format!("{}: {number} Envoys ask for {demand} requests a second, for {seconds} s", self.rules),
            format!("rule {} at {}: {}{shadow}", self.rule, self.at, self.limit),
            format!(
                "asked {}, passed {}, refused {} ({})",
                self.asked,
                self.passed,
                self.refused,
                percent(self.share_refused)
            ),
            format!("most that passed together: {}", most.join(", ")),
        ];
        let header =
            ["envoy", "bucket", "a second", "asked", "passed", "refused", "share refused", "granted"];
        let rows = (1..).zip(&self.envoys).map(|(number, envoy)| envoy.cells(number)).collect();
        [summary.join("\n"), table::columns(&header, rows), self.shares()].join("\n\n")
    }

    /// A line for each Envoy, relative to the greatest share of any.
    fn shares(&self) -> String {
        let greatest = self.envoys.iter().flat_map(|envoy| envoy.shares.iter().flatten()).max();
        let max = greatest.copied().unwrap_or_default();
        let intervals = self.envoys.iter().map(|envoy| envoy.shares.len()).max().unwrap_or_default();
        let step = intervals.div_ceil(table::TIMELINE_WIDTH).max(1);
        let lines = (1..).zip(&self.envoys).map(|(number, envoy)| {
            let shares: Vec<u64> =
                envoy.shares.iter().step_by(step).map(|share| share.unwrap_or(max)).collect();
            format!("\n{number:<6}{}", table::levels(&shares, max))
        });
        let seconds = self.interval_seconds * step as u64;
        format!("granted over time, {seconds} s each, up to {max}{}", lines.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_any_span_is_found_in_ticks() {
        let mut spans = RequestSpans::new(SECOND / 2);
        for passed in [1, 2, 3, 0, 0, 4, 5] {
            spans.add(passed);
        }
        assert_eq!(spans.most, [9, 15, 15]);
        (0..200).for_each(|_| spans.add(1));
        assert_eq!((spans.most, spans.sums), ([9, 28, 128], [2, 20, 120]));
    }
}
