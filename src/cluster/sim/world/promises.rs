//! What a world promises at every time, and whether it has settled.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    algorithm::Operation,
    cluster::{
        message::MemberState,
        sim::{
            calls::OpenCall,
            keys::TestKey,
            record::Faults,
            world::{BUDGET, MILLISECOND, Process, SLOTS, World},
        },
    },
    store::Slot,
    time::SECOND,
};

impl World {
    /// Why the world is not settled, if it is not.
    pub(in crate::cluster::sim) fn unsettled(&self) -> Option<String> {
        let mut owners: BTreeMap<Slot, Vec<usize>> = BTreeMap::new();
        for (number, process) in &self.processes {
            if process.node.state() == MemberState::Joining {
                return Some(format!("{number} is still joining"));
            }
            for slot in process.node.owned_slots() {
                owners.entry(slot).or_default().push(*number);
            }
        }
        let mut views = BTreeSet::new();
        for (number, process) in &self.processes {
            if process.node.is_isolated() {
                return Some(format!("{number} is isolated"));
            }
            let view = process.node.view(self.monotonic_time_of(*number));
            if view.moving > 0 {
                return Some(format!("{number} sees {} slots moving", view.moving));
            }
            views.insert(view.view);
        }
        let twice = owners.iter().find(|(_, owners)| owners.len() > 1);
        match twice {
            Some((slot, owners)) => Some(format!("{slot:?} is owned by {owners:?}")),
            None if !self.processes.is_empty() && owners.len() != SLOTS => {
                Some("a slot has no owner".to_owned())
            }
            None if views.len() > 1 => Some("their views differ".to_owned()),
            None => None,
        }
    }

    /// The replicas that serve.
    pub(in crate::cluster::sim) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.node.state() == MemberState::Serving;
        self.processes.iter().filter(|(_, process)| serves(process)).map(|(number, _)| *number).collect()
    }

    pub(in crate::cluster::sim) fn unanswered(&self) -> usize {
        self.open.len()
    }

    /// The first promise that is broken now.
    pub(in crate::cluster::sim) fn broken(&self, faults: Faults) -> Option<String> {
        let runs = |((number, _), _): &(&(usize, u64), &OpenCall)| !self.frozen.contains_key(number);
        let waits = self.open.iter().filter(runs).map(|(_, call)| self.now - call.waits_since).max();
        let longest = waits.unwrap_or_default().max(self.totals.slowest);
        if longest > BUDGET + SECOND / 10 {
            return Some(format!("a call waits for {} ms", longest / MILLISECOND));
        }
        if faults == Faults::None && self.totals.degraded > 0 {
            return Some(format!("{} answers were degraded", self.totals.degraded));
        }
        if faults == Faults::None
            && let Some(wrong) = &self.reservations.wrong
        {
            return Some(wrong.clone());
        }
        let bytes = self.processes.values().map(|process| process.memory.stats().bytes).max();
        if bytes.is_some_and(|bytes| bytes as u64 > self.bytes_max) {
            return Some(format!("counters take {bytes:?} bytes, the most is {}", self.bytes_max));
        }
        let refunding = self.refunding();
        let long = self.keys.iter().enumerate().filter(|(_, key)| !key.is_short);
        let too_many = |(key, TestKey { limit, .. }): (usize, &TestKey)| {
            let (passed, most) =
                (self.record.passed(key), self.record.most(key, limit, faults) + refunding[key]);
            (passed > most).then(|| format!("{passed} hits passed, the most is {most}: {limit:?}"))
        };
        let mut long = long.map(too_many);
        long.find_map(|broken| broken)
            .or_else(|| self.record.broken_short_limit(&self.keys, &refunding, faults, self.now))
    }

    /// The refunds of each key by calls that are not answered yet: the owner may have applied them already.
    fn refunding(&self) -> Vec<u64> {
        let mut refunding = vec![0; self.keys.len()];
        for check in self.open.values().flat_map(|call| &call.checks) {
            if let (Some(key), Operation::Refund(hits)) = (check.number, check.operation) {
                refunding[key] += hits;
            }
        }
        refunding
    }
}
