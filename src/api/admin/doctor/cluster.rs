//! Findings in the cluster, as this replica sees it.

use std::collections::BTreeSet;

use crate::{
    api::admin::doctor::finding::{Finding, listed},
    cluster::{MemberView, Stats, View, link::LinkFailure},
};

/// A member that is not heard for this long is a finding, in milliseconds.
const SILENT_MS: u64 = 1_000;
/// A difference between clocks from which it is a finding, in milliseconds. A message between replicas takes less.
const CLOCK_APART_MS: u64 = 1_000;

pub(super) fn findings(view: &View, stats: &Stats) -> Vec<Finding> {
    let mut findings = members(view, stats);
    if view.isolated {
        findings.push(Finding::error(
            "isolated",
            "this replica reaches too few members to rely on its counters: on_owner_unavailable of each rule decides",
            "restore the network between replicas; declare members that have ended dead: POST /cluster/declare-dead?member=ID",
        ));
    }
    let degraded = stats.node.degraded;
    if degraded > 0 {
        findings.push(Finding::warning(
            "degraded",
            format!("{degraded} checks were decided without the owner of the counter since the start"),
            "see the log for the owners that could not be reached; if none was lost, raise the timeout of the callers or cluster.forward_budget_max",
        ));
    }
    let failures = LinkFailure::ALL.into_iter().filter(|reason| is_of_settings(*reason));
    let failures =
        failures.map(|reason| (reason, stats.links.failures(reason))).filter(|(_, number)| *number > 0);
    let failures: Vec<_> = failures.map(|(reason, number)| format!("{} ({number})", reason.name())).collect();
    if !failures.is_empty() {
        findings.push(Finding::warning(
            "links_refused",
            format!(
                "connections between replicas were refused since the start, by reason: {}",
                listed(failures)
            ),
            "compare cluster secrets, certificates, system clocks and versions; the log names the addresses",
        ));
    }
    findings
}

/// Findings in the list of members.
fn members(view: &View, stats: &Stats) -> Vec<Finding> {
    let mut findings = Vec::new();
    let present = || view.members.iter().filter(|member| member.state.is_some());
    let each =
        |members: Vec<&MemberView>, text: fn(&MemberView) -> String| listed(members.into_iter().map(text));
    let silent: Vec<_> = present().filter(|member| member.silent_ms > SILENT_MS).collect();
    if !silent.is_empty() {
        findings.push(Finding::error(
            "member_unreachable",
            format!("members are not reached: {}", each(silent, |one| {
                format!("{} at {} for {} ms", one.id, one.address, one.silent_ms)
            })),
            "check these processes and the network; if one has ended for good, declare it dead: POST /cluster/declare-dead?member=ID",
        ));
    }
    let programs: BTreeSet<_> = present().filter_map(|member| member.program.as_deref()).collect();
    if programs.len() > 1 {
        findings.push(Finding::warning(
            "members_of_other_versions",
            format!(
                "members run several versions: {}",
                each(present().collect(), |one| {
                    format!("{} {}", one.id, one.program.as_deref().unwrap_or("unknown"))
                })
            ),
            "finish the rolling update",
        ));
    }
    let apart: Vec<_> = present()
        .filter(|member| member.clock_ahead_ms.is_some_and(|ahead| ahead.unsigned_abs() > CLOCK_APART_MS))
        .collect();
    if !apart.is_empty() {
        findings.push(Finding::warning(
            "clocks_apart",
            format!("clocks differ from that of this replica: {}", each(apart, |one| {
                format!("{} at {} by {} ms", one.id, one.address, one.clock_ahead_ms.unwrap_or_default())
            })),
            "synchronize the system clocks (NTP): windows turn by the owner's clock, and replicas more than an hour apart cannot link",
        ));
    }
    if stats.members_with_other_rules > 0 {
        findings.push(Finding::warning(
            "members_of_other_rules",
            format!("{} members have other rules in force than this one", stats.members_with_other_rules),
            "give all replicas the same files; one that cannot load them says so on /rules",
        ));
    }
    findings
}

/// Whether a failed link points at settings and not at a passing disturbance.
fn is_of_settings(reason: LinkFailure) -> bool {
    match reason {
        LinkFailure::NotTls
        | LinkFailure::NoCertificate
        | LinkFailure::Untrusted
        | LinkFailure::Expired
        | LinkFailure::ByPeer
        | LinkFailure::Version
        | LinkFailure::Full => true,
        LinkFailure::Slow | LinkFailure::Other => false,
    }
}
