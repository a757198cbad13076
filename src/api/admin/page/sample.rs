//! A sample of the numbers that the operators' page shows, and the part of it that its lines need. The page computes
//! rates from successive samples.

use std::{cmp::Reverse, collections::HashSet, ptr, sync::Arc};

use serde_json::{Value, json};
use tollgate_counter::{metrics::Buckets, time::Timestamp};
use tollgate_rules::{DecisionTotals, KeyedRules, Rules};

use crate::api::{
    self,
    admin::{AdminState, Certificates, cluster, counters, format, rules::numbers},
};

/// The maximum number of rules in a sample.
const RULES_MAX: usize = 1_000;
/// The maximum number of denied keys in a sample, and of keys of quotas.
const KEYS_MAX: usize = 50;

/// What samples are taken from.
#[derive(Clone, Debug)]
pub struct SampleSources {
    /// What the other admin endpoints read.
    pub state: AdminState,
    /// The metrics of requests.
    pub requests: Arc<api::ApiMetrics>,
    /// The certificates of the listeners.
    pub certificates: Arc<dyn Certificates>,
}

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
    sources: SampleSources,
    hash: String,
    totals: Vec<DecisionTotals>,
}

impl PageSampler {
    pub(super) fn new(sources: SampleSources) -> Self {
        Self { sources, hash: String::new(), totals: Vec::new() }
    }

    /// The numbers of lines alone, which costs less than a sample.
    pub(super) fn point(&self) -> HistoryPoint {
        let SampleSources { state, requests, .. } = &self.sources;
        let rules = state.active_rules.current();
        HistoryPoint {
            at: state.limiter.view().now(),
            durations: requests.duration.buckets(),
            decisions: sum(rules.rules()).plus(state.limiter.metrics().overrides.totals()),
        }
    }

    /// A sample as one line of JSON, and the part of it that lines need.
    pub(super) fn line(&mut self) -> (HistoryPoint, String) {
        let point = self.point();
        let rules = self.sources.state.active_rules.current();
        let each = self.changes(rules.rules());
        let SampleSources { state, requests, certificates } = &self.sources;
        let metrics = state.limiter.metrics();
        let certificates = certificates.expiries().into_iter();
        let certificates = certificates
            .map(|(listener, expires)| json!({"listener": listener, "expires_at": format::instant(expires)}));
        let mut sample = point.json();
        sample["requests"]["waiting"] = requests.waiting().into();
        sample["requests"]["no_rules"] = requests.no_rules.get().into();
        sample["requests"]["joining"] = requests.joining.get().into();
        sample["requests"]["overloaded"] = requests.overloaded.get().into();
        sample["requests"]["invalid"] = requests.invalid.get().into();
        sample["unmatched"] = metrics.unmatched.get().into();
        sample["unknown_domains"] = metrics.unknown_domains.get().into();
        sample["store"] = counters::store_json(state);
        sample["rules"] = rules_json(state, &rules);
        sample["each_rule"] = each;
        sample["top"] = counters::top_json(metrics, KEYS_MAX);
        sample["certificates"] = certificates.collect();
        sample["cluster"] = state.cluster.as_ref().map(cluster::view_json).into();
        (point, format!("{sample}\n"))
    }

    /// The totals of each rule that changed, by its index in the list of rules.
    fn changes(&mut self, rules: Option<&Rules>) -> Value {
        let Some(rules) = rules else { return Value::Null };
        if self.hash != rules.hash() {
            self.hash = rules.hash().to_owned();
            self.totals.clear();
        }
        self.totals.resize(rules.len(), DecisionTotals::default());
        let mut changed = Vec::new();
        let each = rules.domains().flat_map(|domain| domain.rules());
        for (index, (rule, before)) in each.zip(&mut self.totals).enumerate() {
            let Some(stats) = rule.stats() else { continue };
            let now = stats.totals();
            if now != *before {
                let decisions = |totals: &DecisionTotals| totals.ok + totals.over_limit;
                let change = decisions(&now).saturating_sub(decisions(before));
                changed.push((Reverse(change), index, now));
                *before = now;
            }
        }
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

/// The totals of all rules.
fn sum(rules: Option<&Rules>) -> DecisionTotals {
    let rules = rules.into_iter().flat_map(Rules::domains).flat_map(|domain| domain.rules());
    // Rules with equal paths share their stats.
    let mut summed = HashSet::new();
    let stats = rules.filter_map(|rule| rule.stats()).filter(|stats| summed.insert(ptr::from_ref(*stats)));
    stats.fold(DecisionTotals::default(), |sum, stats| sum.plus(stats.totals()))
}

fn rules_json(state: &AdminState, rules: &KeyedRules) -> Value {
    let status = state.active_rules.status();
    let counted = rules.rules().map(|rules| (rules.domains().count(), rules.len(), rules.warnings().len()));
    let (domains, rules, warnings) = counted.unwrap_or_default();
    let problems = status.last_error.as_ref().map_or(0, |error| error.problems.len());
    let overlay_problems = status.overlay_problems.as_ref().map_or(0, |problems| problems.len());
    json!({
        "generation": status.generation,
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
