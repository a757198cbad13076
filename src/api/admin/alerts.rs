//! The alerts of docs/metrics.md as findings: what the metrics of this replica say now and in the last hour.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tollgate_counter::lock::lock;
use tollgate_wire::finding::{
    DoctorFinding,
    FindingLevel::{self, Error, Warning},
    listed,
};

use self::MetricCondition::{Grew, Is, Slow, Stays};

/// The time between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(30);
/// The longest time that a check looks back.
const HISTORY: Duration = Duration::from_secs(60 * 60);
/// The number of observations of a histogram from which the share of slow ones says something.
const OBSERVATIONS_MIN: f64 = 100.0;
/// The share of slow observations from which they are a finding.
const SLOW_SHARE: f64 = 0.01;

/// Reads metrics by their names.
pub trait MetricReader: fmt::Debug + Send + Sync {
    /// The series of these metrics as the page of metrics writes them, each with its value.
    fn series(&self, metrics: &[&str]) -> MetricValues;
}

/// Values of series by their names with labels.
pub type MetricValues = BTreeMap<String, f64>;

/// The condition of a metric for which an alert fires, as a finding.
#[derive(Debug)]
struct MetricCheck {
    /// The name of the alert.
    alert: &'static str,
    id: &'static str,
    level: FindingLevel,
    /// The metric.
    metric: &'static str,
    /// Labels of which a series has one; any series if there are none.
    only: &'static [&'static str],
    condition: MetricCondition,
    /// What was found; `{}` stands for the values.
    what: &'static str,
    repair: &'static str,
}

