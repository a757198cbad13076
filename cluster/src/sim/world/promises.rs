//! What a world promises at every time, and whether it has settled.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_counter::{algorithm::Operation, time::SECOND};
use tollgate_store::{BYTES_MIN, Slot};

use crate::{
    message::MemberState,
    sim::{
        calls::OpenCall,
        record::Faults,
        world::{BEGINS_AT, BUDGET, MILLISECOND, Process, World, network::NOTICED_WITHIN},
    },
};

impl World {
    /// Why the world is not settled, if it is not.
    pub(in crate::sim) fn unsettled(&self) -> Option<String> {
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
            if process.node.is_recovering() {
                return Some(format!("{number} still recovers a slot"));
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
            None if !self.processes.is_empty() && owners.len() != self.shape.slots => {
                Some("a slot has no owner".to_owned())
            }
            None if views.len() > 1 => Some("their views differ".to_owned()),
            None => None,
        }
    }

    /// The replicas that serve.
    pub(in crate::sim) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.node.state() == MemberState::Serving;
        self.processes.iter().filter(|(_, process)| serves(process)).map(|(number, _)| *number).collect()
    }

    /// The calls that are not answered yet.
    pub(in crate::sim) fn unanswered(&self) -> usize {
        self.open.len()
    }

    /// Records what the bounds need to know of the owners.
    pub(super) fn observe(&mut self) {
        self.observe_memory();
        if self.faults == Some(Faults::Lead) {
            for key in 0..self.keys.len() {
                if let Some(owner) = self.owner(self.keys[key].key).filter(|_| self.keys[key].is_short) {
                    self.record.note_clock(key, self.now, self.processes[&owner].skew);
                }
            }
        }
        if self.is_cut_one_way && !self.cut.is_empty() {
            let is_claimed = |key: &usize| {
                self.processes.iter().any(|(number, process)| {
                    let slot = Slot::for_key(self.keys[*key].key, self.shape.slots);
                    !self.cut.contains(number) && process.node.owned_slots().any(|owned| owned == slot)
                })
            };
            let claimed: Vec<usize> = (0..self.keys.len()).filter(is_claimed).collect();
            self.record.notice(&claimed, self.now + NOTICED_WITHIN);
        }
    }

    /// An owner that has no memory for the data that it has started from does not add what a member with another history
    /// of the slot has counted.
    fn observe_memory(&mut self) {
        if self.bytes_max > BYTES_MIN {
            return;
        }
        let lacks = |slot| self.processes.values().any(|process| process.node.lacks_origin(slot));
        let is_forgetful = |(key, slot): (usize, Slot)| lacks(slot).then_some(key);
        let keys: BTreeSet<usize> = self.each_slot_of_key().filter_map(is_forgetful).collect();
        let new: BTreeSet<usize> = keys.difference(&self.forgetful).copied().collect();
        if !new.is_empty() {
            self.note_fault_of(new, Some((0, self.now)));
        }
        self.forgetful.extend(keys);
    }

    /// Checks the promises that calls or time may have broken since the last check.
    pub(super) fn check_promises(&mut self) {
        self.checked_at = self.now;
        let keys = self.record.take_unchecked();
        if let Some(faults) = self.faults.filter(|_| self.broken.is_none()) {
            let problem = self.broken_promise(faults, keys);
            let at = |problem| format!("{problem} (at {} ms)", (self.now - BEGINS_AT) / MILLISECOND);
            self.broken = problem.map(at);
        }
    }

    /// The first promise that was broken, after all of them are checked.
    pub(in crate::sim) fn broken(&mut self) -> Option<String> {
        self.check_promises();
        let faults = self.faults.filter(|_| self.broken.is_none());
        self.broken.clone().or_else(|| self.broken_promise(faults?, (0..self.keys.len()).collect()))
    }

    /// The first promise that is broken now, of those of all keys only for these.
    fn broken_promise(&self, faults: Faults, keys: BTreeSet<usize>) -> Option<String> {
        let runs = |((number, _), _): &(&(usize, u64), &OpenCall)| !self.frozen.contains_key(number);
        let waits = self.open.iter().filter(runs).map(|(_, call)| self.now - call.waits_since).max();
        let longest = waits.unwrap_or_default().max(self.totals.slowest);
        if longest > BUDGET + SECOND / 10 {
            return Some(format!("a call waits for {} ms", longest / MILLISECOND));
        }
        let without_owner = match faults {
            Faults::None | Faults::Lead => self.totals.degraded + self.totals.unanswered,
            Faults::Crashes | Faults::Late | Faults::Partition { .. } => 0,
        };
        if without_owner > 0 {
            return Some(format!("{without_owner} answers were degraded"));
        }
        if let Some(wrong) = &self.reservations.wrong {
            return Some(wrong.clone());
        }
        if let Some(wrong) = &self.own_limits.wrong {
            return Some(wrong.clone());
        }
        let bytes = self.processes.values().map(|process| process.memory.stats().bytes).max();
        if bytes.is_some_and(|bytes| bytes as u64 > self.bytes_max) {
            return Some(format!("counters take {bytes:?} bytes, the most is {}", self.bytes_max));
        }
        let refunding = self.refunding();
        keys.into_iter()
            .find_map(|key| self.record.broken_limit(key, &self.keys[key], refunding[key], faults, self.now))
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
