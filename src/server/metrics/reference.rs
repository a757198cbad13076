//! Metrics of rules under the names of envoyproxy/ratelimit, for dashboards that read them.

use std::collections::BTreeMap;

use tollgate_rules::{DecisionTotals, Series};
use tollgate_telemetry::metrics::{Family, metrics};

/// Domain, first and second level of a rule's path.
type Labels = (String, String, String);

/// The totals of rules, those of deeper levels together.
pub(super) struct RuleTotals(BTreeMap<Labels, DecisionTotals>);

impl RuleTotals {
    pub(super) fn from_rules(rules: &[(Series, DecisionTotals)]) -> Self {
        let mut sums: BTreeMap<Labels, DecisionTotals> = BTreeMap::new();
        for (Series { domain, rule }, totals) in rules {
            let path = rule.strip_prefix(&**domain).unwrap_or(rule).trim_start_matches('.');
            // As there, a value with a dot counts as several levels.
            let mut levels = path.split('.').map(str::to_owned);
            let [first, second] = [(); 2].map(|()| levels.next().unwrap_or_default());
            let sum = sums.entry((domain.to_string(), first, second)).or_default();
            *sum = sum.plus(*totals);
        }
        Self(sums)
    }

    fn each(&self, family: &mut Family<'_>, number: fn(&DecisionTotals) -> u64) {
        for ((domain, first, second), totals) in &self.0 {
            family.sample(&[domain, first, second], number(totals));
        }
    }
}

metrics! { RuleTotals;
    Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"]
        "As tollgate_hits_total."
        => |all, family| all.each(family, |totals| totals.hits);
    Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"]
        "As tollgate_decisions_total with the code ok."
        => |all, family| all.each(family, |totals| totals.ok);
    Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"]
        "As tollgate_near_limit_hits_total."
        => |all, family| all.each(family, |totals| totals.near_limit_hits);
    Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"]
        "As tollgate_decisions_total with the code over_limit."
        => |all, family| all.each(family, |totals| totals.over_limit);
    Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"]
        "As tollgate_shadow_denials_total."
        => |all, family| all.each(family, |totals| totals.shadow_denials);
}
