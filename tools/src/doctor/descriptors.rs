//! The descriptors that the configuration of an Envoy makes, for the server to compare with its rules.

use serde_json::{Map, Value};
use tollgate_wire::finding::{EnvoyCharge, EnvoyDescriptor, EnvoyEntry};

use crate::doctor::{
    action::{EntryAction, fixed},
    located::{field, is_true, message, place, rate_limits, text},
};

/// The maximum number of descriptors that are compared. A config dump of a large mesh has some hundreds.
const DESCRIPTORS_MAX: usize = 5_000;

/// The descriptors of a configuration.
#[derive(Debug, Default)]
pub(super) struct SentDescriptors {
    /// Descriptors of network filters, each in the domain of its filter, and those of routes that name a domain.
    in_domain: Vec<EnvoyDescriptor>,
    /// Descriptors of routes, which any HTTP filter sends.
    of_routes: Vec<EnvoyDescriptor>,
    /// Whether routes are in the configuration. Otherwise another file or a control plane has them.
    pub(super) has_routes: bool,
}

impl SentDescriptors {
    /// Adds the descriptors that these fields make, without what is in them.
    pub(super) fn add(&mut self, fields: &Map<String, Value>) {
        self.has_routes |= field(fields, "virtual_hosts").is_some();
        let domain = text(fields, "domain").filter(|domain| !domain.is_empty());
        for item in rate_limits(fields) {
            self.add_route(domain.as_deref(), item);
        }
        let Some(Value::Array(items)) = field(fields, "descriptors") else { return };
        if message(fields, "rate_limit_service").is_none() {
            return;
        }
        let domain = domain.unwrap_or_default();
        for item in items.iter().filter_map(Value::as_object) {
            let entries = field(item, "entries").and_then(Value::as_array).into_iter().flatten();
            let entries =
                entries.map(|entry| network_filter_entry(entry.as_object()?)).collect::<Option<_>>();
            self.in_domain(&domain, entries.unwrap_or_default(), EnvoyCharge::Request, place(item));
        }
    }

    fn add_route(&mut self, domain: Option<&str>, item: &Map<String, Value>) {
        // A limit in the request needs no rule.
        if field(item, "limit").is_some() {
            return;
        }
        let actions = field(item, "actions").and_then(Value::as_array).into_iter().flatten();
        let entries =
            actions.map(|action| EntryAction::from_fields(action.as_object()?)?.entry).collect::<Option<_>>();
        let entries: Vec<_> = entries.unwrap_or_default();
        let charge = charge(item);
        match domain {
            Some(domain) => self.in_domain(domain, entries, charge, place(item)),
            None if self.of_routes.len() < DESCRIPTORS_MAX => {
                self.of_routes.push(EnvoyDescriptor {
                    domains: Vec::new(),
                    entries,
                    charge,
                    at: place(item),
                });
            }
            None => {}
        }
    }

    fn in_domain(&mut self, domain: &str, entries: Vec<EnvoyEntry>, charge: EnvoyCharge, at: Option<String>) {
        if self.in_domain.len() < DESCRIPTORS_MAX {
            self.in_domain.push(EnvoyDescriptor { domains: vec![domain.to_owned()], entries, charge, at });
        }
    }

    /// Whether the configuration has no descriptors.
    pub(super) fn is_empty(&self) -> bool {
        self.of_routes.is_empty() && self.in_domain.is_empty()
    }

    /// All descriptors, each once, with its first place; those of routes in these domains.
    pub(super) fn all(&self, domains: &[String]) -> Vec<EnvoyDescriptor> {
        let of_routes = self.of_routes.iter().filter(|_| !domains.is_empty());
        let of_routes = of_routes.map(|one| EnvoyDescriptor { domains: domains.to_vec(), ..one.clone() });
        let mut all: Vec<_> = self.in_domain.iter().cloned().chain(of_routes).collect();
        // A config dump repeats routes. The sort is stable.
        let content = |one: &EnvoyDescriptor| EnvoyDescriptor { at: None, ..one.clone() };
        all.sort_by_cached_key(content);
        all.dedup_by_key(|one| content(one));
        all
    }
}

fn charge(item: &Map<String, Value>) -> EnvoyCharge {
    let at_end = is_true(item, "apply_on_stream_done");
    let addend = message(item, "hits_addend");
    // A 64-bit number is a text in the JSON form of Protocol Buffers.
    let number = addend.and_then(|addend| {
        let number = field(addend, "number")?;
        number.as_u64().or_else(|| number.as_str()?.parse().ok())
    });
    let has_format = addend.is_some_and(|addend| field(addend, "format").is_some());
    let is_refund = addend.is_some_and(|addend| is_true(addend, "is_negative_hits"));
    match (at_end, number) {
        (true, _) if is_refund => EnvoyCharge::EndRefund,
        (true, Some(2..)) => EnvoyCharge::EndByCost,
        (true, _) if has_format => EnvoyCharge::EndByCost,
        (true, _) => EnvoyCharge::End,
        (false, Some(0)) if !has_format => EnvoyCharge::Peek,
        (false, _) => EnvoyCharge::Request,
    }
}