/// When a series is a finding.
#[derive(Clone, Copy, Debug)]
enum MetricCondition {
    /// The series has grown within so many minutes.
    Grew(u64),
    /// The series has such a value now.
    Is(fn(f64) -> bool),
    /// The series has had such values for so many minutes, while another metric grew if one is named.
    Stays(fn(f64) -> bool, u64, Option<&'static str>),
    /// One observation in a hundred within so many minutes is beyond the bucket with this bound.
    Slow(&'static str, u64),
}

/// The alerts of deploy/monitoring that one replica can find by its metrics. Those of its state are found elsewhere.
const CHECKS: &[MetricCheck] = &[
    metric(
        "TollgateRequestsUnanswered",
        Warning,
        UNANSWERED,
        ("tollgate_unanswered_requests_total", &[]),
        Grew(5),
        "requests were answered with an error in the last 5 minutes, by reason: {}",
        "correct the caller if they are invalid; otherwise the replica is not ready for them, or the owners are overloaded: docs/api.md says what each reason means",
    ),
    metric(
        "TollgateSlow",
        Warning,
        "slow_decisions",
        ("tollgate_request_duration_seconds", &[]),
        Slow("0.005", 10),
        "of the decisions of the last 10 minutes, {} took longer than 5 ms",
        "give the replica more CPU, or add replicas",
    ),
    metric(
        "TollgateCountersEvicted",
        Warning,
        "counters_evicted",
        ("tollgate_counters_evicted_total", &["reason=\"unexpired\""]),
        Grew(5),
        "{} counters were evicted for lack of memory in the last 5 minutes; each gave its key a fresh limit early",
        MEMORY_REPAIR,
    ),
    metric(
        "TollgateCountersRefused",
        Error,
        "memory_full",
        ("tollgate_counters_refused_total", &[]),
        Grew(5),
        "{} charges to new keys found no memory in the last 5 minutes",
        "raise store.memory_limit, or shorten the windows of rules on keys that callers choose freely; store.on_full says whether such requests pass",
    ),
    metric(
        "TollgateOwnLimitsRefused",
        Warning,
        "own_limits_refused",
        ("tollgate_own_limit_changes_total", &["result=\"no_memory\""]),
        Grew(5),
        "{} limits of their own found no memory in the last 5 minutes",
        "raise store.memory_limit, of which limits of their own take an eighth, or clear those that are not needed",
    ),
    metric(
        "TollgateLimitLookupsFail",
        Warning,
        "limit_lookups_failed",
        ("tollgate_limit_lookups_total", &["outcome=\"failed\""]),
        Grew(5),
        "{} look-ups of limits of keys were not answered in the last 5 minutes: known limits stay, and other keys have the numbers of their rule",
        "see the log for the reason; store.redis or limits.url names the store",
    ),
    metric(
        "TollgateClockStepped",
        Warning,
        "clock_stepped",
        ("tollgate_clock_steps_total", &[]),
        Grew(60),
        "the system clock has stepped by more than a minute in the last hour, which ends windows early: {}",
        "look at the time synchronisation (NTP) of the machine",
    ),
    metric(
        "TollgateRulesCopyErrors",
        Warning,
        "rules_copy_failed",
        ("tollgate_rules_url_copy_errors_total", &[]),
        Grew(60),
        "the copy of the rules of the URL could not be read or written {} times in the last hour: a start without the server would have no rules, or old ones",
        "make rules.url.copy writable for the process, and its disk not full; the log has the error",
    ),
    metric(
        "TollgateXdsDisconnected",
        Warning,
        "control_plane_lost",
        ("tollgate_xds_connected", &[]),
        Is(|connected| connected == 0.0),
        "the control plane is not connected: the active rules stay as they are, and changes do not arrive",
        "start the control plane, and check rules.xds.url, its certificates and the network; the log has the reason",
    ),
    metric(
        "TollgateXdsConflicts",
        Warning,
        "control_plane_conflicts",
        ("tollgate_xds_conflicts", &[]),
        Is(is_positive),
        "{} descriptors of the control plane are left out, because another one has a limit for the same key and value",
        "change one of the two policies; `warnings` of `/rules` names them",
    ),
    metric(
        "TollgateOverlayMisfits",
        Warning,
        "overlay_misfits",
        ("tollgate_overlay_misfits", &[]),
        Is(is_positive),
        "{} rules are without what the overlay has for them, because it does not fit",
        "correct the file of rules.overlay; `warnings` of `/rules` says which rules and why",
    ),
    metric(
        "TollgateAcceptErrors",
        Error,
        "accept_errors",
        ("tollgate_accept_errors_total", &[]),
        Grew(5),
        "connections could not be accepted in the last 5 minutes, by listener: {}",
        "raise the number of file descriptors of the process (`ulimit -n`, LimitNOFILE); the log has the error of the system",
    ),
    metric(
        "TollgateConnectionsRefused",
        Error,
        "connections_refused",
        ("tollgate_connections_closed_total", &["reason=\"full\""]),
        Grew(5),
        "connections were closed at once in the last 5 minutes because a listener is full: {}",
        "raise max_connections of the listener (grpc.max_connections, http.max_connections), or add replicas",
    ),
    metric(
        "TollgateRequestsUnfinished",
        Warning,
        "requests_unfinished",
        ("tollgate_unfinished_requests_refused_total", &[]),
        Grew(5),
        "{} incomplete requests were refused in the last 5 minutes, because memory.requests is used up",
        "look for clients that begin requests and do not end them; if they are not hostile, raise memory.requests",
    ),
    metric(
        "TollgateLogBlocked",
        Warning,
        "log_blocked",
        ("tollgate_log_lines_dropped_total", &["reason=\"output\""]),
        Grew(5),
        "{} log lines were lost in the last 5 minutes, because the output of the log did not accept them",
        "look at what reads stdout and stderr of the process, and whether its disk is full",
    ),
    metric(
        "TollgateClusterNotServing",
        Error,
        "not_serving",
        // A replica that drains does what it was told.
        ("tollgate_cluster_state", &["state=\"joining\""]),
        Is(is_positive),
        "this replica does not serve in its cluster: it is joining",
        "wait for a moment; then `/readyz` says what it waits for, and the log has the addresses that it cannot reach",
    ),
    metric(
        "TollgateClusterSlotsMoving",
        Warning,
        "slots_moving",
        ("tollgate_cluster_slots_moving", &[]),
        Stays(is_positive, 5, None),
        "{} slots have not reached their intended owner for 5 minutes",
        "look for members that are silent, or that join and leave all the time: `/cluster` lists them",
    ),
    metric(
        "TollgateClusterCountersDiscarded",
        Warning,
        "counters_discarded",
        ("tollgate_cluster_begun_anew_total", &[]),
        Grew(60),
        "all counters were discarded in favour of another cluster in the last hour: {}",
        "two clusters were bootstrapped separately: give all replicas the same cluster.seed",
    ),
    metric(
        "TollgateClusterDegraded",
        Warning,
        "degraded",
        ("tollgate_cluster_degraded_checks_total", &[]),
        Grew(5),
        "{} checks were decided without the owner of the counter in the last 5 minutes",
        "see the log for the owners that could not be reached; if none was lost, raise the timeout of the callers or cluster.forward_budget_max",
    ),
    metric(
        "TollgateClusterBreakerOpened",
        Warning,
        "breaker_opened",
        ("tollgate_cluster_breaker_openings_total", &[]),
        Grew(5),
        "another replica was too slow, and was not asked for a second each time, in the last 5 minutes: {}",
        "give that replica more CPU, or check the network; the log names it",
    ),
    metric(
        "TollgateClusterReportsDropped",
        Warning,
        "reports_dropped",
        ("tollgate_cluster_untold_total", &[]),
        Grew(60),
        "{} reports of admitted hits were dropped in the last hour, so owners admit too much",
        "restore the network between replicas, whose queues were full",
    ),
    metric(
        "TollgateClusterBackupsRefused",
        Warning,
        "backups_refused",
        ("tollgate_cluster_backups_refused_total", &[]),
        Grew(5),
        "{} copies of slots of other replicas found no memory in the last 5 minutes, so their counters have no backup",
        "raise store.memory_limit, or add replicas",
    ),
    metric(
        "TollgateClusterBackupsLate",
        Warning,
        "backups_late",
        ("tollgate_cluster_backup_age_seconds", &[]),
        Stays(|seconds| seconds > 5.0, 1, Some("tollgate_cluster_backed_up_counters_total")),
        "the last acknowledged backup is {} s old: a crash would forget what was admitted since",
        "look for members that are silent or slow: `/cluster` lists them",
    ),
    metric(
        "TollgateClusterLinksRefused",
        Warning,
        "links_refused",
        ("tollgate_cluster_links_refused_total", REASONS_OF_SETTINGS),
        Grew(10),
        "connections between replicas were refused in the last 10 minutes, by reason: {}",
        "compare cluster secrets, certificates, system clocks and versions; the log names the addresses",
    ),
    metric(
        "TollgateStoreDegraded",
        Warning,
        "degraded",
        ("tollgate_store_degraded_checks_total", &[]),
        Grew(5),
        "{} checks were decided without the shared store in the last 5 minutes",
        "see the log for the times at which it could not be reached; on_owner_unavailable of each rule says what is answered then",
    ),
    metric(
        "TollgateStoreSlow",
        Warning,
        "store_slow",
        ("tollgate_store_round_trip_seconds", &[]),
        Slow("0.05", 10),
        "of the round trips to the shared store in the last 10 minutes, {} took longer than 50 ms",
        "give its server more CPU, keep slow commands of others from it, and look at the network",
    ),
    metric(
        "TollgateStoreLostCounters",
        Warning,
        "store_lost_counters",
        ("tollgate_store_lost_counters_total", &[]),
        Grew(60),
        "the shared store has lost {} counters in use in the last hour, whose keys have a fresh limit",
        "set its maxmemory-policy to noeviction, and do not flush it; a failover to a replica that is behind loses counters too",
    ),
];

pub(super) const MEMORY_REPAIR: &str =
    "raise store.memory_limit, or shorten the windows of rules on keys that callers choose freely";

/// The reasons of refused links that point at settings and not at a passing disturbance.
const REASONS_OF_SETTINGS: &[&str] = &[
    "reason=\"not_tls\"",
    "reason=\"no_certificate\"",
    "reason=\"untrusted\"",
    "reason=\"expired\"",
    "reason=\"by_peer\"",
    "reason=\"version\"",
    "reason=\"full\"",
];

/// The id of the finding of requests that were answered with an error.
pub(super) const UNANSWERED: &str = "requests_unanswered";

const fn metric(
    alert: &'static str,
    level: FindingLevel,
    id: &'static str,
    (metric, only): (&'static str, &'static [&'static str]),
    condition: MetricCondition,
    what: &'static str,
    repair: &'static str,
) -> MetricCheck {
    MetricCheck { alert, id, level, metric, only, condition, what, repair }
}

fn is_positive(value: f64) -> bool {
    value > 0.0
}

/// The metrics of all checks.
fn metrics() -> Vec<&'static str> {
    CHECKS.iter().flat_map(|check| [Some(check.metric), check.condition.while_growing()]).flatten().collect()
}

/// The values of the last hour.
#[derive(Debug, Default)]
pub struct AlertHistory(Mutex<AlertSamples>);

/// Samples in their order, without values of 0.
// Invariant: spans at most `HISTORY` and one interval.
#[derive(Debug, Default)]
struct AlertSamples(VecDeque<(Instant, MetricValues)>);

impl AlertHistory {
    /// Takes samples of `reader`, for as long as it is polled.
    pub async fn record(&self, reader: Arc<dyn MetricReader>) {
        loop {
            // Without a sample, a finding of growth lasts longer.
            let reader = reader.clone();
            if let Ok(values) = spawn_blocking(move || reader.series(&metrics())).await {
                self.add(Instant::now(), values);
            }
            sleep(SAMPLE_INTERVAL).await;
        }
    }

    fn add(&self, now: Instant, mut values: MetricValues) {
        values.retain(|series, value| *value != 0.0 && CHECKS.iter().any(|check| check.reads(series)));
        let AlertSamples(samples) = &mut *lock(&self.0);
        while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > HISTORY + SAMPLE_INTERVAL) {
            samples.pop_front();
        }
        samples.push_back((now, values));
    }

    /// What the checks find in the values of `reader` now.
    pub(super) fn findings(&self, reader: &dyn MetricReader) -> Vec<DoctorFinding> {
        self.findings_at(Instant::now(), &reader.series(&metrics()))
    }

    fn findings_at(&self, now: Instant, values: &MetricValues) -> Vec<DoctorFinding> {
        let samples = lock(&self.0);
        CHECKS.iter().filter_map(|check| check.finding(now, values, &samples)).collect()
    }
}

impl AlertSamples {
    /// The value of a series some time ago: 0 before the start of the process.
    fn before(&self, ago: Duration, now: Instant, series: &str) -> f64 {
        let earlier = self.0.iter().rev().find(|(at, _)| now.duration_since(*at) >= ago);
        earlier.and_then(|(_, values)| values.get(series)).copied().unwrap_or(0.0)
    }

    /// Whether a series has had such values all the time.
    fn all(&self, since: Duration, now: Instant, series: &str, is: fn(f64) -> bool) -> bool {
        let is_long = self.0.front().is_some_and(|(at, _)| now.duration_since(*at) >= since);
        let mut recent = self.0.iter().rev().take_while(|(at, _)| now.duration_since(*at) <= since);
        is_long && recent.all(|(_, values)| is(values.get(series).copied().unwrap_or(0.0)))
    }
}

impl MetricCondition {
    fn while_growing(self) -> Option<&'static str> {
        match self {
            Stays(_, _, growing) => growing,
            Grew(_) | Is(_) | Slow(..) => None,
        }
    }
}

impl MetricCheck {
    /// Whether the check looks at a series.
    fn reads(&self, series: &str) -> bool {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if self.condition.while_growing() == Some(name) {
            return true;
        }
        match self.condition {
            Slow(bound, _) => {
                let rest = name.strip_prefix(self.metric);
                rest == Some("_count") || rest == Some("_bucket") && labels == format!("le=\"{bound}\"}}")
            }
            Grew(_) | Is(_) | Stays(..) => {
                name == self.metric
                    && (self.only.is_empty() || self.only.iter().any(|label| labels.contains(label)))
            }
        }
    }

