//! The rate limit filters and clusters in the configuration of an Envoy.

use std::{collections::BTreeMap, fmt, path::Path, time::Duration};

use serde_json::{Map, Value};
use tollgate_counter::files;
use tollgate_rules::nearest;
use tollgate_wire::finding::{DoctorFinding, EnvoyDescriptor, listed};

use crate::doctor::{
    descriptors::SentDescriptors,
    located::{self, at, field, is_true, message, place, text},
    optional_entries::OptionalEntries,
    quotas::Quotas,
};

/// The maximum size of a configuration, in bytes. A config dump of a large mesh has some ten megabytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// How long Envoy waits for an answer unless the filter has a timeout.
const TIMEOUT_DEFAULT: Duration = Duration::from_millis(20);
/// The size of headers that Envoy accepts by default, in KiB.
const HEADERS_KB_DEFAULT: u64 = 60;
/// The maximum size of a call to the server, in KiB.
const MESSAGE_KB_MAX: u64 = 4 * 1024;
/// A timeout above which an outage of the server delays every request noticeably.
const TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// What a configuration says about rate limits.
#[derive(Debug, Default)]
pub(super) struct Config {
    filters: Vec<RateLimitFilter>,
    clusters: BTreeMap<String, EnvoyCluster>,
    optional_entries: OptionalEntries,
    descriptors: SentDescriptors,
    quotas: Quotas,
    /// The largest size of the headers of a request, in KiB.
    headers_kb: Option<u64>,
    /// Whether Envoy sends the trace context of requests, a part of which clients write.
    has_tracing: bool,
}

/// A rate limit filter, for HTTP or for TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RateLimitFilter {
    domain: String,
    /// Whether the filter limits requests, by the descriptors of their routes, and not connections, by descriptors of
    /// its own.
    is_http: bool,
    /// `None` for the default.
    timeout: Option<Duration>,
    denies_on_failure: bool,
    /// The name of the Envoy cluster; `None` for a client that is not `envoy_grpc`.
    cluster: Option<String>,
    transport_api_version: String,
    at: Option<String>,
}

/// A cluster of Envoy.
#[derive(Debug)]
struct EnvoyCluster {
    speaks_http2: bool,
    at: Option<String>,
}

impl Config {
    /// Reads files that together are the configuration of an Envoy.
    pub(super) fn read<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<Self, String> {
        let mut config = Self::default();
        for path in paths {
            let named = |why: String| format!("--envoy: {}: {why}", path.display());
            let bytes = files::read(path, FILE_BYTES_MAX).map_err(|error| named(error.to_string()))?;
            config.parse(&bytes, &path.display().to_string()).map_err(named)?;
        }
        Ok(config)
    }

    /// Reads a file with this name.
    fn parse(&mut self, bytes: &[u8], name: &str) -> Result<(), String> {
        for fields in located::documents(bytes, name)?.iter().flat_map(located::objects) {
            if message(fields, "rate_limit_service").is_some() {
                let filter = RateLimitFilter::from_fields(fields);
                // A config dump repeats a filter for each listener.
                if !self.filters.iter().any(|known| filter.is_as(known)) {
                    self.filters.push(filter);
                }
            }
            if let Some(name) = cluster_name(fields) {
                let cluster = EnvoyCluster { speaks_http2: speaks_http2(fields), at: place(fields) };
                self.clusters.insert(name, cluster);
            }
            let headers_kb = field(fields, "max_request_headers_kb").and_then(Value::as_u64);
            self.headers_kb = self.headers_kb.max(headers_kb);
            self.has_tracing |= message(fields, "tracing").is_some();
            self.optional_entries.add(fields);
            self.descriptors.add(fields);
            self.quotas.add(fields);
        }
        Ok(())
    }

    /// The descriptors that it makes, for the server to compare with its rules.
    pub(super) fn descriptors(&self) -> Vec<EnvoyDescriptor> {
        let http = self.filters.iter().filter(|filter| filter.is_http);
        let mut domains: Vec<_> = http.map(|filter| filter.domain.clone()).collect();
        domains.sort();
        domains.dedup();
        self.descriptors.all(&domains)
    }

    /// The finding that no route has descriptors.
    fn without_descriptors(&self) -> Option<DoctorFinding> {
        const ID: &str = "envoy_without_descriptors";
        const REPAIR: &str =
            "add `rate_limits` with actions to the routes or virtual hosts; docs/envoy.md shows them";
        if !self.descriptors.is_empty() || !self.filters.iter().any(|filter| filter.is_http) {
            return None;
        }
        Some(if self.descriptors.has_routes {
            DoctorFinding::warning(
                ID,
                "no route of the configuration has rate_limits, so the filter asks nothing and limits nothing",
                REPAIR,
            )
        } else {
            DoctorFinding::advice(
                ID,
                "the file has no routes; the filter asks only for those with rate_limits, which another file or a control plane has",
                format!("give those files too, each with --envoy, or a config dump of the Envoy; {REPAIR}"),
            )
        })
    }

