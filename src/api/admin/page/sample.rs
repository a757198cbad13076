//! A sample of the numbers that the operators' page shows, and the part of it that its lines need. The page computes
//! rates from successive samples.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    fs,
    time::Duration,
};

use serde_json::{Value, json};
use tollgate_counter::{
    metrics::{Buckets, TopKeys},
    time::Timestamp,
};
use tollgate_rules::{DecisionTotals, KeyedRules, Rules};

use crate::api::{
    admin::{cluster, counters, rules::numbers, state::AdminState},
    error::Unanswered,
    format,
};

/// The maximum number of rules in a sample.
const RULES_MAX: usize = 1_000;
/// The maximum number of keys of a list in a sample, of those since the start and of those of the last seconds.
const KEYS_MAX: usize = 50;
/// The maximum number of rules in a sample that refuse most.
const REFUSING_RULES_MAX: usize = 10;
/// The time over which rates are means.
const RATE_SPAN: Duration = Duration::from_secs(10);
/// The maximum number of names that are retained of the time between two samples.
const NAMES_MAX: usize = 200;
/// Where the documentation of this version is read.
const DOCS: &str = "https://example.com/tollgate/docs/";

/// The numbers of which the page draws lines, at one instant. Counts are since the start.
#[derive(Clone, Debug)]
pub(super) struct HistoryPoint {
    pub at: Timestamp,
    durations: Buckets,
    decisions: DecisionTotals,
}

impl HistoryPoint {
    /// The fields of a point, which stand in a sample under the same names.
    pub(super) fn json(&self) -> Value {
        json!({
            "at": format::instant(self.at),
            "requests": {"count": self.durations.count, "up_to": self.durations.up_to},
            "decisions": decisions_json(&self.decisions),
        })
    }
}

/// Takes samples, and retains the totals of rules so that a sample has only those that changed.
#[derive(Debug)]
pub(super) struct PageSampler {
    sources: AdminState,
    host: Option<String>,
    hash: String,
    totals: Vec<DecisionTotals>,
    refusing_rules: RecentGrowth,
    denied: KeyGrowth,
    quotas: KeyGrowth,
}

/// What has grown of the keys of a list.
#[derive(Debug, Default)]
struct KeyGrowth {
    /// The least count of each key when it was last read.
    seen: HashMap<String, u64>,
    recent: RecentGrowth,
}

impl PageSampler {
    pub(super) fn new(sources: AdminState) -> Self {
        Self {
            sources,
            host: host(),
            hash: String::new(),
            totals: Vec::new(),
            refusing_rules: RecentGrowth::default(),
            denied: KeyGrowth::default(),
            quotas: KeyGrowth::default(),
        }
    }

    /// Forgets what has grown, because no page is open.
    pub(super) fn forget_growth(&mut self) {
        (self.refusing_rules, self.denied, self.quotas) = Default::default();
    }

    /// The numbers of lines alone, which costs less than a sample.
    pub(super) fn point(&self) -> HistoryPoint {
        let state = &self.sources;
        let rules = state.active_rules.current();
        HistoryPoint {
            at: state.api.limiter.view().now(),
            durations: state.api.metrics.duration.buckets(),
            decisions: sum(rules.rules()).plus(state.api.limiter.metrics().overrides.totals()),
        }
    }