    fn finding(&self, now: Instant, values: &MetricValues, samples: &AlertSamples) -> Option<DoctorFinding> {
        let found = match self.condition {
            Slow(bound, within) => self.slow(bound, minutes(within), now, values, samples),
            Grew(within) => self.each(values, |series, value| {
                let grown = value - samples.before(minutes(within), now, series);
                (grown > 0.0).then_some(grown)
            }),
            Is(is) => self.each(values, |_, value| is(value).then_some(value)),
            Stays(is, since, growing) => self.each(values, |series, value| {
                let since = minutes(since);
                let grows = growing.is_none_or(|other| {
                    values.get(other).copied().unwrap_or(0.0) > samples.before(since, now, other)
                });
                (is(value) && grows && samples.all(since, now, series, is)).then_some(value)
            }),
        };
        (!found.is_empty()).then(|| DoctorFinding {
            id: self.id.to_owned(),
            level: self.level,
            what: self.what.replacen("{}", &listed(found), 1),
            repair: format!("{} ({} in docs/metrics.md)", self.repair, self.alert),
            snippet: None,
        })
    }

    /// The values of the series of the metric that `found` returns, with their labels.
    fn each(&self, values: &MetricValues, found: impl Fn(&str, f64) -> Option<f64>) -> Vec<String> {
        let own = values.iter().filter(|(series, _)| {
            series.split_once('{').map_or(&***series, |(name, _)| name) == self.metric && self.reads(series)
        });
        own.filter_map(|(series, value)| Some(self.named(series, found(series, *value)?))).collect()
    }

