//! The rate limit quota filters in the configuration of an Envoy: what ends its process, and what lets requests pass.

use serde_json::{Map, Value, json};
use tollgate_wire::finding::{DoctorFinding, listed};

use crate::doctor::{
    located::{at, field, is_true, message, place, text},
    quota_settings::{bounds_values, closes_after, contains, denies_before, fallback, repaired},
    yaml_text,
};

/// The part of a type that names the overrides of routes.
const OVERRIDE_TYPE: &str = "rate_limit_quota.v3.RateLimitQuotaOverride";
/// The maximum number of filters whose repaired matchers are displayed.
const REPAIRED_MAX: usize = 10;
const ALL_DENIED: &str = "{fallback_rate_limit: {blanket_rule: DENY_ALL}}";

/// What a configuration says about quotas.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// The domains of the filters, each with its first place.
    domains: Vec<(String, Option<String>)>,
    /// What is wrong, each with the place of the first filter.
    faults: Vec<(DoctorFinding, Option<String>)>,
    // The domain of each filter whose matchers have a fault, with the repaired matchers.
    repaired: Vec<(String, String)>,
}

impl Quotas {
    /// Adds what these fields say, without what is in them, if they are those of a filter or of an override.
    pub(super) fn add(&mut self, fields: &Map<String, Value>) {
        if text(fields, "@type").is_some_and(|name| name.ends_with(OVERRIDE_TYPE)) {
            self.add_fault(
                DoctorFinding::error(
                    "envoy_quota_override",
                    "a route or a host has a RateLimitQuotaOverride, with which Envoy does not start",
                    "remove it, and choose buckets by bucket_matchers",
                ),
                None,
            );
        }
        if message(fields, "rlqs_server").is_none() {
            return;
        }
        let domain = text(fields, "domain").unwrap_or_default();
        let place = place(fields);
        if !self.domains.iter().any(|(known, _)| *known == domain) {
            self.domains.push((domain.clone(), place.clone()));
        }
        if let Some(matcher) = message(fields, "bucket_matchers") {
            self.add_matcher(&domain, place.as_deref(), matcher);
        }
    }