    /// Findings for a server with these domains; `delays` says whether a rule may delay requests.
    pub(super) fn findings(&self, domains: &[String], delays: bool) -> Vec<DoctorFinding> {
        if self.filters.is_empty() && !self.quotas.has_filter() {
            return vec![DoctorFinding::warning(
                "envoy_without_filter",
                "the Envoy configuration has no rate limit filter: no request is limited",
                "add envoy.filters.http.ratelimit with a rate_limit_service; docs/envoy.md shows it",
            )];
        }
        let of_filters = self.filters.iter().flat_map(|filter| self.of_filter(filter, domains, delays));
        of_filters
            .chain(self.without_descriptors())
            .chain(self.optional_entries.findings())
            .chain(self.quotas.findings(domains))
            .collect()
    }

    /// The finding that a filter lets requests pass whose call fails. Clients can cause such a failure if what they write
    /// makes a call that is too large.
    fn failure_mode_finding(&self, filter: &RateLimitFilter) -> DoctorFinding {
        let id = "envoy_failure_mode";
        let passes = format!("{filter} lets every request pass while no server answers");
        let repair = "set failure_mode_deny: true if a limit must hold during an outage; leave it if availability matters more";
        let written = self.optional_entries.written_by_clients();
        let headers_kb = self.headers_kb.unwrap_or(HEADERS_KB_DEFAULT);
        let number = u64::try_from(written.len()).unwrap_or(u64::MAX);
        let (too_large, bound) = if headers_kb.saturating_mul(number) >= MESSAGE_KB_MAX {
            (
                format!(
                    "values of its descriptors, which can be larger together than a call may be: {}",
                    listed(written)
                ),
                format!("times the number of such values ({number}) below 4 MiB"),
            )
        } else if self.has_tracing && headers_kb > HEADERS_KB_DEFAULT {
            (
                "the trace context that it sends, which can be larger than the headers of a call may be"
                    .to_owned(),
                format!("at most {HEADERS_KB_DEFAULT} KiB"),
            )
        } else {
            return DoctorFinding::advice(id, format!("{passes} (failure_mode_deny: false)"), repair);
        };
        DoctorFinding::warning(
            id,
            format!(
                "{passes}, and each request whose call ends with an error (failure_mode_deny: false); clients write {too_large}"
            ),
            format!(
                "{repair}. Otherwise keep max_request_headers_kb ({headers_kb} KiB) {bound}: docs/hardening.md"
            ),
        )
    }

    fn of_filter(&self, filter: &RateLimitFilter, domains: &[String], delays: bool) -> Vec<DoctorFinding> {
        let domain = &filter.domain;
        let mut findings = Vec::new();
        if !domains.contains(domain) {
            let meant = nearest(domain, domains.iter().map(String::as_str));
            let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
            findings.push(DoctorFinding::warning(
                "envoy_unknown_domain",
                format!(
                    "the filter{} names the domain {domain:?}, which no rules have: its requests pass{hint}",
                    at(filter.at.as_deref())
                ),
                format!(
                    "set its `domain` to one of the rules, or add rules for it; the rules have {}",
                    listed(domains.iter().map(|domain| format!("{domain:?}")))
                ),
            ));
        }
        if !filter.denies_on_failure {
            findings.push(self.failure_mode_finding(filter));
        }
        findings.extend(filter.timeout_finding(delays));
        if filter.transport_api_version != "V3" {
            findings.push(DoctorFinding::error(
                "envoy_transport_api_version",
                format!("{filter} does not ask with version 3 of the protocol"),
                "set transport_api_version: V3 in its rate_limit_service",
            ));
        }
        let Some(cluster) = &filter.cluster else { return findings };
        match self.clusters.get(cluster) {
            Some(EnvoyCluster { speaks_http2: true, .. }) => {}
            Some(EnvoyCluster { speaks_http2: false, at: place }) => findings.push(DoctorFinding::error(
                "envoy_cluster_without_http2",
                format!("the Envoy cluster {cluster:?}{} does not speak HTTP/2, which gRPC needs: every call fails", at(place.as_deref())),
                "add explicit_http_config with http2_protocol_options to its typed_extension_protocol_options",
            )),
            None if cluster.contains('|') => findings.push(DoctorFinding::advice(
                "envoy_cluster_missing",
                format!("the Envoy cluster {cluster:?} is one of Istio, which speaks HTTP/2 to it only if the port of its Service says so"),
                "name the port of the Service grpc or grpc-..., or set its appProtocol to grpc; docs/gateways/istio.md",
            )),
            None => findings.push(DoctorFinding::warning(
                "envoy_cluster_missing",
                format!("the Envoy cluster {cluster:?}, which {filter} asks, is not in the file"),
                "add the cluster, unless a control plane delivers it",
            )),
        }
        findings
    }
}