    /// A sample as one line of JSON, and the part of it that lines need.
    pub(super) fn line(&mut self) -> (HistoryPoint, String) {
        let point = self.point();
        let rules = self.sources.active_rules.current();
        let each = self.changes(point.at, rules.rules());
        let state = &self.sources;
        let AdminState { api, readiness, started, .. } = state;
        let requests = &api.metrics;
        let metrics = state.api.limiter.metrics();
        let certificates = state.certificates.expiries().into_iter();
        let certificates = certificates
            .map(|(listener, expires)| json!({"listener": listener, "expires_at": format::instant(expires)}));
        let mut sample = point.json();
        sample["requests"]["waiting"] = requests.waiting().into();
        for reason in [Unanswered::NoRules, Unanswered::Joining, Unanswered::Overloaded, Unanswered::Invalid]
        {
            sample["requests"][reason.name()] = requests.unanswered(reason).into();
        }
        sample["unmatched"] = metrics.unmatched.get().into();
        sample["unknown_domains"] = metrics.unknown_domains.get().into();
        sample["store"] = counters::store_json(state);
        sample["rules"] = rules_json(state, &rules);
        sample["each_rule"] = each;
        sample["top"] = json!({
            "denied": self.denied.listed(point.at, &metrics.denied),
            "quotas": self.quotas.listed(point.at, &metrics.quotas),
            "missed": metrics.denied.missed(),
            "rules": refusing_json(&self.refusing_rules),
        });
        sample["process"] = json!({
            "host": self.host,
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": format::instant(*started),
            "not_ready": readiness.ready().err().map(|why| why.trim_end().to_owned()),
            "docs": DOCS,
        });
        sample["certificates"] = certificates.collect();
        sample["cluster"] = state.cluster.as_ref().map(cluster::view_json).into();
        (point, format!("{sample}\n"))
    }

    /// The totals of each rule that changed, by its index in the list of rules.
    fn changes(&mut self, now: Timestamp, rules: Option<&Rules>) -> Value {
        let Some(rules) = rules else { return Value::Null };
        if self.hash != rules.hash() {
            self.hash = rules.hash().to_owned();
            self.totals.clear();
            self.refusing_rules = RecentGrowth::default();
        }
        self.totals.resize(rules.len(), DecisionTotals::default());
        let (mut changed, mut refused) = (Vec::new(), Vec::new());
        let each = rules.domains().flat_map(|domain| domain.rules());
        for (index, (rule, before)) in each.zip(&mut self.totals).enumerate() {
            let Some(stats) = &rule.stats else { continue };
            let totals = stats.totals();
            if totals != *before {
                let decisions = |totals: &DecisionTotals| totals.ok + totals.over_limit;
                let change = decisions(&totals).saturating_sub(decisions(before));
                changed.push((Reverse(change), index, totals));
                if totals.over_limit > before.over_limit {
                    refused.push((rule.label().into_owned(), totals.over_limit - before.over_limit));
                }
                *before = totals;
            }
        }
        self.refusing_rules.add(now, refused);
        let left_out = changed.len().saturating_sub(RULES_MAX);
        if left_out > 0 {
            changed.select_nth_unstable_by_key(RULES_MAX, |(change, ..)| *change);
            changed.truncate(RULES_MAX);
        }
        let changed = changed.iter().map(|(_, index, totals)| json!([index, numbers(totals)]));
        let changed = changed.collect::<Vec<_>>();
        json!({"hash": self.hash, "changed": changed, "left_out": left_out})
    }
}

impl KeyGrowth {
    /// The keys that are most frequent since the start, and those that are now, each with its rate.
    fn listed(&mut self, now: Timestamp, keys: &TopKeys) -> Vec<Value> {
        let mut entries = keys.entries(usize::MAX);
        let mut least: HashMap<String, u64> = HashMap::with_capacity(entries.len());
        for entry in &entries {
            // Texts that were cut may be equal.
            *least.entry(entry.text.clone()).or_default() += entry.count - entry.error;
        }
        let grown = least.iter().filter_map(|(key, count)| {
            let before = self.seen.get(key).copied().unwrap_or_default();
            // A key that was out of the list meanwhile is counted anew.
            let growth = count.checked_sub(before).unwrap_or(*count);
            (growth > 0).then(|| (key.clone(), growth))
        });
        self.recent.add(now, grown.collect());
        self.seen = least;
        let rates = self.recent.rates();
        let frequent_now: HashSet<_> = rates.iter().take(KEYS_MAX).map(|(key, _)| &**key).collect();
        let rates: HashMap<_, _> = rates.iter().map(|(key, rate)| (&**key, *rate)).collect();
        let mut places = 0..;
        entries.retain(|entry| places.next() < Some(KEYS_MAX) || frequent_now.contains(&*entry.text));
        let listed = entries.into_iter().map(|entry| {
            let rate = rates.get(&*entry.text).copied().unwrap_or_default();
            json!({"key": entry.text, "count": entry.count, "error": entry.error, "rate": rate})
        });
        listed.collect()
    }
}