    /// Whether there is a filter.
    pub(super) fn has_filter(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Adds what is wrong with a filter, if it is the first one with this fault.
    fn add_fault(&mut self, fault: DoctorFinding, place: Option<&str>) {
        if !self.faults.iter().any(|(known, _)| known.id == fault.id) {
            self.faults.push((fault, place.map(str::to_owned)));
        }
    }

    /// Adds a warning about a filter, if it is the first one with this fault.
    fn add_warning(&mut self, id: &str, what: &str, repair: &str) {
        self.add_fault(DoctorFinding::warning(id, what, repair), None);
    }

    fn add_matcher(&mut self, domain: &str, place: Option<&str>, matcher: &Map<String, Value>) {
        let mut own = Self::default();
        if message(matcher, "on_no_match").is_none() {
            own.add_warning(
                "envoy_quota_no_match",
                "bucket_matchers has no on_no_match: requests that match nothing pass and are not counted",
                "add on_no_match with a bucket whose value is a string_value",
            );
        }
        own.add_settings(&Value::Object(matcher.clone()), false);
        let repaired = (domain.to_owned(), yaml_text::block(&json!({"bucket_matchers": repaired(matcher)})));
        // A config dump repeats a filter for each listener.
        if !own.faults.is_empty() && !self.repaired.contains(&repaired) && self.repaired.len() < REPAIRED_MAX
        {
            self.repaired.push(repaired);
        }
        own.faults.into_iter().for_each(|(fault, _)| self.add_fault(fault, place));
    }

    /// Adds the settings of buckets in `value`. `is_bounded`: whether an expression, a list or a text matches the
    /// values.
    fn add_settings(&mut self, value: &Value, is_bounded: bool) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add_settings(item, is_bounded)),
            Value::Object(fields) => {
                let is_bounded = is_bounded || message(fields, "predicate").is_some_and(bounds_values);
                if is_true(fields, "keep_matching") {
                    self.add_warning(
                        "envoy_quota_preview",
                        "keep_matching makes a preview of a bucket, which Envoy enforces if the preview is denied",
                        "remove keep_matching",
                    );
                }
                if message(fields, "bucket_id_builder").is_some()
                    && field(fields, "reporting_interval").is_some()
                {
                    self.add_bucket(fields, is_bounded);
                }
                fields.values().for_each(|value| self.add_settings(value, is_bounded));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn add_bucket(&mut self, settings: &Map<String, Value>, is_bounded: bool) {
        let deny_before = format!("set no_assignment_behavior: {ALL_DENIED}");
        let before = fallback(settings, "no_assignment_behavior");
        if before.is_some_and(|strategy| message(strategy, "token_bucket").is_some()) {
            self.add_fault(
                DoctorFinding::error(
                    "envoy_quota_crash",
                    "no_assignment_behavior has a token_bucket, which ends the process of Envoy at its second request",
                    deny_before,
                ),
                None,
            );
        } else if !denies_before(settings) {
            self.add_warning(
                "envoy_quota_open_before",
                "without no_assignment_behavior that denies, all requests of a bucket pass until its first assignment",
                &deny_before,
            );
        }
        if !closes_after(settings) {
            self.add_warning(
                "envoy_quota_open_after",
                "without expired_assignment_behavior that denies for long, requests pass while no server answers",
                "set expired_assignment_behavior: {expired_assignment_behavior_timeout: 31536000s, fallback_rate_limit: {blanket_rule: DENY_ALL}}",
            );
        }
        if !is_bounded && contains(settings, "custom_value") {
            self.add_warning(
                "envoy_quota_free_value",
                "a bucket has a custom_value that no matcher bounds: each new value is a new bucket, and a value that is not UTF-8 gets no assignment",
                "match the same input with value_match: {safe_regex: {google_re2: {}, regex: \"[a-z0-9-]{1,32}\"}}",
            );
        }
    }

    /// Findings for a server with these domains.
    pub(super) fn findings(&self, domains: &[String]) -> Vec<DoctorFinding> {
        let unknown = self.domains.iter().filter(|(domain, _)| !domains.contains(domain));
        let unknown = unknown.map(|(domain, place)| {
            let at = at(place.as_deref());
            DoctorFinding::warning(
                "envoy_quota_unknown_domain",
                format!(
                    "the quota filter{at} names the domain {domain:?}, which no rules have: its requests pass"
                ),
                format!(
                    "set its `domain` to one of the rules, or add rules for it; the rules have {}",
                    listed(domains.iter().map(|domain| format!("{domain:?}")))
                ),
            )
        });
        let repaired = self.repaired.iter().map(|(domain, yaml)| {
            DoctorFinding::advice(
                "envoy_quota_repaired",
                format!(
                    "the matchers of the quota filter of domain {domain:?}, with the faults above repaired"
                ),
                "put them in place of those of the filter, with the expressions that fit your values",
            )
            .with_snippet(yaml.clone())
        });
        let faults = self.faults.iter().map(|(fault, place)| {
            let filter = place.as_ref().map(|place| format!(" (the filter at {place})")).unwrap_or_default();
            DoctorFinding { what: fault.what.clone() + &filter, ..fault.clone() }
        });
        unknown.chain(faults).chain(repaired).collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_rules::yaml;

    use super::*;
    use crate::doctor::located::objects;

    const DEPLOYED: &str = include_str!("../../../deploy/envoy/envoy-rlqs.yaml");
    const DENY: &str = "fallback_rate_limit: { blanket_rule: DENY_ALL }";

    fn findings(text: &str) -> Vec<DoctorFinding> {
        let mut quotas = Quotas::default();
        let stream = yaml::load(text.as_bytes());
        assert!(stream.problems.is_empty(), "{text}");
        let documents: Vec<_> =
            stream.documents.iter().map(|document| document.to_json(&mut Vec::new())).collect();
        documents.iter().flat_map(objects).for_each(|fields| quotas.add(fields));
        assert!(quotas.has_filter());
        quotas.findings(&["quotas".to_owned()])
    }

    /// The findings, without the repaired matchers, in which nothing may be found.
    fn ids(text: &str) -> Vec<String> {
        let mut found = findings(text);
        for repaired in found.extract_if(.., |finding| finding.id == "envoy_quota_repaired") {
            let filter = format!("rlqs_server: {{}}\ndomain: quotas\n{}", repaired.snippet.unwrap());
            assert_eq!(findings(&filter), [], "{filter}");
        }
        found.into_iter().map(|finding| finding.id).collect()
    }

    /// What is found if all values are free, in the last bucket too.
    fn found_of_free_values() -> Vec<String> {
        let free = "tenant: { custom_value: { name: x, typed_config: { \"@type\": y } } }";
        let text = DEPLOYED.replace("tenant: { string_value: \"none\" }", free);
        ids(&text.replace("safe_regex: { google_re2: {}, regex: \"[a-z0-9-]{1,32}\" }", "prefix: a"))
    }

    #[test]
    fn deployed_configuration_has_no_findings() {
        assert_eq!(ids(DEPLOYED), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_quota_filter_is_found() {
        let bucket = "fallback_rate_limit: { token_bucket: { max_tokens: 1, fill_interval: 1s } }";
        for (part, by, id) in [
            ("domain: quotas", "domain: other", "envoy_quota_unknown_domain"),
            (DENY, bucket, "envoy_quota_crash"),
            (DENY, "fallback_rate_limit: { blanket_rule: ALLOW_ALL }", "envoy_quota_open_before"),
            ("no_assignment_behavior:", "request_headers_to_add:", "envoy_quota_open_before"),
            ("31536000s", "60s", "envoy_quota_open_after"),
            (
                "expired_assignment_behavior_timeout: 31536000s",
                "reuse_last_assignment: {}",
                "envoy_quota_open_after",
            ),
            ("on_no_match:", "unknown:", "envoy_quota_no_match"),
            ("safe_regex:", "prefix:", "envoy_quota_free_value"),
            (
                "on_match:",
                "on_match:\n                                keep_matching: true",
                "envoy_quota_preview",
            ),
        ] {
            assert!(DEPLOYED.contains(part), "{part}");
            assert_eq!(ids(&DEPLOYED.replacen(part, by, 1)), [id], "{by}");
        }
        assert_eq!(found_of_free_values(), ["envoy_quota_free_value"]);
        let with_override = format!(
            "{DEPLOYED}\nx: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.{OVERRIDE_TYPE}}}\n"
        );
        assert_eq!(ids(&with_override), ["envoy_quota_override"]);
    }
}
