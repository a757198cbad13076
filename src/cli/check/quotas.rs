//! Warnings of limits that the rate limit quota service does not divide.

use tollgate_limiter::{
    algorithm::{AlgorithmName, Excess},
    divider::is_divisible,
    rules::{OnOwnerUnavailable, Problem, Rule, Rules},
};

/// Adds a warning for each limit that is not divided.
pub(super) fn warn(rules: &mut Rules) {
    let all = rules.domains().flat_map(|domain| domain.rules());
    let warning = |rule: &Rule| Some(Problem { location: rule.location.clone(), what: unserved(rule)? });
    let warnings = all.filter_map(warning).collect();
    rules.add_warnings(warnings);
}

/// Why the limit of a rule is not divided, and what its buckets let pass; `None` if it is divided, or if there is none.
pub(in crate::cli) fn unserved(rule: &Rule) -> Option<String> {
    let limit = rule.limit().filter(|limit| !is_divisible(limit))?;
    let key = if limit.penalized().is_some() {
        "penalty".to_owned()
    } else {
        match (limit.excess(), limit.algorithm()) {
            (Excess::Count, _) => "count_denied".to_owned(),
            (Excess::Overdraft(_), _) => "overdraft".to_owned(),
            (Excess::Refuse, Some(AlgorithmName::SlidingWindow)) => "sub_windows".to_owned(),
            (Excess::Refuse, algorithm) => {
                format!("algorithm: {}", algorithm.map_or("classic", AlgorithmName::name))
            }
        }
    };
    let passes = match rule.on_owner_unavailable {
        _ if rule.shadow_mode => "everything passes its buckets, as in shadow mode",
        OnOwnerUnavailable::Allow => "everything passes its buckets, as `on_owner_unavailable` says",
        OnOwnerUnavailable::Deny | OnOwnerUnavailable::LocalShare => "nothing passes its buckets",
    };
    Some(format!("RLQS does not divide a limit with `{key}`, so {passes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warnings of a rule with this limit.
    fn warnings(limit: &str) -> Vec<String> {
        let text = format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {{{limit}}}\n");
        let mut rules = Rules::parse("a.yaml", &text).unwrap();
        warn(&mut rules);
        rules.warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limit_that_is_not_divided_is_a_warning_with_its_key() {
        for (limit, key) in [
            ("unit: day, requests_per_unit: 5, algorithm: sliding_log", "algorithm: sliding_log"),
            ("unit: day, requests_per_unit: 5, algorithm: leaky_queue, burst: 1", "algorithm: leaky_queue"),
            ("unit: day, requests_per_unit: 5, algorithm: fixed_window, count_denied: true", "count_denied"),
            ("unit: day, requests_per_unit: 5, algorithm: token_bucket, overdraft: true", "overdraft"),
            ("unit: day, requests_per_unit: 6, algorithm: sliding_window, sub_windows: 6", "sub_windows"),
            (
                "unit: day, requests_per_unit: 5, algorithm: fixed_window, penalty: {after: 3, first: 1m}",
                "penalty",
            ),
        ] {
            let what = format!(
                "a.yaml:4:15: RLQS does not divide a limit with `{key}`, so nothing passes its buckets"
            );
            assert_eq!(warnings(limit), [what]);
        }
        let open = "unit: day, requests_per_unit: 5, algorithm: sliding_log, on_owner_unavailable: allow";
        assert!(
            warnings(open)[0].ends_with("so everything passes its buckets, as `on_owner_unavailable` says")
        );
    }

    #[test]
    fn limit_that_is_divided_is_no_warning() {
        let token_bucket = "unit: day, requests_per_unit: 5, algorithm: token_bucket";
        for limit in ["unit: day, requests_per_unit: 5", token_bucket, "unlimited: true"] {
            assert_eq!(warnings(limit), Vec::<String>::new(), "{limit}");
        }
    }
}
