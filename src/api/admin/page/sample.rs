//! A sample of the figures that the operators' page shows. The page computes rates from successive samples.

use std::{cmp::Reverse, collections::HashSet, ptr, sync::Arc};

use serde_json::{Value, json};
use tollgate_limiter::rules::{KeyedRules, Rules, Totals};

use crate::api::{
    self,
    admin::{AdminState, Certificates, cluster, format, rules::numbers, store},
    top,
};

/// The maximum number of rules in a sample.
const RULES_MAX: usize = 1_000;
/// The maximum number of rules in a sample whose paths it has.
const BUSIEST_MAX: usize = 50;
/// The maximum number of denied keys in a sample.
const KEYS_MAX: usize = 50;

/// What samples are taken from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// What the other admin endpoints read.
    pub state: AdminState,
    /// The metrics of requests.
    pub requests: Arc<api::Metrics>,
    /// The certificates of the listeners.
    pub certificates: Arc<dyn Certificates>,
}

/// Takes samples, and remembers the totals of rules so that a sample has only those that changed.
#[derive(Debug)]
pub(super) struct Sampler {
    sources: Sources,
    hash: String,
    totals: Vec<Totals>,
}

impl Sampler {
    pub(super) fn new(sources: Sources) -> Self {
        Self { sources, hash: String::new(), totals: Vec::new() }
    }

    /// A sample as one line of JSON.
    pub(super) fn line(&mut self) -> String {
        let rules = self.sources.state.active_rules.current();
        let (all, each) = self.decisions(rules.rules());
        let Sources { state, requests, certificates } = &self.sources;
        let (metrics, duration) = (state.limiter.metrics(), requests.duration.buckets());
        let overrides = metrics.overrides.totals();
        let certificates = certificates.expiries().into_iter();
        let certificates = certificates
            .map(|(listener, expires)| json!({"listener": listener, "expires_at": format::instant(expires)}));
        let sample = json!({
            "at": format::instant(state.limiter.view().now()),
            "requests": {
                "count": duration.count,
                "up_to": duration.up_to,
                "waiting": requests.waiting(),
                "no_rules": requests.no_rules.get(),
                "joining": requests.joining.get(),
                "overloaded": requests.overloaded.get(),
                "invalid": requests.invalid.get(),
            },
            "decisions": decisions_json(&all.plus(overrides)),
            "unmatched": metrics.unmatched.get(),
            "unknown_domains": metrics.unknown_domains.get(),
            "store": store::json_of(state),
            "rules": rules_json(state, &rules),
            "each_rule": each,
            "top": top::denied_json(metrics, KEYS_MAX),
            "certificates": certificates.collect::<Vec<_>>(),
            "cluster": state.cluster.as_ref().map(cluster::view_json),
        });
        format!("{sample}\n")
    }

    /// The totals of all rules, and those of each rule that changed, by its index in the list of rules. The paths of
    /// those with the most decisions since the sample before are beside them.
    fn decisions(&mut self, rules: Option<&Rules>) -> (Totals, Value) {
        let Some(rules) = rules else { return (Totals::default(), Value::Null) };
        if self.hash != rules.hash() {
            self.hash = rules.hash().to_owned();
            self.totals.clear();
        }
        self.totals.resize(rules.len(), Totals::default());
        let (mut sum, mut summed, mut changed) = (Totals::default(), HashSet::new(), Vec::new());
        let each = rules.domains().flat_map(|domain| domain.rules());
        for (index, (rule, before)) in each.zip(&mut self.totals).enumerate() {
            let Some(stats) = rule.stats() else { continue };
            let now = stats.totals();
            // Rules with equal paths share their stats.
            if summed.insert(ptr::from_ref(stats)) {
                sum = sum.plus(now);
            }
            if now != *before {
                let decisions = |totals: &Totals| totals.ok + totals.over_limit;
                let change = decisions(&now).saturating_sub(decisions(before));
                changed.push((Reverse(change), index, now, &*rule.path));
                *before = now;
            }
        }
        let left_out = changed.len().saturating_sub(RULES_MAX);
        if left_out > 0 {
            changed.select_nth_unstable_by_key(RULES_MAX, |(change, ..)| *change);
            changed.truncate(RULES_MAX);
        }
        changed.sort_unstable_by_key(|(change, ..)| *change);
        let busiest = changed.iter().take(BUSIEST_MAX).map(|(_, index, _, path)| json!([index, path]));
        let busiest = busiest.collect::<Vec<_>>();
        let changed = changed.iter().map(|(_, index, totals, _)| json!([index, numbers(totals)]));
        let changed = changed.collect::<Vec<_>>();
        (sum, json!({"hash": self.hash, "changed": changed, "left_out": left_out, "busiest": busiest}))
    }
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

fn decisions_json(totals: &Totals) -> Value {
    json!({"ok": totals.ok, "over_limit": totals.over_limit, "shadow_denials": totals.shadow_denials})
}
