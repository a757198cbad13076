//! The result of a simulation, for people and for programs.

use std::path::PathBuf;

use serde::Serialize;
use tollgate_counter::metrics::TopKey;

use crate::simulate::{
    engine::{Replay, RuleEntry, Side},
    event::Skipped,
    stats::{RuleReport, Timeline, UserCounts, instant, share},
    suggest::Suggestion,
};

/// What a simulation found.
#[derive(Debug, Serialize)]
pub(super) struct SimulationReport {
    pub(super) rules: String,
    pub(super) input: String,
    /// Whether all of the input was decided.
    pub(super) complete: bool,
    pub(super) requests: u64,
    pub(super) passed: u64,
    pub(super) refused: u64,
    pub(super) share_refused: f64,
    /// The instants of the first and the last request.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) out_of_order: u64,
    #[serde(flatten)]
    pub(super) skipped: Skipped,
    pub(super) descriptors_without_rule: u64,
    /// Requests of users beyond the bound, whose refusals are not in the numbers of users.
    pub(super) users_left_out: u64,
    pub(super) by_rule: Vec<RuleReport>,
    pub(super) refused_most: Vec<UserReport>,
    pub(super) timeline: Timeline,
    pub(super) comparison: Option<RulesComparison>,
    pub(super) suggestions: Vec<Suggestion>,
    pub(super) speed: Speed,
}

/// A descriptor that was refused.
#[derive(Debug, Serialize)]
pub(super) struct UserReport {
    pub(super) descriptor: String,
    /// The refused requests at most; the true number is less by `error` at most.
    pub(super) refused: u64,
    pub(super) error: u64,
}

/// Other rules on the same traffic.
#[derive(Debug, Serialize)]
pub(super) struct RulesComparison {
    pub(super) rules: String,
    pub(super) passed: u64,
    pub(super) refused: u64,
    pub(super) share_refused: f64,
    pub(super) by_rule: Vec<RuleDifference>,
    /// The users that only the first, and only the other rules refuse, with the number of these requests.
    pub(super) users_refused_only_by_first: Vec<UserReport>,
    pub(super) users_refused_only_by_other: Vec<UserReport>,
    pub(super) timeline: Timeline,
}

/// A rule on both sides. A request counts for the rule of the first side that applies to it.
#[derive(Debug, Serialize)]
pub(super) struct RuleDifference {
    pub(super) rule: String,
    pub(super) refused_by_first: u64,
    pub(super) refused_by_other: u64,
    pub(super) refused_only_by_first: u64,
    pub(super) refused_only_by_other: u64,
    /// Users refused at least once by one side and never by the other.
    pub(super) users_refused_only_by_first: u64,
    pub(super) users_refused_only_by_other: u64,
}

/// How long the simulation took.
#[derive(Debug, Serialize)]
pub(super) struct Speed {
    pub(super) reading_seconds: f64,
    pub(super) deciding_seconds: f64,
    /// Decisions a second, without the time of reading.
    pub(super) decisions_per_second: f64,
}

