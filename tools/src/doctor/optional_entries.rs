//! Descriptors that Envoy does not send for a request that lacks a header or a query parameter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tollgate_wire::finding::{DoctorFinding, listed};

use crate::doctor::{
    action::{EntryAction, EntryPresence},
    located::{at, field, is_true, place, rate_limits},
};

/// The id of the findings.
const ID: &str = "envoy_optional_entry";

/// What clients can leave out of their requests to avoid a limit.
#[derive(Debug, Default)]
pub(super) struct OptionalEntries {
    /// Parts of requests without which no descriptor of the same `rate_limits` is certain, each with its first place.
    alone: BTreeMap<String, Option<String>>,
    /// Parts of requests without which another descriptor of the same `rate_limits` is still sent, each with its first
    /// place.
    with_others: BTreeMap<String, Option<String>>,
    /// Headers and query parameters whose values are sent, as clients write them.
    written_by_clients: BTreeSet<String>,
}

/// An item of `rate_limits`, which makes one descriptor.
#[derive(Debug)]
struct RateLimitItem<'v> {
    stage: u64,
    /// Whether the descriptor is sent before the request passes.
    decides: bool,
    actions: Vec<EntryAction<'v>>,
    at: Option<String>,
}

impl OptionalEntries {
    /// Adds the optional entries in the `rate_limits` of a message.
    pub(super) fn add(&mut self, fields: &Map<String, Value>) {
        let limits: Vec<_> = rate_limits(fields).filter_map(RateLimitItem::from_fields).collect();
        for limit in &limits {
            let stays = |other: &RateLimitItem<'_>| other.stage == limit.stage && other.is_certain();
            let found = if limits.iter().any(stays) { &mut self.with_others } else { &mut self.alone };
            for part in limit.avoided_without() {
                let avoided = format!("{part} of {}", limit.descriptor());
                found.entry(avoided).or_insert_with(|| limit.at.clone());
            }
            self.written_by_clients.extend(limit.actions.iter().filter_map(|action| action.part.clone()));
        }
    }

    /// The headers and query parameters whose values are sent, as clients write them.
    pub(super) fn written_by_clients(&self) -> impl ExactSizeIterator<Item = String> {
        self.written_by_clients.iter().cloned()
    }

    pub(super) fn findings(&self) -> Vec<DoctorFinding> {
        let mut findings = Vec::new();
        if !self.alone.is_empty() {
            findings.push(DoctorFinding::warning(
                ID,
                format!(
                    "a request without these has no descriptor with a limit, and no other one of the same rate_limits is sent for every request: {}",
                    listed(with_places(&self.alone))
                ),
                "add a descriptor that every request has, for example of remote_address, or set skip_if_absent: true after a generic_key and write a rule for the entries that are left",
            ));
        }
        if !self.with_others.is_empty() {
            findings.push(DoctorFinding::advice(
                ID,
                format!(
                    "a request without these has one descriptor less, and avoids its limit; others of the same rate_limits are still sent: {}",
                    listed(with_places(&self.with_others))
                ),
                "set skip_if_absent: true after a generic_key and write a rule for the entries that are left, if clients must not avoid the limit",
            ));
        }
        findings
    }
}

fn with_places(found: &BTreeMap<String, Option<String>>) -> impl Iterator<Item = String> {
    found.iter().map(|(avoided, place)| format!("{avoided}{}", at(place.as_deref())))
}

impl<'v> RateLimitItem<'v> {
    fn from_fields(fields: &'v Map<String, Value>) -> Option<Self> {
        let actions = field(fields, "actions")?.as_array()?.iter();
        Some(Self {
            stage: field(fields, "stage").and_then(Value::as_u64).unwrap_or(0),
            decides: !is_true(fields, "apply_on_stream_done"),
            actions: actions.filter_map(|action| EntryAction::from_fields(action.as_object()?)).collect(),
            at: place(fields),
        })
    }

    /// What is missing in a request without this descriptor, or with a descriptor without entries, which no rule
    /// matches.
    fn avoided_without(&self) -> impl Iterator<Item = &str> {
        let is_empty_without =
            self.actions.iter().all(|action| matches!(action.presence, EntryPresence::WithPart { .. }));
        self.actions.iter().filter_map(move |action| match &action.presence {
            EntryPresence::WithPart { is_skipped } if is_empty_without || !is_skipped => {
                action.part.as_deref()
            }
            EntryPresence::Always | EntryPresence::WithPart { .. } | EntryPresence::Unknown => None,
        })
    }

    /// Whether each request is decided by a descriptor of this item.
    fn is_certain(&self) -> bool {
        let is_known = self.actions.iter().all(|action| action.presence != EntryPresence::Unknown);
        self.decides && is_known && self.avoided_without().next().is_none()
    }

