//! Findings on this replica: callers, memory, certificates, and a shared store.

use std::{collections::BTreeMap, time::Duration};

use tollgate_counter::{descriptor, time::Timestamp};
use tollgate_limiter::limiter::Example;
use tollgate_rules::{KeyedRules, Rules};
use tollgate_shared_store::SharedStore;
use tollgate_store::StoreStats;
use tollgate_wire::{
    code_name,
    finding::{DoctorFinding, listed},
};

use crate::api::{
    admin::{
        alerts::MEMORY_REPAIR,
        doctor::{envoy::knows_keys, rules::RuleRepairs},
        state::AdminState,
    },
    failed_calls::RecentFailures,
    format,
};

/// The time before the end of a certificate from which it is a finding, as in the alert of docs/metrics.md.
const CERTIFICATE_ENDS_WITHIN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The share of the memory of counters from which it is a finding, in percent.
const MEMORY_SHARE: u64 = 80;

/// The id of the findings of failed calls.
pub(super) const FAILED_CALLS: &str = "failed_calls";

pub(super) fn findings(sources: &AdminState) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let active = sources.active_rules.current();
    // Without rules every domain is unknown, which is another finding.
    if active.rules().is_some() {
        findings.extend(unknown_domains(sources, &active));
        findings.extend(unmatched_descriptors(sources, &active));
    }
    findings.extend(sources.active_rules.status().unseen_changes.map(|why| {
        DoctorFinding::warning(
            "rules_polled_only",
            format!("changes of rule files are not seen at once: {why}"),
            "if there are too many watches, raise fs.inotify.max_user_instances and max_user_watches; a file that is a mount of its own (subPath) never changes: mount its directory",
        )
    }));
    if sources.api.limiter.modes().shadow_mode {
        findings.push(DoctorFinding::warning(
            "shadow_mode",
            "limiter.shadow_mode is on: no request is refused",
            "set limiter.shadow_mode to false when the limits are to hold",
        ));
    }
    findings.extend(failed_calls(sources.api.metrics.failed_calls.recent(sources.clock.now())));
    findings.extend(sources.alone.map(counters_in_memory));
    findings.extend(memory(&sources.memory.stats()));
    findings.extend(certificates(&sources.certificates.expiries(), sources.clock.wall()));
    findings.extend(refused_certificates(&sources.certificates.refused()));
    findings.extend(sources.shared_store.as_ref().and_then(shared_store));
    findings
}

/// A finding for each code with which calls of the last minute have failed.
fn failed_calls(recent: Vec<RecentFailures>) -> Vec<DoctorFinding> {
    let mut by_code: BTreeMap<String, Vec<RecentFailures>> = BTreeMap::new();
    for failures in recent {
        by_code.entry(code_name(failures.code)).or_default().push(failures);
    }
    let finding = |(code, each): (String, Vec<RecentFailures>)| {
        let calls: u64 = each.iter().map(|failures| failures.calls).sum();
        let reasons = each.iter().map(|RecentFailures { method, reason, calls, peer, .. }| {
            let peer = peer.map(|peer| format!(", the last from {peer}")).unwrap_or_default();
            format!("{reason} ({calls} of {method}{peer})")
        });
        let reasons = listed(reasons);
        DoctorFinding::warning(
            FAILED_CALLS,
            format!(
                "{calls} calls in the last minute were answered {code}: {reasons}; Envoy lets such requests pass unless its filter has failure_mode_deny: true"
            ),
            "correct the caller: docs/api.md says what each reason means, and the log has a line \"call answered with an error\"",
        )
    };
    by_code.into_iter().map(finding).collect()
}

fn counters_in_memory(reason: &str) -> DoctorFinding {
    DoctorFinding::advice(
        "counters_in_memory",
        format!(
            "the counters are in the memory of this replica alone, since {reason}: each of several replicas admits the whole limit"
        ),
        "with one replica there is nothing to do; otherwise name a server of Redis in REDIS_URL, or set cluster.listen on each replica",
    )
}

fn unknown_domains(sources: &AdminState, active: &KeyedRules) -> Option<DoctorFinding> {
    let metrics = sources.api.limiter.metrics();
    let is_unknown = |example: &Example| active.domain(&example.domain).is_none();
    let examples = metrics.unknown_examples.each(is_unknown);
    (!examples.is_empty()).then(|| {
        let domains = examples.into_iter().map(|example| format!("{:?}", example.domain));
        let known = active.rules().into_iter().flat_map(Rules::domains).map(|domain| format!("{:?}", domain.name));
        DoctorFinding::warning(
            "unknown_domain",
            format!(
                "requests name a domain that no rules have, and pass: {} ({} such requests since the start)",
                listed(domains),
                metrics.unknown_domains.get()
            ),
            format!(
                "set `domain` of the caller, in Envoy that of the rate limit filter, to one of the rules, or {}; the rules have {}",
                RuleRepairs::new(&sources.rule_source).missing,
                listed(known)
            ),
        )
    })
}

