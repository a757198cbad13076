//! The network of a simulation: connections, messages on their way, cuts and notices of losses.

use std::cmp::Ordering;

use rand::RngExt;
use tollgate_store::Slot;

use crate::{
    member::Departure,
    message::MemberState,
    sim::{
        keys,
        record::{LateCopy, NetworkCut},
        world::{Link, MILLISECOND, NODE_SETTINGS, Process, REGION_DELAY, Sent, World},
    },
    wire,
};

/// The time after a cut in which the owners on the side without a majority notice it and answer the calls that are under
/// way between them.
pub(super) const NOTICED_WITHIN: u64 = NODE_SETTINGS.silence.as_nanos() as u64 + 100 * MILLISECOND;

impl World {
    pub(super) fn set_cut(&mut self, numbers: &[usize], is_one_way: bool) {
        self.cut = numbers.iter().copied().collect();
        self.is_cut_one_way = is_one_way;
        self.note_fault(None);
        // The side without a majority notices that it hears too few members. If the other side still hears it, its owners
        // go on until their slots are claimed: see `observe`. A member that leaves may count for the majority or not.
        let cut_side_lacks =
            [self.cut_side_lacks_majority(|_| true), self.cut_side_lacks_majority(Self::stays)];
        let until = |owner: usize| {
            let is_cut_off = self.cut.contains(&owner);
            let notices = !(is_cut_off && is_one_way);
            cut_side_lacks
                .contains(&is_cut_off)
                .then(|| if notices { self.now + NOTICED_WITHIN } else { u64::MAX })
        };
        let apart = |key: usize| Some((key, until(self.owner(self.keys[key].key)?)?));
        let unnoticed_until = (0..self.keys.len()).filter_map(apart).collect();
        self.record.cut = Some(NetworkCut { at: self.now, healed_at: u64::MAX, unnoticed_until });
    }

    fn stays(process: &Process) -> bool {
        process.node.state() != MemberState::Draining
    }

    /// Whether the side that is cut off lacks the majority of the members that count. Otherwise the other side lacks it.
    fn cut_side_lacks_majority(&self, counts: impl Fn(&Process) -> bool) -> bool {
        let members = self.processes.iter().filter(|(_, process)| counts(process)).map(|(number, _)| *number);
        let (cut, rest): (Vec<usize>, Vec<usize>) = members.partition(|number| self.cut.contains(number));
        let first = cut.iter().chain(&rest).min_by_key(|number| keys::member(**number));
        match cut.len().cmp(&rest.len()) {
            Ordering::Less => true,
            Ordering::Equal => first.is_none_or(|first| rest.contains(first)),
            Ordering::Greater => false,
        }
    }

    fn deliver_departing(&mut self) {
        for (from, to, mut link) in std::mem::take(&mut self.departing_links) {
            while !self.is_cut(from, to)
                && !self.frozen.contains_key(&to)
                && let Some(sent) = link.next_due(self.now)
            {
                self.hand_over(sent, from, to);
            }
            if !link.in_flight.is_empty() {
                self.departing_links.push((from, to, link));
                continue;
            }
            let now = self.time_of(to);
            if let Some(process) = self.processes.get_mut(&to) {
                process.node.depart(keys::member(from), Departure::Dead, now);
            }
            self.act(to);
        }
    }

    pub(super) fn dial(&mut self, from: usize, to: usize) {
        let due = self.now + self.delay(from, to);
        self.dials.push((due, from, to));
    }

    /// How long a message takes.
    pub(super) fn delay(&mut self, from: usize, to: usize) -> u64 {
        let is_far = self.region(from) != self.region(to);
        self.rng.random_range(1..=self.delay_max) + if is_far { REGION_DELAY } else { 0 }
    }

    pub(in crate::sim) fn region(&self, number: usize) -> usize {
        number % self.shape.regions
    }

    /// Whether nothing that `from` sends reaches `to`.
    fn is_cut(&self, from: usize, to: usize) -> bool {
        if self.is_cut_one_way {
            self.cut.contains(&from) && !self.cut.contains(&to)
        } else {
            self.cut.contains(&from) != self.cut.contains(&to)
        }
    }

    pub(super) fn is_cut_between(&self, a: usize, b: usize) -> bool {
        self.is_cut(a, b) || self.is_cut(b, a)
    }

    pub(super) fn connect(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.dials).into_iter().partition(|(at, ..)| *at <= self.now);
        self.dials = later;
        for (_, from, to) in due {
            if !self.processes.contains_key(&from) || self.links.contains_key(&(from, to)) {
                continue;
            }
            if self.is_cut_between(from, to)
                || self.frozen.contains_key(&from)
                || self.frozen.contains_key(&to)
            {
                self.dials.push((self.now + 100 * MILLISECOND, from, to));
            } else if self.processes.contains_key(&to) {
                for (one, other) in [(from, to), (to, from)] {
                    self.links.insert((one, other), Link::default());
                    let now = self.time_of(one);
                    let process = self.processes.get_mut(&one).expect("both were looked up");
                    process.node.connected(keys::member(other), &other.to_string(), now);
                }
            }
        }
    }

    pub(super) fn deliver(&mut self) {
        let pairs: Vec<(usize, usize)> = self.links.keys().copied().collect();
        for (from, to) in pairs {
            if self.is_cut(from, to) || self.frozen.contains_key(&to) {
                continue;
            }
            let now = self.time_of(to);
            // Heartbeats.
            if !self.frozen.contains_key(&from)
                && let Some(process) = self.processes.get_mut(&to)
            {
                process.node.heard(keys::member(from), now);
            }
            loop {
                let due = |link: &mut Link| link.next_due(self.now);
                let Some(sent) = self.links.get_mut(&(from, to)).and_then(due) else { break };
                self.hand_over(sent, from, to);
            }
        }
        self.deliver_departing();
    }

    fn hand_over(&mut self, Sent { at, batch, .. }: Sent, from: usize, to: usize) {
        let copy = LateCopy { from, to, sent_at: at, arrived_at: self.now };
        let now = self.time_of(to);
        let wall = self.wall_of(to);
        let sent_at = wall.plus(self.copies_younger_by);
        if let Some(process) = self.processes.get_mut(&to) {
            for message in wire::decode(&batch, sent_at).expect("a batch that was just encoded") {
                let slot = message.last_slot().filter(|_| message.contents().next().is_some());
                let is_copied =
                    |key: &usize| slot == Some(Slot::for_key(self.keys[*key].key, self.shape.slots));
                self.record.arrived((0..self.keys.len()).filter(is_copied), copy);
                process.node.receive(keys::member(from), message, now);
            }
        }
        self.act(to);
    }

    pub(super) fn notice(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.loss_notices).into_iter().partition(|(at, ..)| *at <= self.now);
        self.loss_notices = later;
        for (_, observer, dead) in due {
            if self.is_cut_between(observer, dead) || self.frozen.contains_key(&observer) {
                self.loss_notices.push((self.now + 100 * MILLISECOND, observer, dead));
                continue;
            }
            let now = self.time_of(observer);
            if let Some(process) = self.processes.get_mut(&observer) {
                process.node.depart(keys::member(dead), Departure::Dead, now);
            }
            self.act(observer);
        }
    }

    /// The peer has dropped the session.
    pub(super) fn lose_session(&mut self, number: usize, peer: usize) {
        if let Some(lost) = self.frozen.get_mut(&number) {
            lost.push(peer);
            return;
        }
        let now = self.time_of(number);
        if !self.is_cut(peer, number)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.depart(keys::member(peer), Departure::Forgotten, now);
            self.act(number);
        }
    }
}
