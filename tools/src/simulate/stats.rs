//! What is counted of a replay, in bounded memory.

use std::{collections::hash_map::Entry, time::Duration};

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use tollgate_counter::{
    algorithm::{Admission, Limit},
    time::{SECOND, Timestamp},
};
use tollgate_limiter::limiter::Status;

/// The maximum number of bins of a timeline.
const BINS_MAX: usize = 240;

/// The use of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleUse {
    /// The limit of the rule; `None` if it is unlimited.
    pub(super) limit: Option<Limit>,
    pub(super) asked: u64,
    pub(super) refused: u64,
    /// Requests that the rule refuses, but that pass because it is in shadow mode.
    pub(super) refused_in_shadow: u64,
    /// Requests that the candidate of the rule would have refused.
    pub(super) refused_by_candidate: u64,
    /// The hits of all requests.
    pub(super) hits: u64,
    /// The smallest number of hits that was left; `None` before the first request.
    pub(super) remaining_min: Option<u64>,
    /// The longest time that a request waited in a queue.
    pub(super) delay_max: Duration,
}

impl RuleUse {
    /// Counts a request. `delay` is that of the whole request.
    pub(super) fn add(&mut self, hits: u64, is_refused: bool, status: &Status<'_>, delay: Duration) {
        self.asked += 1;
        self.hits = self.hits.saturating_add(hits);
        self.refused += u64::from(is_refused);
        self.refused_in_shadow += u64::from(status.refused_in_shadow);
        self.refused_by_candidate += u64::from(status.candidate_refuses);
        self.remaining_min = self.remaining_min.into_iter().chain([status.remaining]).min();
        if self.limit.as_ref().map(Limit::admission) == Some(Admission::Delayed) {
            self.delay_max = self.delay_max.max(delay);
        }
    }
}

/// The use of a rule as reported.
#[derive(Debug, Default, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    /// The place of the rule in its file.
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
    /// The hits of all requests.
    #[serde(skip)]
    pub(super) hits: u64,
}

/// Requests passed and refused over time. The bins grow with the time that they cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Timeline {
    /// The start of the first bin.
    #[serde(serialize_with = "as_text")]
    pub(super) start: Timestamp,
    /// The length of a bin: a second, or a power of two of it.
    pub(super) bin_seconds: u64,
    // Invariant: at most `BINS_MAX`.
    pub(super) bins: Vec<Bin>,
}

/// The requests of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Bin {
    pub(super) passed: u64,
    pub(super) refused: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { start: Timestamp::EPOCH, bin_seconds: 1, bins: Vec::new() }
    }
}

impl Timeline {
    /// Counts a request at `now`, which is not before the first one.
    pub(super) fn add(&mut self, now: Timestamp, passes: bool) {
        if self.bins.is_empty() {
            self.start = Timestamp::from_nanos(now.as_nanos() / SECOND * SECOND);
        }
        let seconds = now.nanos_since(self.start) / SECOND;
        while seconds / self.bin_seconds >= BINS_MAX as u64 {
            self.bin_seconds *= 2;
            self.bins = self.bins.chunks(2).map(Bin::sum).collect();
        }
        // Less than `BINS_MAX`.
        let index = (seconds / self.bin_seconds) as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::default());
        }
        let bin = &mut self.bins[index];
        if passes {
            bin.passed += 1;
        } else {
            bin.refused += 1;
        }
    }

    /// All requests.
    pub(super) fn total(&self) -> Bin {
        Bin::sum(&self.bins)
    }
}

impl Bin {
    fn sum(bins: &[Self]) -> Self {
        bins.iter().fold(Self::default(), |sum, bin| Self {
            passed: sum.passed + bin.passed,
            refused: sum.refused + bin.refused,
        })
    }
}

/// The users of each rule: its distinct descriptors. Beyond the bound, requests of further users are only counted.
#[derive(Debug)]
pub(super) struct Users {
    max: usize,
    // By the rule and the hash of the descriptor: whether each side refused the user.
    seen: FxHashMap<(u32, u64), [bool; 2]>,
    /// Requests of users beyond the bound.
    pub(super) left_out: u64,
}

/// The numbers of users of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserCounts {
    pub(super) all: u64,
    /// Refused at least once by the first side, by the second side.
    pub(super) refused: [u64; 2],
    /// Refused at least once by the first side and never by the second, and the reverse.
    pub(super) refused_only: [u64; 2],
}

impl Users {
    /// At most `max` users of all rules together.
    pub(super) fn new(max: usize) -> Self {
        Self { max, seen: FxHashMap::default(), left_out: 0 }
    }

    pub(super) fn add(&mut self, rule: usize, user: u64, is_refused: [bool; 2]) {
        let is_full = self.seen.len() >= self.max;
        // The number of rules is far below 2^32: `DESCRIPTORS_MAX` of a rule set.
        match self.seen.entry((rule as u32, user)) {
            Entry::Vacant(_) if is_full => self.left_out += 1,
            Entry::Vacant(entry) => drop(entry.insert(is_refused)),
            Entry::Occupied(mut entry) => {
                let seen = entry.get_mut();
                *seen = [seen[0] || is_refused[0], seen[1] || is_refused[1]];
            }
        }
    }

    /// The numbers for `rules` rules, by their index.
    pub(super) fn counts(&self, rules: usize) -> Vec<UserCounts> {
        let mut counts = vec![UserCounts::default(); rules];
        for ((rule, _), [first, second]) in &self.seen {
            let counts = &mut counts[*rule as usize];
            counts.all += 1;
            counts.refused[0] += u64::from(*first);
            counts.refused[1] += u64::from(*second);
            counts.refused_only[0] += u64::from(*first && !*second);
            counts.refused_only[1] += u64::from(*second && !*first);
        }
        counts
    }
}

fn as_text<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&instant(*at))
}

/// An instant as in RFC 3339. Beyond what the calendar has, it is the nanoseconds themselves.
pub(super) fn instant(at: Timestamp) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos()))
        .map_or_else(|_| at.as_nanos().to_string(), |at| at.to_string())
}

/// The share of a part; 0 of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_doubles_its_bins_and_loses_no_request() {
        let mut timeline = Timeline::default();
        for second in 0..1_000 {
            timeline.add(Timestamp::from_nanos((1_000_000 + second) * SECOND), second % 4 != 0);
        }
        assert_eq!((timeline.bin_seconds, timeline.bins.len()), (8, 125));
        assert_eq!(timeline.bins[0], Bin { passed: 6, refused: 2 });
        assert_eq!(timeline.total(), Bin { passed: 750, refused: 250 });
    }

    #[test]
    fn timeline_is_bounded_for_any_gap() {
        let mut timeline = Timeline::default();
        timeline.add(Timestamp::EPOCH, true);
        timeline.add(Timestamp::MAX, false);
        assert!(timeline.bins.len() <= BINS_MAX);
        assert_eq!(timeline.total(), Bin { passed: 1, refused: 1 });
    }

    #[test]
    fn users_are_counted_once_and_up_to_the_bound() {
        let mut users = Users::new(3);
        for (user, refused) in
            [(1, [false, true]), (1, [false, false]), (2, [true, true]), (2, [true, false])]
        {
            users.add(0, user, refused);
        }
        users.add(1, 1, [true, false]);
        users.add(1, 2, [true, true]);
        let counts = users.counts(2);
        assert_eq!(counts[0], UserCounts { all: 2, refused: [1, 2], refused_only: [0, 1] });
        assert_eq!(counts[1], UserCounts { all: 1, refused: [1, 0], refused_only: [1, 0] });
        assert_eq!(users.left_out, 1);
    }
}
