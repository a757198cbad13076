//! Findings in the cluster, as this replica sees it.

use std::collections::BTreeSet;

use tollgate_cluster::{ClusterStats, ClusterView, link::LinkFailure};
use tollgate_wire::finding::{DoctorFinding, listed};

/// A member that is not heard for this long is a finding, in milliseconds.
const SILENT_MS: u64 = 1_000;
/// A difference between clocks from which it is a finding, in milliseconds. A message between replicas takes less.
const CLOCK_APART_MS: u64 = 1_000;

pub(super) fn findings(view: &ClusterView, stats: &ClusterStats) -> Vec<DoctorFinding> {
    let mut findings = view_findings(view);
    if stats.members_with_other_rules > 0 {
        findings.push(DoctorFinding::warning(
            "members_of_other_rules",
            format!("{} members have other active rules than this one", stats.members_with_other_rules),
            "give all replicas the same files; one that cannot load them says so on /rules",
        ));
    }
    if let Some(processes) = &stats.rejected_by {
        findings.push(DoctorFinding::error(
            "links_rejected",
            format!("this replica has no link, and other processes reject it or are rejected: {processes}"),
            "remove the process that is no replica from cluster.seed, or compare secrets, certificates, system clocks and versions",
        ));
    }
    let degraded = stats.degraded;
    if degraded > 0 {
        findings.push(DoctorFinding::warning(
            "degraded",
            format!("{degraded} checks were decided without the owner of the counter since the start"),
            "see the log for the owners that could not be reached; if none was lost, raise the timeout of the callers or cluster.forward_budget_max",
        ));
    }
    let failures = LinkFailure::ALL.into_iter().filter(|reason| is_of_settings(*reason));
    let failures = failures.map(|reason| (reason, stats.links.failures(reason)));
    let failures = failures.filter(|(_, number)| *number > 0);
    let failures: Vec<_> = failures.map(|(reason, number)| format!("{} ({number})", reason.name())).collect();
    if !failures.is_empty() {
        findings.push(DoctorFinding::warning(
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

/// Findings in what this replica knows of the other ones now.
fn view_findings(view: &ClusterView) -> Vec<DoctorFinding> {
    let present = || view.members.iter().filter(|member| member.state.is_some());
    let silent = present().filter(|member| member.silent_ms > SILENT_MS);
    let silent: Vec<_> =
        silent.map(|one| format!("{} at {} for {} ms", one.id, one.address, one.silent_ms)).collect();
    let programs = || present().filter_map(|member| Some((member, member.program.as_deref()?)));
    let versions: BTreeSet<_> = programs().map(|(_, program)| program).collect();
    let apart = present().filter_map(|member| Some((member, member.clock_ahead_ms?)));
    let apart = apart.filter(|(_, ahead)| ahead.unsigned_abs() > CLOCK_APART_MS);
    let apart: Vec<_> =
        apart.map(|(one, ahead)| format!("{} at {} by {ahead} ms", one.id, one.address)).collect();
    let mut findings = Vec::new();
    if !silent.is_empty() {
        findings.push(DoctorFinding::error(
            "member_unreachable",
            format!("members are not reached: {}", listed(silent)),
            "check these processes and the network; if one has ended for good, declare it dead: POST /cluster/declare-dead?member=ID",
        ));
    }
    if view.isolated {
        findings.push(DoctorFinding::error(
            "isolated",
            "this replica reaches too few members to rely on its counters: on_owner_unavailable of each rule decides",
            "restore the network between replicas; declare members that have ended dead: POST /cluster/declare-dead?member=ID",
        ));
    }
    if versions.len() > 1 {
        let each = programs().map(|(member, program)| format!("{} {program}", member.id));
        findings.push(DoctorFinding::warning(
            "members_of_other_versions",
            format!("members run several versions: {}", listed(each)),
            "finish the rolling update",
        ));
    }
    if !apart.is_empty() {
        findings.push(DoctorFinding::warning(
            "clocks_apart",
            format!("clocks differ from that of this replica: {}", listed(apart)),
            "synchronize the system clocks (NTP): windows turn by the owner's clock, and replicas more than an hour apart cannot link",
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

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_cluster::{MemberId, MemberState, MemberView};

    fn member(number: u64) -> MemberView {
        MemberView {
            id: MemberId::from_number(number),
            address: format!("10.0.0.{number}:8082"),
            state: Some(MemberState::Serving),
            silent_ms: 0,
            rules: String::new(),
            owned: 0,
            program: Some("1.0.0".to_owned()),
            clock_ahead_ms: Some(0),
        }
    }

    /// The ids of the findings in a view of three members after `change`.
    fn ids(change: impl FnOnce(&mut ClusterView)) -> Vec<String> {
        let mut view = ClusterView {
            local_id: member(1).id.to_string(),
            view: String::new(),
            members: vec![member(1), member(2), member(3)],
            moving: 0,
            owned: 0,
            stored_copies: 0,
            isolated: false,
        };
        change(&mut view);
        view_findings(&view).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn each_fault_of_a_member_is_found() {
        assert!(ids(|_| ()).is_empty());
        assert_eq!(ids(|view| view.members[1].silent_ms = 1_001), ["member_unreachable"]);
        assert_eq!(ids(|view| view.members[2].clock_ahead_ms = Some(-1_001)), ["clocks_apart"]);
        let other = || Some("1.1.0".to_owned());
        assert_eq!(ids(|view| view.members[2].program = other()), ["members_of_other_versions"]);
        assert_eq!(ids(|view| view.isolated = true), ["isolated"]);
    }

    #[test]
    fn member_that_has_left_or_said_nothing_is_no_finding() {
        assert!(ids(|view| (view.members[1].state, view.members[1].silent_ms) = (None, 50_000)).is_empty());
        assert!(
            ids(|view| (view.members[1].program, view.members[1].clock_ahead_ms) = (None, None)).is_empty()
        );
    }
}