/// An entry of the network filter; `None` if its key depends on the connection.
fn network_filter_entry(entry: &Map<String, Value>) -> Option<EnvoyEntry> {
    let key = text(entry, "key")?;
    (!key.contains('%')).then(|| EnvoyEntry { key, value: fixed(text(entry, "value")) })
}

#[cfg(test)]
mod tests {
    use tollgate_rules::yaml;

    use super::*;

    fn sent(message: &str) -> SentDescriptors {
        let stream = yaml::load(message.as_bytes());
        assert_eq!(stream.problems, [], "{message}");
        let message = stream.documents[0].to_json(&mut Vec::new());
        let mut sent = SentDescriptors::default();
        sent.add(message.as_object().unwrap());
        sent
    }

    /// The descriptors of routes, each with its charge.
    fn of_routes(limits: &str) -> Vec<(String, EnvoyCharge)> {
        let all = sent(&format!("rate_limits: [{limits}]")).all(&["edge".to_owned()]);
        all.into_iter().map(|one| (one.displayed(), one.charge)).collect()
    }

    #[test]
    fn each_action_makes_its_entry() {
        for (action, entry) in [
            ("remote_address: {}", "(remote_address)"),
            ("generic_key: {descriptor_value: a}", "(generic_key=a)"),
            ("generic_key: {descriptor_key: k, descriptor_value: a}", "(k=a)"),
            ("generic_key: {descriptor_key: k, descriptor_value: '%REQ(x)%'}", "(k)"),
            ("header_value_match: {descriptor_value: v, headers: []}", "(header_match=v)"),
            ("query_parameter_value_match: {descriptor_value: v}", "(query_match=v)"),
            ("request_headers: {header_name: x, descriptor_key: k}", "(k)"),
            ("requestHeaders: {headerName: x, descriptorKey: k}", "(k)"),
            ("query_parameters: {query_parameter_name: x, descriptor_key: k}", "(k)"),
            ("metadata: {descriptor_key: k, metadata_key: {key: a}}", "(k)"),
            ("extension: {name: x, typed_config: {descriptor_key: k, text: y}}", "(k)"),
            ("extension: {name: x, typed_config: {other: k}}", ""),
        ] {
            let found = of_routes(&format!("{{actions: [{{{action}}}]}}"));
            assert_eq!(found, [(entry.to_owned(), EnvoyCharge::Request)], "{action}");
        }
    }

    #[test]
    fn charge_depends_on_time_and_hits() {
        for (fields, charge) in [
            ("stage: 0", EnvoyCharge::Request),
            ("hits_addend: {number: 0}", EnvoyCharge::Peek),
            ("hits_addend: {number: '0'}", EnvoyCharge::Peek),
            ("hits_addend: {format: '%REQ(x)%'}", EnvoyCharge::Request),
            ("apply_on_stream_done: true", EnvoyCharge::End),
            ("apply_on_stream_done: true, hits_addend: {number: 1}", EnvoyCharge::End),
            ("apply_on_stream_done: true, hits_addend: {number: 5}", EnvoyCharge::EndByCost),
            ("applyOnStreamDone: true, hitsAddend: {format: '%REQ(x)%'}", EnvoyCharge::EndByCost),
            (
                "apply_on_stream_done: true, hits_addend: {number: 1, is_negative_hits: true}",
                EnvoyCharge::EndRefund,
            ),
        ] {
            let found = of_routes(&format!("{{actions: [{{remote_address: {{}}}}], {fields}}}"));
            assert_eq!(found[0].1, charge, "{fields}");
        }
    }

    #[test]
    fn descriptors_have_the_domain_of_their_filter() {
        let domains = |message: &str| {
            let all = sent(message).all(&["edge".to_owned()]);
            all.into_iter().map(|one| one.domains.join(",")).collect::<Vec<_>>()
        };
        let limits = "rate_limits: [{actions: [{remote_address: {}}]}]";
        assert_eq!(domains(limits), ["edge"]);
        assert_eq!(domains(&format!("domain: own\n{limits}")), ["own"]);
        let network = "domain: tcp\nrate_limit_service: {}\ndescriptors: [{entries: [{key: a, value: b}]}]";
        assert_eq!(domains(network), ["tcp"]);
        assert_eq!(domains("descriptors: [{entries: [{key: a, value: b}]}]"), [] as [&str; 0]);
    }

    #[test]
    fn local_limits_and_limits_of_requests_are_left_out() {
        assert_eq!(of_routes("{actions: [{remote_address: {}}], limit: {dynamic_metadata: {}}}"), []);
        let local = "\"@type\": x.LocalRateLimit\nrate_limits: [{actions: [{remote_address: {}}]}]";
        assert_eq!(sent(local).all(&["edge".to_owned()]), []);
    }
}
