//! The result of a simulation, for people and for programs.

use serde::Serialize;
use tollgate_counter::{metrics::TopKey, time::Timestamp};

use crate::simulate::{
    engine::{Replay, RuleEntry, Side},
    event::Skipped,
    stats::{Bin, Timeline, UserCounts, share},
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
    pub(super) timeline: TimelineReport,
    pub(super) comparison: Option<RulesComparison>,
    pub(super) suggestions: Vec<Suggestion>,
    pub(super) speed: Speed,
}

/// The use of a rule.
#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    /// The place in its file.
    pub(super) at: String,
    pub(super) asked: u64,
    pub(super) passed: u64,
    pub(super) refused: u64,
    pub(super) share_refused: f64,
    pub(super) refused_in_shadow: u64,
    pub(super) refused_by_candidate: u64,
    /// Distinct descriptors, and those refused at least once.
    pub(super) users: u64,
    pub(super) users_refused: u64,
    /// The highest share of the limit that was used; `None` without a limit.
    pub(super) highest_use: Option<f64>,
    pub(super) longest_wait_ms: u64,
}

/// A descriptor that was refused.
#[derive(Debug, Serialize)]
pub(super) struct UserReport {
    pub(super) descriptor: String,
    /// At most; the true number is less by `error` at most.
    pub(super) refused: u64,
    pub(super) error: u64,
}

/// Requests over time.
#[derive(Debug, Serialize)]
pub(super) struct TimelineReport {
    pub(super) start: String,
    pub(super) bin_seconds: u64,
    pub(super) bins: Vec<Bin>,
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
    pub(super) timeline: TimelineReport,
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

/// The names of the files of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) rules: String,
    pub(super) input: String,
    pub(super) compare: Option<String>,
    /// The number of users in each list.
    pub(super) top: usize,
}

impl SimulationReport {
    pub(super) fn new(replay: &Replay, skipped: Skipped, suggestions: Vec<Suggestion>, names: Names) -> Self {
        let counts = replay.users.counts(replay.table.rules.len());
        let traffic = &replay.traffic;
        let first = &replay.first;
        let [refused_only_first, refused_only_other] = replay.users_refused_only(names.top);
        let comparison = replay.second.as_ref().zip(names.compare).map(|(second, rules)| RulesComparison {
            rules,
            passed: second.totals.passed,
            refused: second.totals.refused,
            share_refused: share(second.totals.refused, traffic.requests),
            by_rule: differences(replay, second, &counts),
            users_refused_only_by_first: users(refused_only_first),
            users_refused_only_by_other: users(refused_only_other),
            timeline: TimelineReport::from_timeline(&second.totals.timeline),
        });
        let deciding = traffic.deciding.as_secs_f64();
        let sides = if replay.second.is_some() { 2.0 } else { 1.0 };
        Self {
            rules: names.rules,
            input: names.input,
            complete: !traffic.is_interrupted,
            requests: traffic.requests,
            passed: first.totals.passed,
            refused: first.totals.refused,
            share_refused: share(first.totals.refused, traffic.requests),
            from: traffic.first.map(instant),
            to: traffic.first.map(|_| instant(traffic.last)),
            out_of_order: traffic.out_of_order,
            skipped,
            descriptors_without_rule: first.totals.unmatched,
            users_left_out: replay.users.left_out,
            by_rule: by_rule(replay, &counts),
            refused_most: users(first.refused_most(names.top)),
            timeline: TimelineReport::from_timeline(&first.totals.timeline),
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
    let reports = replay.table.rules.iter().enumerate().filter(|(index, _)| replay.first.has(*index));
    let report = |(index, entry): (usize, &RuleEntry)| {
        let used = replay.first.rule(index);
        let allowance = replay.first.allowance(index);
        RuleReport {
            rule: entry.path.clone(),
            at: entry.location.clone(),
            asked: used.asked,
            passed: used.asked - used.refused,
            refused: used.refused,
            share_refused: share(used.refused, used.asked),
            refused_in_shadow: used.refused_in_shadow,
            refused_by_candidate: used.refused_by_candidate,
            users: counts[index].all,
            users_refused: counts[index].refused[0],
            highest_use: allowance.map(|allowance| match allowance {
                0 if used.asked > 0 => 1.0,
                0 => 0.0,
                _ => share(allowance - used.remaining_min.min(allowance), allowance),
            }),
            longest_wait_ms: u64::try_from(used.delay_max.as_millis()).unwrap_or(u64::MAX),
        }
    };
    reports.map(report).collect()
}

fn differences(replay: &Replay, second: &Side, counts: &[UserCounts]) -> Vec<RuleDifference> {
    let each = replay.table.rules.iter().enumerate();
    let difference = |(index, entry): (usize, &RuleEntry)| RuleDifference {
        rule: entry.path.clone(),
        refused_by_first: replay.first.rule(index).refused,
        refused_by_other: second.rule(index).refused,
        refused_only_by_first: replay.refused_only[index][0],
        refused_only_by_other: replay.refused_only[index][1],
        users_refused_only_by_first: counts[index].refused_only[0],
        users_refused_only_by_other: counts[index].refused_only[1],
    };
    each.map(difference).collect()
}

impl TimelineReport {
    fn from_timeline(timeline: &Timeline) -> Self {
        let Timeline { start, bin_seconds, bins } = timeline;
        Self { start: instant(*start), bin_seconds: *bin_seconds, bins: bins.clone() }
    }
}

fn users(keys: Vec<TopKey>) -> Vec<UserReport> {
    let report = |TopKey { text, count, error }| UserReport { descriptor: text, refused: count, error };
    keys.into_iter().map(report).collect()
}

fn instant(at: Timestamp) -> String {
    // Beyond what the calendar has, the nanoseconds themselves are shown.
    jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos()))
        .map_or_else(|_| at.as_nanos().to_string(), |at| at.to_string())
}