    /// A value with its labels, without those that all series of the check have.
    fn named(&self, series: &str, value: f64) -> String {
        let is_fixed = |label: &&str| self.only.len() == 1 && self.only.contains(label);
        let labels = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
        // No label of these metrics has a comma in its value but a path, which is the last one.
        let texts = labels.split(',').filter(|label| !label.is_empty() && !is_fixed(label));
        let texts: Vec<_> =
            texts.filter_map(|label| Some(label.split_once('=')?.1.trim_matches('"'))).collect();
        if texts.is_empty() { format!("{value:.0}") } else { format!("{} ({value:.0})", texts.join(" ")) }
    }

    fn slow(
        &self,
        bound: &str,
        within: Duration,
        now: Instant,
        values: &MetricValues,
        samples: &AlertSamples,
    ) -> Vec<String> {
        let grown =
            |series: &str| values.get(series).copied().unwrap_or(0.0) - samples.before(within, now, series);
        let all = grown(&format!("{}_count", self.metric));
        let quick = grown(&format!("{}_bucket{{le=\"{bound}\"}}", self.metric));
        let share = (all - quick) / all;
        let is_slow = all >= OBSERVATIONS_MIN && share > SLOW_SHARE;
        is_slow.then(|| format!("{:.0} %", share * 100.0)).into_iter().collect()
    }
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(60 * number)
}

#[cfg(test)]
mod tests {
    use tollgate_cluster::link::LinkFailure;