    fn descriptor(&self) -> String {
        self.actions.iter().map(|action| format!("({})", action.label)).collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_rules::yaml;

    use super::*;
    use crate::doctor::action::REQUIRED_HEADERS;

    const GENERIC: &str = "{generic_key: {descriptor_key: route, descriptor_value: login}}";
    const HEADER: &str = "{request_headers: {header_name: x-account, descriptor_key: account}}";
    const SKIPPED: &str =
        "{request_headers: {header_name: x-account, descriptor_key: account, skip_if_absent: true}}";
    const QUERY: &str = "{query_parameters: {query_parameter_name: q, descriptor_key: query}}";
    const ADDRESS: &str = "{actions: [{remote_address: {}}]}";

    /// The level of each finding with what it lists.
    fn found(message: &str) -> Vec<(&'static str, String)> {
        let stream = yaml::load(message.as_bytes());
        assert_eq!(stream.problems, []);
        let message = stream.documents[0].to_json(&mut Vec::new());
        let mut entries = OptionalEntries::default();
        entries.add(message.as_object().unwrap());
        // A config dump repeats routes.
        entries.add(message.as_object().unwrap());
        let findings = entries.findings();
        assert!(findings.iter().all(|finding| finding.id == ID));
        let listed = |what: &str| what.rsplit_once(": ").unwrap().1.to_owned();
        findings.iter().map(|finding| (finding.level.name(), listed(&finding.what))).collect()
    }

    fn limits(items: &[&str]) -> Vec<(&'static str, String)> {
        found(&format!("rate_limits: [{}]", items.join(", ")))
    }

    fn one(action: &str) -> String {
        format!("{{actions: [{action}]}}")
    }

    #[test]
    fn header_that_drops_its_descriptor_is_named() {
        let account = "header \"x-account\" of (account)".to_owned();
        assert_eq!(limits(&[&one(HEADER)]), [("warning", account.clone())]);
        assert_eq!(limits(&[&one(HEADER), ADDRESS]), [("advice", account)]);
        let nested = "header \"x-account\" of (route)(account)".to_owned();
        assert_eq!(limits(&[&one(&format!("{GENERIC}, {HEADER}"))]), [("warning", nested)]);
        let query = "query parameter \"q\" of (query)".to_owned();
        assert_eq!(limits(&[&one(QUERY)]), [("warning", query)]);
    }

    #[test]
    fn skipped_header_is_named_only_if_no_entry_is_left() {
        assert_eq!(limits(&[&one(&format!("{GENERIC}, {SKIPPED}"))]), []);
        let account = "header \"x-account\" of (account)".to_owned();
        assert_eq!(limits(&[&one(SKIPPED)]), [("warning", account)]);
        let both = "header \"x-account\" of (account)(query), query parameter \"q\" of (account)(query)";
        let query = QUERY.replace("}}", ", skip_if_absent: true}}");
        assert_eq!(limits(&[&one(&format!("{SKIPPED}, {query}"))]), [("warning", both.to_owned())]);
    }

    #[test]
    fn headers_of_every_request_are_not_named() {
        for name in REQUIRED_HEADERS {
            let action = HEADER.replace("x-account", &format!("\"{name}\""));
            assert_eq!(limits(&[&one(&action)]), [], "{name}");
        }
    }

    #[test]
    fn other_descriptors_count_only_if_they_decide_each_request() {
        let metadata = one("{metadata: {descriptor_key: a, metadata_key: {key: b}}}");
        let later = ADDRESS.replace("]}", "], apply_on_stream_done: true}");
        let other_stage = ADDRESS.replace("]}", "], stage: 1}");
        for other in [&metadata, &later, &other_stage, &one(QUERY)] {
            let levels: Vec<_> = limits(&[&one(HEADER), other]).into_iter().map(|(level, _)| level).collect();
            assert_eq!(levels, ["warning"], "{other}");
        }
        let staged = one(HEADER).replace("]}", "], stage: 1}");
        assert_eq!(limits(&[&staged, &other_stage])[0].0, "advice");
        assert_eq!(limits(&[&metadata]), []);
    }

    #[test]
    fn local_limits_and_other_lists_are_not_read() {
        let limits = format!("rate_limits: [{}]", one(HEADER));
        assert_eq!(found(&limits).len(), 1);
        let kind = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
        assert_eq!(found(&format!("{{\"@type\": {kind}, {limits}}}")), []);
        assert_eq!(found("rate_limits: [{other: 1}, 2]"), []);
    }

    #[test]
    fn json_names_are_read_too() {
        let action = r#"{"requestHeaders": {"headerName": "x", "descriptorKey": "k", "skipIfAbsent": true}}"#;
        let message = |actions: &str| format!(r#"{{"rateLimits": [{{"actions": [{actions}]}}]}}"#);
        assert_eq!(found(&message(action)), [("warning", "header \"x\" of (k)".to_owned())]);
        let generic = r#"{"genericKey": {"descriptorValue": "v"}}"#;
        assert_eq!(found(&message(&format!("{generic}, {action}"))), []);
    }
}
