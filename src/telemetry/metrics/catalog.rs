//! Every metric of a replica that counts by itself.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, which ends with its unit, and with `_total` where it only grows.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: MetricKind,
    /// The names of its labels. Their values come from the rules, never from a request unless the rules say so.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, from 0 at the start of the process.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts between bounds.
    Histogram,
}

impl MetricKind {
    /// Its name in the text format.
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

        /// All of them, in the order of the page and of the documentation.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

pub(super) use metrics;

metrics! {
    DECISIONS: Counter "tollgate_decisions_total" ["domain", "rule", "code"]
        "Descriptors that a rule decided, by the code of their status: ok or over_limit.";
    HITS: Counter "tollgate_hits_total" ["domain", "rule"]
        "Hits charged to counters; what was taken back or not kept is not among them.";
    NEAR_LIMIT_HITS: Counter "tollgate_near_limit_hits_total" ["domain", "rule"]
        "Hits that passed when more than 80 % of the limit was used.";
    SHADOW_DENIALS: Counter "tollgate_shadow_denials_total" ["domain", "rule"]
        "Descriptors that would have been over the limit of a rule in shadow mode, and passed.";
    CANDIDATE_DENIALS: Counter "tollgate_candidate_denials_total" ["domain", "rule"]
        "Descriptors that the candidate of a rule would have refused.";
    SHADOW_PASSES: Counter "tollgate_shadow_passed_requests_total" []
        "Requests that passed only because of limiter.shadow_mode.";
    OVERRIDE_DECISIONS: Counter "tollgate_override_decisions_total" ["code"]
        "Descriptors decided by a limit that the caller sent along.";
    OVERRIDE_HITS: Counter "tollgate_override_hits_total" []
        "Hits charged to counters of limits that callers sent along.";
    UNMATCHED: Counter "tollgate_unmatched_descriptors_total" []
        "Descriptors of a known domain that no rule is for, or only one that another replaces.";
    UNKNOWN_DOMAINS: Counter "tollgate_unknown_domain_requests_total" []
        "Requests for a domain that no rule file has; they pass.";
    UNANSWERED: Counter "tollgate_unanswered_requests_total" ["reason"]
        "Requests answered with an error: no_rules while none are loaded, joining while it is not known who counts, overloaded where too many checks wait for other replicas, invalid where the request is at fault.";
    REQUEST_DURATION: Histogram "tollgate_request_duration_seconds" []
        "Time from a request read to its decision, without the wait for a turn in a queue; of those that a connection reads together, the mean.";
    QUEUE_WAITING: Gauge "tollgate_queue_waiting_requests" []
        "Requests that wait for their turn in a leaky_queue now.";
    QUEUE_DELAY: Histogram "tollgate_queue_delay_seconds" []
        "Waits that a leaky_queue imposed, of requests that had to wait.";
    COUNTERS: Gauge "tollgate_counters" []
        "Counters in memory, idle ones that are not swept yet included.";
    COUNTER_BYTES: Gauge "tollgate_counters_bytes" []
        "Memory that counters take.";
    COUNTERS_EVICTED: Counter "tollgate_counters_evicted_total" ["reason"]
        "Counters forgotten: idle ones, which is free, and unexpired ones for want of memory.";
    COUNTERS_REFUSED: Counter "tollgate_counters_refused_total" []
        "Charges to new keys for which there was no memory.";
    CLOCK_STEPS: Counter "tollgate_clock_steps_total" ["direction"]
        "Steps of the clock of counters by more than a minute: forward with the system's clock, back when that was put right.";
    RULES: Gauge "tollgate_rules" []
        "Rules in force.";
    RULES_GENERATION: Gauge "tollgate_rules_generation" []
        "Sets of rules that have been in force since the start; 0 while there are none.";
    RULES_INFO: Gauge "tollgate_rules_info" ["hash"]
        "Always 1; the hash of the rule files in force, equal on all replicas that read the same.";
    RULES_LOADED: Gauge "tollgate_rules_loaded_timestamp_seconds" []
        "When the rules in force were loaded; 0 while there are none.";
    RULES_LOAD_ERRORS: Counter "tollgate_rules_load_errors_total" []
        "Contents of rule files that could not be loaded.";
    RULES_STALE: Gauge "tollgate_rules_stale" []
        "1 while the rule files hold something that cannot be loaded, otherwise 0.";
    CONNECTIONS: Gauge "tollgate_connections" ["listener"]
        "Connections that are open.";
    CONNECTIONS_ACCEPTED: Counter "tollgate_connections_accepted_total" ["listener"]
        "Connections accepted, those included that were then closed at once.";
    ACCEPT_ERRORS: Counter "tollgate_accept_errors_total" ["listener"]
        "Times that the system could not hand over a connection.";
    CERTIFICATES_LOADED: Counter "tollgate_certificates_loaded_total" ["listener"]
        "Times that certificates were taken, the one at the start included.";
    CERTIFICATE_ERRORS: Counter "tollgate_certificate_errors_total" ["listener"]
        "Contents of certificate files that were refused; the old ones stayed in force.";
    CONNECTIONS_CLOSED: Counter "tollgate_connections_closed_total" ["listener", "reason"]
        "Connections that we have ended: full, idle to make room for another, handshake, slow, age, or cut with calls still open.";
    CERTIFICATE_ENDS: Gauge "tollgate_certificate_end_time_seconds" ["listener"]
        "When the certificate in force ends.";
    UNFINISHED_REFUSED: Counter "tollgate_unfinished_requests_refused_total" []
        "gRPC requests that had not arrived whole and were refused because memory.requests was used up.";
    UNFINISHED_BYTES: Gauge "tollgate_unfinished_request_bytes" []
        "Memory for gRPC requests that have not arrived whole.";
    UNSENT_BYTES: Gauge "tollgate_unsent_reply_bytes" []
        "Memory for gRPC replies that are not sent yet, of connections with 16 KiB of them or more.";
    TOP_MISSED: Counter "tollgate_top_missed_denials_total" []
        "Denials that the list of the most denied keys left out, because it was being read.";
    LOG_LINES_DROPPED: Counter "tollgate_log_lines_dropped_total" ["reason"]
        "Log lines that were not written: rate beyond the lines of one place in a second, output because it did not take them.";
    BUILD_INFO: Gauge "tollgate_build_info" ["version"]
        "Always 1; the version of the program.";
    PROCESS_CPU: Counter "process_cpu_seconds_total" []
        "CPU time of the process, user and system.";
    PROCESS_MEMORY: Gauge "process_resident_memory_bytes" []
        "Memory of the process that is in RAM.";
    PROCESS_START: Gauge "process_start_time_seconds" []
        "When the process started.";
}
