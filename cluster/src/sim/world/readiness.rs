//! Which replicas are ready next to strangers, and what is promised of it.

use std::time::Duration;

use crate::{
    link::addresses::Strangers,
    message::MemberState,
    sim::world::{BEGINS_AT, MILLISECOND, World},
    strangers::{LinkTrust, SERVED_MIN, Situation, StrangerHistory},
};

/// How often the product judges its links.
const JUDGED_EVERY: u64 = 250 * MILLISECOND;

/// The processes at the seeds that are no members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StrangersAt {
    /// There are no strangers.
    #[default]
    None,
    /// One process at a seed of every replica.
    Seed,
    /// The peers behind the cut: the two sides have different secrets.
    Cut,
}

/// What a replica has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    history: StrangerHistory,
    is_unready: bool,
    trusted_since: Option<u64>,
    has_served: bool,
}

impl World {
    pub(super) fn judge_readiness(&mut self) {
        if !self.now.is_multiple_of(JUDGED_EVERY) {
            return;
        }
        let runs = |number: &usize| !self.frozen.contains_key(number);
        let running: Vec<usize> = self.processes.keys().copied().filter(runs).collect();
        for number in running {
            let problem = self.judge(number);
            let at = |problem| format!("{problem} (at {} ms)", (self.now - BEGINS_AT) / MILLISECOND);
            if self.faults.is_some() && self.broken.is_none() {
                self.broken = problem.map(at);
            }
        }
    }

    /// The replicas that are ready.
    pub(in crate::sim) fn ready(&self) -> Vec<usize> {
        let is_ready = |number: &usize| !self.processes[number].seen.is_unready;
        self.serving().into_iter().filter(is_ready).collect()
    }

    /// Judges the links of a replica, and returns the promise that its readiness breaks.
    fn judge(&mut self, number: usize) -> Option<String> {
        let now = self.monotonic_time_of(number);
        let is_linked = self.is_linked(number);
        let strangers = self.strangers(number).filter(|_| !is_linked);
        let slots = self.shape.slots;
        let process = self.processes.get_mut(&number)?;
        let situation = Situation {
            is_linked,
            is_serving: process.node.state() == MemberState::Serving,
            owns_all: process.node.owned_slots().count() == slots,
            has_tried_seeds: true,
        };
        let seen = &mut process.seen;
        let trust = seen.history.judge(strangers.clone(), situation, now);
        seen.is_unready = matches!(trust, LinkTrust::Unready(_));
        let is_ready = !seen.is_unready;
        let Some(Strangers { has_former_peer, .. }) = strangers else {
            let since = *seen.trusted_since.get_or_insert(self.now);
            let has_been_alone = Duration::from_nanos(self.now - since) >= SERVED_MIN;
            seen.has_served |= situation.is_serving && (is_linked || has_been_alone);
            return None;
        };
        seen.trusted_since = None;
        let should_be_ready = seen.has_served && (!has_former_peer || situation.owns_all);
        (is_ready != should_be_ready).then(|| {
            let served = seen.has_served;
            let ready = if is_ready { "ready" } else { "not ready" };
            format!("{number} is {ready} beside strangers, has served: {served}, {situation:?}")
        })
    }

    /// Whether a process at the other end of a link answers.
    fn is_linked(&self, number: usize) -> bool {
        let peers = self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to);
        let mut peers = peers.filter(|to| !self.frozen.contains_key(to));
        peers.any(|to| !self.is_cut_between(number, to))
    }

    fn strangers(&self, number: usize) -> Option<Strangers> {
        let has_former_peer = match self.strangers_at {
            StrangersAt::None => return None,
            StrangersAt::Seed => false,
            StrangersAt::Cut => self.processes.keys().any(|other| self.is_cut_between(number, *other)),
        };
        let is_there = has_former_peer || self.strangers_at == StrangersAt::Seed;
        is_there.then(|| Strangers { named: String::new(), has_other_version: false, has_former_peer })
    }
}