impl SimulationReport {
    /// The report of a simulation of `input` by rules, and by those to compare, with lists of `top` users.
    pub(super) fn new(
        replay: &Replay,
        [rules, compare]: [Option<&PathBuf>; 2],
        top: usize,
        input: String,
        skipped: Skipped,
        suggestions: Vec<Suggestion>,
    ) -> Self {
        let name = |path: &PathBuf| path.display().to_string();
        let counts = replay.users.counts(replay.table.rules.len());
        let traffic = &replay.traffic;
        let first = &replay.first;
        let total = first.timeline.total();
        let [refused_only_first, refused_only_other] = replay.users_refused_only(top);
        let comparison = replay.second.as_ref().zip(compare).map(|(second, compare)| RulesComparison {
            rules: name(compare),
            passed: second.timeline.total().passed,
            refused: second.timeline.total().refused,
            share_refused: share(second.timeline.total().refused, traffic.requests),
            by_rule: differences(replay, second, &counts),
            users_refused_only_by_first: users(refused_only_first),
            users_refused_only_by_other: users(refused_only_other),
            timeline: second.timeline.clone(),
        });
        let deciding = traffic.deciding.as_secs_f64();
        let sides = if replay.second.is_some() { 2.0 } else { 1.0 };
        Self {
            rules: rules.map(name).unwrap_or_default(),
            input,
            complete: !traffic.is_interrupted,
            requests: traffic.requests,
            passed: total.passed,
            refused: total.refused,
            share_refused: share(total.refused, traffic.requests),
            from: traffic.first.map(instant),
            to: traffic.first.map(|_| instant(traffic.last)),
            out_of_order: traffic.out_of_order,
            skipped,
            descriptors_without_rule: first.unmatched,
            users_left_out: replay.users.left_out,
            by_rule: by_rule(replay, &counts),
            refused_most: users(first.refused_most(top)),
            timeline: first.timeline.clone(),
            comparison,
            suggestions,
            speed: Speed {
                reading_seconds: traffic.reading.as_secs_f64(),
                deciding_seconds: deciding,
                decisions_per_second: if deciding > 0.0 {
                    sides * traffic.requests as f64 / deciding
                } else {
                    0.0
                },
            },
        }
    }
}

/// The rules of the first side.
fn by_rule(replay: &Replay, counts: &[UserCounts]) -> Vec<RuleReport> {
    (0..replay.table.rules.len()).filter_map(|index| RuleReport::new(replay, counts, index)).collect()
}

/// The rules of the first side with these paths.
pub(super) fn rules_at(replay: &Replay, paths: &[String]) -> Vec<RuleReport> {
    let counts = replay.users.counts(replay.table.rules.len());
    let report = |path: &String| RuleReport::new(replay, &counts, replay.table.find(path)?);
    paths.iter().map(|path| report(path).unwrap_or_default()).collect()
}

impl RuleReport {
    /// The report of the rule with this index; `None` if the first side does not have it.
    fn new(replay: &Replay, counts: &[UserCounts], index: usize) -> Option<Self> {
        let RuleEntry { path, location } = &replay.table.rules[index];
        let used = replay.first.rule(index)?;
        Some(Self {
            rule: path.clone(),
            at: location.clone(),
            asked: used.asked,
            passed: used.asked - used.refused,
            refused: used.refused,
            share_refused: share(used.refused, used.asked),
            refused_in_shadow: used.refused_in_shadow,
            refused_by_candidate: used.refused_by_candidate,
            users: counts[index].all,
            users_refused: counts[index].refused[0],
            highest_use: used.limit.as_ref().map(|limit| match limit.allowance() {
                0 if used.asked > 0 => 1.0,
                0 => 0.0,
                allowance => share(
                    allowance - used.remaining_min.map_or(allowance, |min| min.min(allowance)),
                    allowance,
                ),
            }),
            longest_wait_ms: u64::try_from(used.delay_max.as_millis()).unwrap_or(u64::MAX),
            hits: used.hits,
        })
    }
}

fn differences(replay: &Replay, second: &Side, counts: &[UserCounts]) -> Vec<RuleDifference> {
    let each = replay.table.rules.iter().enumerate();
    let refused = |side: &Side, index| side.rule(index).map_or(0, |used| used.refused);
    let difference = |(index, entry): (usize, &RuleEntry)| RuleDifference {
        rule: entry.path.clone(),
        refused_by_first: refused(&replay.first, index),
        refused_by_other: refused(second, index),
        refused_only_by_first: replay.refused_only[index][0],
        refused_only_by_other: replay.refused_only[index][1],
        users_refused_only_by_first: counts[index].refused_only[0],
        users_refused_only_by_other: counts[index].refused_only[1],
    };
    each.map(difference).collect()
}

fn users(keys: Vec<TopKey>) -> Vec<UserReport> {
    let report = |TopKey { text, count, error }| UserReport { descriptor: text, refused: count, error };
    keys.into_iter().map(report).collect()
}