/// The ends of the spans between samples of the last seconds, in their order, each with the growth of counts by name.
/// The growth of the first span is not used, as its begin is unknown.
#[derive(Debug, Default)]
struct RecentGrowth(VecDeque<(Timestamp, Vec<(String, u64)>)>);

impl RecentGrowth {
    /// Adds what has grown since the sample before.
    fn add(&mut self, now: Timestamp, mut grown: Vec<(String, u64)>) {
        if grown.len() > NAMES_MAX {
            grown.select_nth_unstable_by_key(NAMES_MAX, |(_, growth)| Reverse(*growth));
            grown.truncate(NAMES_MAX);
        }
        self.0.push_back((now, grown));
        while self.0.len() > 2 && now.since(self.0[1].0) >= RATE_SPAN {
            self.0.pop_front();
        }
    }

    /// The growth of each name a second, the greatest first.
    fn rates(&self) -> Vec<(String, f64)> {
        let (Some((begin, _)), Some((end, _))) = (self.0.front(), self.0.back()) else { return Vec::new() };
        let seconds = end.since(*begin).as_secs_f64();
        if seconds <= 0.0 {
            return Vec::new();
        }
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for (name, growth) in self.0.iter().skip(1).flat_map(|(_, grown)| grown) {
            *sums.entry(name).or_default() += growth;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(name, growth)| (Reverse(*growth), *name));
        sums.into_iter().map(|(name, growth)| (name.to_owned(), growth as f64 / seconds)).collect()
    }
}

/// The name of this machine, or of the container.
fn host() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim_end().to_owned())
}

/// The rules that have refused most in the last seconds.
fn refusing_json(refusing: &RecentGrowth) -> Vec<Value> {
    let rates = refusing.rates().into_iter().take(REFUSING_RULES_MAX);
    rates.map(|(rule, rate)| json!({"rule": rule, "rate": rate})).collect()
}

/// The totals of all rules.
fn sum(rules: Option<&Rules>) -> DecisionTotals {
    let each = rules.into_iter().flat_map(Rules::each_stats);
    each.fold(DecisionTotals::default(), |sum, (_, _, stats)| sum.plus(stats.totals()))
}

fn rules_json(state: &AdminState, rules: &KeyedRules) -> Value {
    let status = state.active_rules.status();
    let counted = rules.rules().map(|rules| (rules.domains().count(), rules.len(), rules.warnings().len()));
    let (domains, rules, warnings) = counted.unwrap_or_default();
    let problems = status.last_error.as_ref().map_or(0, |error| error.problems.len());
    let overlay_problems = status.overlay_problems.as_ref().map_or(0, |problems| problems.len());
    json!({
        "generation": status.generation,
        "hash": status.hash,
        "loaded_at": status.loaded_at.map(format::instant),
        "domains": domains,
        "rules": rules,
        "warnings": warnings,
        "problems": problems,
        "overlay_problems": overlay_problems,
    })
}

fn decisions_json(totals: &DecisionTotals) -> Value {
    json!({"ok": totals.ok, "over_limit": totals.over_limit, "shadow_denials": totals.shadow_denials})
}

/// A point without requests.
#[cfg(test)]
pub(super) fn point(second: u64) -> HistoryPoint {
    HistoryPoint {
        at: Timestamp::from_nanos(second * 1_000_000_000),
        durations: Buckets { up_to: vec![(0.001, 0)], count: 0, sum: 0.0 },
        decisions: DecisionTotals::default(),
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
