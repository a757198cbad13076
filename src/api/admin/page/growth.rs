//! What has grown most in the last seconds, of counts that are too many to be sent with each sample.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tollgate_counter::time::Timestamp;

/// The time over which rates are means.
const RATE_SPAN: Duration = Duration::from_secs(10);
/// The maximum number of names that are retained of the time between two samples.
const NAMES_MAX: usize = 200;

/// The growth of counts by name, between samples of the last seconds.
// Invariant: the spans follow each other.
#[derive(Debug, Default)]
pub(super) struct RecentGrowth {
    begin: Option<Timestamp>,
    spans: VecDeque<GrowthSpan>,
}

#[derive(Debug)]
struct GrowthSpan {
    end: Timestamp,
    grown: Vec<(String, u64)>,
}

impl RecentGrowth {
    /// Adds what has grown since the sample before. The first sample begins the time, and what has grown before it is
    /// dropped.
    pub(super) fn add(&mut self, now: Timestamp, mut grown: Vec<(String, u64)>) {
        if self.begin.is_none() {
            self.begin = Some(now);
            return;
        }
        if grown.len() > NAMES_MAX {
            grown.select_nth_unstable_by_key(NAMES_MAX, |(_, growth)| Reverse(*growth));
            grown.truncate(NAMES_MAX);
        }
        self.spans.push_back(GrowthSpan { end: now, grown });
        while self.spans.len() > 1 && now.since(self.spans[0].end) >= RATE_SPAN {
            self.begin = self.spans.pop_front().map(|span| span.end);
        }
    }

    /// The growth of each name a second, the greatest first.
    pub(super) fn rates(&self) -> Vec<(String, f64)> {
        let (Some(begin), Some(last)) = (self.begin, self.spans.back()) else { return Vec::new() };
        let seconds = last.end.since(begin).as_secs_f64();
        if seconds <= 0.0 {
            return Vec::new();
        }
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for (name, growth) in self.spans.iter().flat_map(|span| &span.grown) {
            *sums.entry(name).or_default() += growth;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(name, growth)| (Reverse(*growth), *name));
        sums.into_iter().map(|(name, growth)| (name.to_owned(), growth as f64 / seconds)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Timestamp {
        Timestamp::from_nanos(number * 1_000_000_000)
    }

    fn grown(name: &str, growth: u64) -> Vec<(String, u64)> {
        vec![(name.to_owned(), growth)]
    }

    #[test]
    fn rates_are_means_of_the_last_ten_seconds() {
        let mut recent = RecentGrowth::default();
        recent.add(second(100), grown("before", 1_000));
        assert_eq!(recent.rates(), []);
        recent.add(second(102), grown("a", 10));
        assert_eq!(recent.rates(), [("a".to_owned(), 5.0)]);
        for number in 103..=112 {
            recent.add(second(number), grown("b", 20));
        }
        assert_eq!(recent.rates(), [("b".to_owned(), 20.0)]);
    }

    #[test]
    fn names_that_grow_most_are_retained() {
        let mut recent = RecentGrowth::default();
        recent.add(second(0), Vec::new());
        recent.add(second(1), (1..=1_000).map(|number| (number.to_string(), number)).collect());
        let rates = recent.rates();
        assert_eq!(rates.len(), NAMES_MAX);
        assert_eq!((&*rates[0].0, &*rates[NAMES_MAX - 1].0), ("1000", "801"));
    }
}