    use super::*;

    const ALERT_RULES: &str = include_str!("../../../deploy/monitoring/prometheus-rule.yaml");

    /// What finds the other alerts.
    enum FoundBy {
        /// Findings with this id, in the state of a component.
        State(&'static str),
        /// Not the answer of a process, for this reason.
        Outside(&'static str),
    }

    use FoundBy::{Outside, State};

    /// What finds them.
    const STATES: [&str; 3] = [
        include_str!("doctor/cluster.rs"),
        include_str!("doctor/replica.rs"),
        include_str!("doctor/rules.rs"),
    ];

    const OTHERS: &[(&str, FoundBy)] = &[
        ("TollgateDown", Outside("`tollgate doctor` exits 2 without an answer")),
        ("TollgateRestarts", Outside("a process does not know how often it was started")),
        ("TollgateRuleRefusesMuch", State("refuses_much")),
        ("TollgateUnknownDomain", State("unknown_domain")),
        ("TollgateCallsFail", State("failed_calls")),
        ("TollgateNoRules", State("no_rules")),
        ("TollgateRulesStale", State("rule_problems")),
        ("TollgateRulesDiffer", State("members_of_other_rules")),
        ("TollgateXdsUnknownFields", State("unknown_fields")),
        ("TollgateOverlayStale", State("overlay_problems")),
        ("TollgateCertificateErrors", State("certificate_refused")),
        ("TollgateCertificateExpires", State("certificate_ends")),
        ("TollgateClusterMembersDiffer", State("member_unreachable")),
        ("TollgateClusterRulesDiffer", State("members_of_other_rules")),
        ("TollgateClusterIsolated", State("isolated")),
        ("TollgateClusterRejected", State("links_rejected")),
        ("TollgateClusterOwnerLost", State("member_died")),
        ("TollgateStoreUnavailable", State("store_unavailable")),
    ];

    /// The name and the text of each alert.
    fn alerts() -> Vec<(&'static str, &'static str)> {
        ALERT_RULES.split("- alert: ").skip(1).map(|alert| alert.split_once('\n').unwrap()).collect()
    }

    fn values<const N: usize>(values: [(&str, f64); N]) -> MetricValues {
        values.map(|(series, value)| (series.to_owned(), value)).into()
    }

    fn ids(found: &[DoctorFinding]) -> Vec<&str> {
        found.iter().map(|finding| &*finding.id).collect()
    }

    #[test]
    fn each_alert_has_a_finding_or_a_reason() {
        let findings = include_str!("../../../docs/admin.md");
        for (name, text) in alerts() {
            let check = CHECKS.iter().find(|check| check.alert == name);
            let id = match (check, OTHERS.iter().find(|(alert, _)| *alert == name)) {
                (Some(check), None) => {
                    let labels: Vec<_> = check.only.iter().filter(|_| check.only.len() == 1).collect();
                    assert!(labels.iter().all(|label| text.contains(**label)), "{name}");
                    let metrics = [Some(check.metric), check.condition.while_growing()];
                    assert!(metrics.into_iter().flatten().all(|metric| text.contains(metric)), "{name}");
                    check.id
                }
                (None, Some((_, State(id)))) => {
                    assert!(STATES.iter().any(|source| source.contains(&format!("\"{id}\""))), "{id}");
                    id
                }
                (None, Some((_, Outside(reason)))) => {
                    assert!(!reason.is_empty());
                    continue;
                }
                (Some(_), Some(_)) | (None, None) => panic!("{name} is found by nothing, or twice"),
            };
            assert!(findings.contains(&format!("`{id}`")), "docs/admin.md lacks {id} of {name}");
        }
        assert_eq!(alerts().len(), CHECKS.len() + OTHERS.len());
    }

    /// Values for which a check, and no other one, has a finding after an hour with the values before.
    fn firing(check: &MetricCheck) -> (MetricValues, MetricValues) {
        let label = check.only.first().map_or(String::new(), |label| format!("{{{label}}}"));
        let series = format!("{}{label}", check.metric);
        match check.condition {
            Grew(_) => (MetricValues::new(), values([(&series, 3.0)])),
            Is(is) => (MetricValues::new(), values([(&series, if is(0.0) { 0.0 } else { 3.0 })])),
            Stays(_, _, None) => (values([(&series, 9.0)]), values([(&series, 9.0)])),
            Stays(_, _, Some(growing)) => {
                (values([(&series, 9.0), (growing, 1.0)]), values([(&series, 9.0), (growing, 2.0)]))
            }
            Slow(bound, _) => {
                let bucket = format!("{}_bucket{{le=\"{bound}\"}}", check.metric);
                let count = format!("{}_count", check.metric);
                (MetricValues::new(), values([(&bucket, 900.0), (&count, 1_000.0)]))
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_check_finds_its_metric_and_nothing_else() {
        for check in CHECKS {
            let (before, now) = firing(check);
            let history = AlertHistory::default();
            let start = Instant::now();
            for minute in 0..60 {
                history.add(start + minutes(minute), before.clone());
            }
            let found = history.findings_at(start + minutes(60), &now);
            assert_eq!(ids(&found), [check.id], "{found:?}");
            assert!(!found[0].what.contains("{}") && !found[0].repair.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn links_refused_for_settings_are_found_and_disturbances_are_not() {
        let found = |reason: &LinkFailure| {
            let series = format!("tollgate_cluster_links_refused_total{{reason=\"{}\"}}", reason.name());
            CHECKS.iter().any(|check| check.reads(&series))
        };
        let others: Vec<_> = LinkFailure::ALL.into_iter().filter(|reason| !found(reason)).collect();
        assert_eq!(others, [LinkFailure::Slow, LinkFailure::Other]);
    }

    #[tokio::test(start_paused = true)]
    async fn finding_of_growth_ends_after_its_time() {
        let history = AlertHistory::default();
        let start = Instant::now();
        let errors = values([("tollgate_accept_errors_total{listener=\"grpc\"}", 3.0)]);
        let found = history.findings_at(start, &errors);
        assert_eq!(ids(&found), ["accept_errors"], "counters begin with the process");
        assert!(found[0].what.ends_with(": grpc (3)"), "{found:?}");
        history.add(start, errors.clone());
        assert_eq!(ids(&history.findings_at(start + minutes(4), &errors)), ["accept_errors"]);
        assert_eq!(history.findings_at(start + minutes(5), &errors), []);
    }

    #[tokio::test(start_paused = true)]
    async fn passing_state_is_no_finding() {
        let history = AlertHistory::default();
        let start = Instant::now();
        let moving = values([("tollgate_cluster_slots_moving", 7.0)]);
        assert_eq!(history.findings_at(start, &moving), []);
        history.add(start, moving.clone());
        history.add(start + minutes(3), MetricValues::new());
        history.add(start + minutes(4), moving.clone());
        assert_eq!(history.findings_at(start + minutes(6), &moving), []);
        assert_eq!(ids(&history.findings_at(start + minutes(9), &moving)), ["slots_moving"]);
    }

    #[tokio::test(start_paused = true)]
    async fn history_is_bounded() {
        let history = AlertHistory::default();
        let start = Instant::now();
        for number in 0..1_000 {
            let errors = values([("tollgate_accept_errors_total{listener=\"grpc\"}", 3.0), ("other", 1.0)]);
            history.add(start + SAMPLE_INTERVAL * number, errors);
        }
        let samples = history.0.lock().unwrap();
        assert!(samples.0.len() <= 123, "{}", samples.0.len());
        assert!(samples.0.iter().all(|(_, values)| values.len() == 1));
    }
}
