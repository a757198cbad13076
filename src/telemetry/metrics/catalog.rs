//! The metrics of every replica.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, which ends with the unit, and with `_total` for counters.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of the labels. Label values come from the rules, and from requests only if a rule asks for it.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

impl MetricKind {
    /// The name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric =
                Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// All metrics, in the order of the page and of the documentation.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

pub(super) use metrics;

metrics! {
    DECISIONS: Counter "tollgate_decisions_total" ["domain", "rule", "code"]
        "Descriptors decided by a rule, by status code: ok or over_limit.";
    HITS: Counter "tollgate_hits_total" ["domain", "rule"]
        "Hits charged to counters, without charges that were rolled back or not stored.";
    NEAR_LIMIT_HITS: Counter "tollgate_near_limit_hits_total" ["domain", "rule"]
        "Hits that passed with more than 80 % of the limit used.";
    SHADOW_DENIALS: Counter "tollgate_shadow_denials_total" ["domain", "rule"]
        "Descriptors over the limit of a rule in shadow mode, which passed.";
    CANDIDATE_DENIALS: Counter "tollgate_candidate_denials_total" ["domain", "rule"]
        "Descriptors that the candidate of a rule would have refused.";
    SHADOW_PASSES: Counter "tollgate_shadow_passed_requests_total" []
        "Requests that passed only because of limiter.shadow_mode.";
    OVERRIDE_DECISIONS: Counter "tollgate_override_decisions_total" ["code"]
        "Descriptors decided by a limit in the request.";
    OVERRIDE_HITS: Counter "tollgate_override_hits_total" []
        "Hits charged to counters of limits in requests.";
    UNMATCHED: Counter "tollgate_unmatched_descriptors_total" []
        "Descriptors of a known domain without a rule, or whose only rule is replaced by another.";
    UNKNOWN_DOMAINS: Counter "tollgate_unknown_domain_requests_total" []
        "Requests for a domain without rules; they pass.";
    UNANSWERED: Counter "tollgate_unanswered_requests_total" ["reason"]
        "Requests answered with an error: no_rules before rules are loaded, joining before the owners are known, overloaded when too many checks wait for other replicas, invalid for malformed requests.";
    REQUEST_DURATION: Histogram "tollgate_request_duration_seconds" []
        "Time from reading a request to its decision, without delays imposed by a leaky_queue. Requests of one read batch count with their mean.";
    QUEUE_WAITING: Gauge "tollgate_queue_waiting_requests" []
        "Requests waiting for their turn in a leaky_queue.";
    QUEUE_DELAY: Histogram "tollgate_queue_delay_seconds" []
        "Delays imposed by a leaky_queue on requests that had to wait.";
    COUNTERS: Gauge "tollgate_counters" []
        "Counters in memory, including idle ones not yet removed.";
    COUNTER_BYTES: Gauge "tollgate_counters_bytes" []
        "Memory used by counters.";
    COUNTERS_EVICTED: Counter "tollgate_counters_evicted_total" ["reason"]
        "Evicted counters: idle, which changes no answer, or unexpired, when memory is full.";
    COUNTERS_REFUSED: Counter "tollgate_counters_refused_total" []
        "Charges to new keys refused because memory is full.";
    CLOCK_STEPS: Counter "tollgate_clock_steps_total" ["direction"]
        "Steps of the counter clock by more than a minute: forward with the system clock, back when the system clock was corrected.";
    RULES: Gauge "tollgate_rules" []
        "Active rules.";
    RULES_GENERATION: Gauge "tollgate_rules_generation" []
        "Rule sets activated since the start; 0 before the first.";
    RULES_INFO: Gauge "tollgate_rules_info" ["hash"]
        "Always 1; hash is that of the active rule files, equal on all replicas with the same files.";
    RULES_LOADED: Gauge "tollgate_rules_loaded_timestamp_seconds" []
        "Time at which the active rules were loaded; 0 before the first.";
    RULES_LOAD_ERRORS: Counter "tollgate_rules_load_errors_total" []
        "Contents of rule files that could not be loaded.";
    RULES_STALE: Gauge "tollgate_rules_stale" []
        "1 while the current rule files cannot be loaded, otherwise 0.";
    CONNECTIONS: Gauge "tollgate_connections" ["listener"]
        "Open connections.";
    CONNECTIONS_ACCEPTED: Counter "tollgate_connections_accepted_total" ["listener"]
        "Accepted connections, including those closed at once.";
    ACCEPT_ERRORS: Counter "tollgate_accept_errors_total" ["listener"]
        "Errors of accept.";
    CERTIFICATES_LOADED: Counter "tollgate_certificates_loaded_total" ["listener"]
        "Certificate loads, including the one at the start.";
    CERTIFICATE_ERRORS: Counter "tollgate_certificate_errors_total" ["listener"]
        "Contents of certificate files that were refused; the previous certificates stayed active.";
    CONNECTIONS_CLOSED: Counter "tollgate_connections_closed_total" ["listener", "reason"]
        "Connections closed by the server: full, idle to make room for another, handshake, slow, age, or cut with calls still open.";
    CERTIFICATE_ENDS: Gauge "tollgate_certificate_end_time_seconds" ["listener"]
        "Expiry time of the active certificate.";
    UNFINISHED_REFUSED: Counter "tollgate_unfinished_requests_refused_total" []
        "Incomplete gRPC requests refused because memory.requests was exhausted.";
    UNFINISHED_BYTES: Gauge "tollgate_unfinished_request_bytes" []
        "Memory used by incomplete gRPC requests.";
    UNSENT_BYTES: Gauge "tollgate_unsent_reply_bytes" []
        "Memory used by unsent gRPC replies, of connections with at least 16 KiB of them.";
    TOP_MISSED: Counter "tollgate_top_missed_denials_total" []
        "Denials missing from the list of the most denied keys because the list was being read.";
    LOG_LINES_DROPPED: Counter "tollgate_log_lines_dropped_total" ["reason"]
        "Dropped log lines: rate above the bound of their call site per second, output when the log output did not accept them.";
    BUILD_INFO: Gauge "tollgate_build_info" ["version"]
        "Always 1; the version of the program.";
    PROCESS_CPU: Counter "process_cpu_seconds_total" []
        "CPU time of the process, user and system.";
    PROCESS_MEMORY: Gauge "process_resident_memory_bytes" []
        "Resident memory of the process.";
    PROCESS_START: Gauge "process_start_time_seconds" []
        "Start time of the process.";
}