impl RateLimitFilter {
    fn from_fields(fields: &Map<String, Value>) -> Self {
        let service = message(fields, "rate_limit_service");
        let grpc = service.and_then(|service| message(service, "grpc_service"));
        let cluster = grpc.and_then(|grpc| message(grpc, "envoy_grpc"));
        Self {
            domain: text(fields, "domain").unwrap_or_default(),
            is_http: field(fields, "descriptors").is_none(),
            timeout: text(fields, "timeout").and_then(|text| duration(&text)),
            denies_on_failure: is_true(fields, "failure_mode_deny"),
            cluster: cluster.and_then(|cluster| text(cluster, "cluster_name")),
            // The default of the field, which means version 2.
            transport_api_version: service
                .and_then(|service| text(service, "transport_api_version"))
                .unwrap_or_else(|| "AUTO".to_owned()),
            at: place(fields),
        }
    }

    /// Whether `other` is the same filter, perhaps at another place.
    fn is_as(&self, other: &Self) -> bool {
        Self { at: other.at.clone(), ..self.clone() } == *other
    }

    fn timeout_finding(&self, delays: bool) -> Option<DoctorFinding> {
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let millis = timeout.as_millis();
        if timeout <= TIMEOUT_DEFAULT && delays {
            return Some(DoctorFinding::warning(
                "envoy_timeout",
                format!(
                    "{self} waits {millis} ms for an answer, and a rule with leaky_queue holds answers back for longer"
                ),
                "set `timeout` of the filter above the longest delay of the rules",
            ));
        }
        if timeout > TIMEOUT_MAX && !delays {
            return Some(DoctorFinding::advice(
                "envoy_timeout",
                format!(
                    "{self} waits {millis} ms for an answer: while no server answers, each request waits as long"
                ),
                "lower `timeout` of the filter, for example to 0.1s",
            ));
        }
        self.timeout.is_none().then(|| {
            DoctorFinding::advice(
                "envoy_timeout",
                format!(
                    "{self} has no timeout: Envoy waits {millis} ms, and treats a later answer as a failure"
                ),
                "set `timeout` of the filter to what a request may wait",
            )
        })
    }
}

impl fmt::Display for RateLimitFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the filter of domain {:?}{}", self.domain, at(self.at.as_deref()))
    }
}

/// The name, if these are the fields of a cluster.
fn cluster_name(fields: &Map<String, Value>) -> Option<String> {
    let has = |name| field(fields, name).is_some();
    let is_cluster =
        ["load_assignment", "connect_timeout", "eds_cluster_config", "lb_policy"].into_iter().any(has);
    let name = field(fields, "name")?.as_str()?;
    is_cluster.then(|| name.to_owned())
}

fn speaks_http2(cluster: &Map<String, Value>) -> bool {
    let options = field(cluster, "typed_extension_protocol_options").into_iter();
    let options = options.filter_map(Value::as_object).flat_map(|extensions| extensions.values());
    let kinds = ["explicit_http_config", "auto_config", "use_downstream_protocol_config"];
    let is_http2 = options.filter_map(Value::as_object).any(|options| {
        let chosen = kinds.into_iter().filter_map(|kind| field(options, kind)?.as_object());
        chosen.into_iter().any(|chosen| field(chosen, "http2_protocol_options").is_some())
    });
    // The field of Envoy 1.16 and before still works.
    is_http2 || field(cluster, "http2_protocol_options").is_some()
}

/// A duration in the JSON form of Protocol Buffers: seconds with an `s`.
fn duration(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTSTRAP: &str = "
static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          route_config:
            virtual_hosts:
            - rate_limits: [{actions: [{remote_address: {}}]}]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              domain: edge
              timeout: 0.1s
              failure_mode_deny: true
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: tollgate}}
  clusters:
  - name: tollgate
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        explicit_http_config: {http2_protocol_options: {}}
";

    const OPTIONAL_HEADER: &str = "
  routes:
  - virtual_hosts:
    - rate_limits:
      - actions:
        - request_headers: {header_name: x-user, descriptor_key: user}
  clusters:
