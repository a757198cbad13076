//! Findings in the cluster, as this replica sees it.

use std::collections::BTreeSet;

use tollgate_cluster::{ClusterStats, ClusterView, MemberDeparture, MemberView};
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
    let died = view.members.iter().filter_map(died);
    let died: Vec<_> = died.collect();
    let mut findings = Vec::new();
    if !died.is_empty() {
        findings.push(DoctorFinding::warning(
            "member_died",
            format!("members have ended without leaving, and what they admitted after their last backup is forgotten: {}", listed(died)),
            "look at the end of their logs and at what stopped them (memory, node); a replica that takes the place of one joins by itself",
        ));
    }
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

/// A member that has departed without announcing it.
fn died(member: &MemberView) -> Option<String> {
    let how = match member.departure? {
        MemberDeparture::Left => return None,
        MemberDeparture::Died => "died",
        MemberDeparture::Silent => "was given up as silent",
    };
    let MemberView { id, address, silent_ms, .. } = member;
    Some(format!("{id} at {address} {how} {} s ago", silent_ms / 1_000))
}

#[cfg(test)]
mod tests {
    use tollgate_cluster::{MemberId, MemberState};

    use super::*;

    fn member(number: u64) -> MemberView {
        MemberView {
            id: MemberId::from_number(number),
            address: format!("10.0.0.{number}:8082"),
            state: Some(MemberState::Serving),
            departure: None,
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
    fn member_that_has_died_is_found_with_its_address() {
        let departed = |departure| {
            ids(move |view| {
                let member = &mut view.members[1];
                (member.state, member.departure, member.silent_ms) = (None, Some(departure), 20_000);
            })
        };
        assert_eq!(departed(MemberDeparture::Died), ["member_died"]);
        assert_eq!(departed(MemberDeparture::Silent), ["member_died"]);
        assert_eq!(departed(MemberDeparture::Left), [] as [&str; 0]);
    }

    #[test]
    fn member_that_has_left_or_said_nothing_is_no_finding() {
        assert!(ids(|view| (view.members[1].state, view.members[1].silent_ms) = (None, 50_000)).is_empty());
        assert!(
            ids(|view| (view.members[1].program, view.members[1].clock_ahead_ms) = (None, None)).is_empty()
        );
    }
}