/// A finding for descriptors whose keys no rule has, and one for those whose values no rule has.
fn unmatched_descriptors(sources: &AdminState, active: &KeyedRules) -> Vec<DoctorFinding> {
    let metrics = sources.api.limiter.metrics();
    let is_unmatched = |example: &Example| {
        active.domain(&example.domain).is_some_and(|domain| domain.find(&example.entries()).is_none())
    };
    let has_keys = |example: &Example| {
        let domain = active
            .rules()
            .into_iter()
            .flat_map(Rules::domains)
            .find(|domain| *domain.name == *example.domain);
        domain.is_some_and(|domain| {
            knows_keys(
                domain,
                example.entries.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()),
            )
        })
    };
    let examples = metrics.unmatched_examples.each(is_unmatched);
    let (values, keys): (Vec<_>, Vec<_>) = examples.into_iter().partition(has_keys);
    let number = metrics.unmatched.get();
    let add = RuleRepairs::new(&sources.rule_source).missing;
    let of_keys = described(&keys).map(|(examples, explained)| {
        DoctorFinding::warning(
            "unmatched_descriptor",
            format!("descriptors without a rule pass, for example {examples} ({number} descriptors without a limit since the start)"),
            format!("{explained}; {add}, or stop sending descriptors that are not to be limited"),
        )
    });
    let of_values = described(&values).map(|(examples, explained)| {
        DoctorFinding::advice(
            "unmatched_value",
            format!("values that no rule names pass, though rules name others of the same keys, for example {examples} ({number} descriptors without a limit since the start)"),
            format!("{explained}; if they are to be limited, add a rule for the key without a value"),
        )
    });
    of_keys.into_iter().chain(of_values).collect()
}

/// Examples as text, and the command that explains the first one.
fn described(examples: &[Example]) -> Option<(String, String)> {
    let first = examples.first()?;
    let text =
        |example: &Example| descriptor::format(example.entries.iter().map(|(key, value)| (key, value)));
    let explained = format!(
        "`tollgate explain {} {}` shows why",
        format::shell_word(&first.domain),
        format::shell_word(&text(first))
    );
    let examples = examples.iter().map(|example| format!("{:?} {}", example.domain, text(example)));
    Some((listed(examples), explained))
}

fn memory(stats: &StoreStats) -> Option<DoctorFinding> {
    let share = stats.bytes as u64 * 100 / stats.bytes_max.max(1) as u64;
    (share >= MEMORY_SHARE).then(|| {
        DoctorFinding::warning(
            "memory_near_limit",
            format!(
                "counters take {share} % of store.memory_limit: {} counters, {} bytes",
                stats.live, stats.bytes
            ),
            MEMORY_REPAIR,
        )
    })
}

fn certificates(ends: &[(&'static str, Timestamp)], now: Timestamp) -> Vec<DoctorFinding> {
    let ending = ends.iter().filter(|(_, end)| end.since(now) <= CERTIFICATE_ENDS_WITHIN);
    ending
        .map(|(listener, end)| {
            let repair = format!(
                "renew the files of {listener}.tls_cert and {listener}.tls_key; the server loads them without a restart"
            );
            let at = format::instant(*end);
            if *end <= now {
                let what = format!("the certificate of the {listener} listener expired at {at}: clients refuse it");
                DoctorFinding::error("certificate_expired", what, repair)
            } else {
                let what = format!("the certificate of the {listener} listener expires at {at}");
                DoctorFinding::warning("certificate_ends", what, repair)
            }
        })
        .collect()
}

fn refused_certificates(listeners: &[&str]) -> Option<DoctorFinding> {
    let first = listeners.first()?;
    Some(DoctorFinding::warning(
        "certificate_refused",
        format!(
            "the files of new certificates cannot be used, and the previous ones stay active, by listener: {}",
            listeners.join(", ")
        ),
        format!(
            "correct the files of {first}.tls_cert and {first}.tls_key; the log has the reason, and the server loads them without a restart"
        ),
    ))
}

fn shared_store(store: &SharedStore) -> Option<DoctorFinding> {
    let state = store.state();
    (state != tollgate_shared_store::SharedStoreState::Ready).then(|| {
        DoctorFinding::error(
            "store_unavailable",
            format!("the shared store cannot be used: {state}"),
            "check store.redis.urls, the network and the store; until then on_owner_unavailable of each rule decides",
        )
    })
}