";

    fn config(text: &str) -> Config {
        let mut config = Config::default();
        config.parse(text.as_bytes(), "envoy.yaml").unwrap();
        config
    }

    /// The ids of the findings after a part of the bootstrap is replaced.
    fn ids(part: &str, by: &str, delays: bool) -> Vec<String> {
        assert!(BOOTSTRAP.contains(part), "{part}");
        let config = config(&BOOTSTRAP.replace(part, by));
        config.findings(&["edge".to_owned()], delays).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn bootstrap_without_faults_has_no_findings() {
        assert!(ids("domain: edge", "domain: edge", false).is_empty());
    }

    #[test]
    fn each_fault_of_a_bootstrap_is_found() {
        for (part, by, id) in [
            ("domain: edge", "domain: other", "envoy_unknown_domain"),
            ("failure_mode_deny: true", "failure_mode_deny: false", "envoy_failure_mode"),
            ("timeout: 0.1s", "stage: 0", "envoy_timeout"),
            ("timeout: 0.1s", "timeout: 5s", "envoy_timeout"),
            ("transport_api_version: V3", "transport_api_version: V2", "envoy_transport_api_version"),
            ("                transport_api_version: V3\n", "", "envoy_transport_api_version"),
            ("http2_protocol_options", "http_protocol_options", "envoy_cluster_without_http2"),
            ("cluster_name: tollgate", "cluster_name: other", "envoy_cluster_missing"),
            ("rate_limit_service", "ext_authz_service", "envoy_without_filter"),
            ("- rate_limits:", "- routes:", "envoy_without_descriptors"),
            ("  clusters:\n", OPTIONAL_HEADER, "envoy_optional_entry"),
        ] {
            assert_eq!(ids(part, by, false), [id], "{by}");
        }
        assert_eq!(ids("timeout: 0.1s", "timeout: 0.02s", true), ["envoy_timeout"]);
    }

    #[test]
    fn failure_mode_is_a_warning_if_clients_can_exceed_a_call() {
        let open = BOOTSTRAP.replace("failure_mode_deny: true", "failure_mode_deny: false");
        let found = |text: &str| {
            let findings = config(text).findings(&["edge".to_owned()], false);
            let of_mode = findings.into_iter().find(|finding| finding.id == "envoy_failure_mode").unwrap();
            (of_mode.level.name(), of_mode.what)
        };
        assert_eq!(found(&open).0, "advice");
        for header in ["x-user", "\":authority\""] {
            let limits = OPTIONAL_HEADER.replace("x-user", header);
            let written = open.replace("  clusters:\n", &limits);
            assert_eq!(found(&written).0, "advice", "60 KiB of headers fit into a call");
            let large =
                written.replace("route_config:", "max_request_headers_kb: 4096\n          route_config:");
            let (level, what) = found(&large);
            assert_eq!(level, "warning");
            assert!(what.ends_with(&format!(": header \"{}\"", header.trim_matches('"'))), "{what}");
        }
        let traced = |kb: u64| {
            let fields =
                format!("max_request_headers_kb: {kb}\n          tracing: {{}}\n          route_config:");
            found(&open.replace("route_config:", &fields))
        };
        assert_eq!(traced(60).0, "advice");
        let (level, what) = traced(61);
        assert!(level == "warning" && what.contains("the trace context"), "{what}");
    }

    #[test]
    fn names_of_json_are_read_too() {
        let filter = r#"{"domain": "edge", "failureModeDeny": true, "timeout": "0.100s", "rateLimitService":
            {"transportApiVersion": "V3", "grpcService": {"envoyGrpc": {"clusterName": "t"}}}}"#;
        let routes = r#"{"virtualHosts": [{"rateLimits": [{"actions": [{"remoteAddress": {}}]}]}]}"#;
        let cluster = r#"{"cluster": {"name": "t", "connectTimeout": "1s", "http2ProtocolOptions": {}}}"#;
        let dump = format!(
            r#"{{"configs": [{{"x": {filter}}}, {{"y": {filter}}}, {{"z": [{cluster}, {routes}]}}]}}"#
        );
        let config = config(&dump);
        assert_eq!(config.filters.len(), 1, "equal filters are one");
        assert_eq!(config.findings(&["edge".to_owned()], false), []);
    }

    #[test]
    fn findings_name_line_and_column() {
        let text = BOOTSTRAP
            .replace("domain: edge", "domain: other")
            .replace("http2_protocol_options", "http_protocol_options")
            .replace("timeout: 0.1s", "stage: 0")
            .replace("  clusters:\n", OPTIONAL_HEADER);
        let findings = config(&text).findings(&["edge".to_owned()], false);
        let places = findings.iter().map(|finding| {
            let place = finding.what.split_once("envoy.yaml:").map_or("", |(_, place)| place);
            let end = place.find(|letter: char| !letter.is_ascii_digit() && letter != ':');
            (&*finding.id, place[..end.unwrap_or(place.len())].trim_end_matches(':'))
        });
        let expected = [
            ("envoy_unknown_domain", "13:15"),
            ("envoy_timeout", "13:15"),
            ("envoy_cluster_without_http2", "26:5"),
            ("envoy_optional_entry", "23:9"),
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        let sent = config(BOOTSTRAP).descriptors();
        assert_eq!(sent[0].displayed(), "(remote_address) at envoy.yaml:9:29");
    }
}
