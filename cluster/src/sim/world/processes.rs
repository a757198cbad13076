//! The processes of a simulation: how they start, run, stand still and end, and their snapshots.

use std::{collections::BTreeSet, sync::Arc};

use rand::RngExt;
use tollgate_counter::{
    algorithm::Operation,
    time::{SECOND, Timestamp},
};
use tollgate_remote::{DecidedBy, LocalShare};
use tollgate_store::{Lead, Memory, OnFull, Slot, StoredSlot, divider::Dividers};

use crate::{
    member::MemberId,
    node::{ClusterNode, output::NodeAction},
    sim::{
        calls::{OpenCall, Purpose},
        keys,
        record::{Effect, Fault, SKEW_MAX, UNSURE_BEFORE},
        world::{
            CRASH_WINDOW, DELAY_MAX, MILLISECOND, NOTICE_MAX, Process, STEP, Seen, Sent, Snapshot, World,
        },
    },
    wire,
};

impl World {
    pub(super) fn drain(&mut self, number: usize) {
        self.end_streams(number);
        let now = self.time_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.drain(now);
        }
    }

    /// Moves the clock of a replica. A negative number gives up a lead.
    pub(super) fn step_clock(&mut self, number: usize, millis: i64) {
        let until = self.wall_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.skew += millis * MILLISECOND as i64;
            if millis < 0 {
                self.record.leads += 1;
                let at = Timestamp::from_nanos(self.now.wrapping_add_signed(process.skew));
                process.memory.give_up_lead(Lead { at, until });
                process.local_share.give_up_lead(Lead { at, until });
            }
        }
        self.record.clock_steps.push(self.now);
        // A slot may leave the replica before the next step of time.
        self.observe();
        self.reservations.expire_any(self.now, &mut self.record);
    }

    pub(super) fn freeze_borrower(&mut self) {
        let end = self.now + 5 * SECOND;
        let traffic = self.traffic;
        while self.now < end {
            if self.borrower().is_some() {
                self.traffic.calls_per_second = 0;
                while !self.open.is_empty() {
                    self.pass(STEP);
                }
                if let Some(borrower) = self.borrower() {
                    self.frozen.insert(borrower, Vec::new());
                    return;
                }
                self.traffic = traffic;
            }
            self.pass(STEP);
        }
        panic!("no replica has borrowed hits");
    }

    /// A replica that has borrowed hits of the first key and not used them.
    fn borrower(&self) -> Option<usize> {
        let key = self.keys[0].key;
        let borrows =
            |number: &usize| self.processes[number].node.borrowed(key, self.monotonic_time_of(*number)) > 1;
        self.processes.keys().copied().find(borrows)
    }

    pub(super) fn thaw(&mut self) {
        for (number, lost) in std::mem::take(&mut self.frozen) {
            let open = self.open.range_mut((number, 0)..(number + 1, 0));
            open.for_each(|(_, call)| call.waits_since = self.now);
            for peer in lost {
                self.lose_session(number, peer);
            }
        }
    }

    pub(super) fn start(&mut self, snapshot: Option<Snapshot>) {
        let number = self.started;
        self.started += 1;
        let memory =
            Arc::new(Memory::new(self.bytes_max, OnFull::Deny).with_slots(self.shape.slots).shared());
        let skew_max = (SKEW_MAX / MILLISECOND) as i64;
        let skew =
            self.rng.random_range(0..2) as i64 * self.rng.random_range(0..skew_max) * MILLISECOND as i64;
        let now = self.time_of(number);
        let member = keys::member(number);
        let dividers = Arc::new(Dividers::new(memory.clone()));
        let mut node =
            ClusterNode::new(member, number.to_string(), self.shape.settings, memory.clone(), dividers, now);
        if let Some(Snapshot { secret, copies }) = snapshot {
            let wall = self.wall_of(number);
            let without_idle = |copy: StoredSlot| StoredSlot { data: copy.data.without_idle(wall), ..copy };
            node.restore(secret, memory.fit(copies.into_iter().map(without_idle).collect(), wall), now);
        }
        self.processes.insert(
            number,
            Process {
                node,
                memory,
                local_share: LocalShare::default(),
                secret: None,
                skew,
                divided_by: self.divided_by,
                is_leaving: false,
                seen: Seen::default(),
            },
        );
        let others: Vec<usize> = self.processes.keys().copied().filter(|other| *other != number).collect();
        let reachable: Vec<usize> =
            others.iter().copied().filter(|other| !self.is_cut_between(number, *other)).collect();
        for other in others {
            self.dial(number, other);
        }
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.seeds_tried(reachable.is_empty());
        }
    }

    pub(super) fn kill(&mut self, numbers: &[usize]) {
        let killed: BTreeSet<usize> =
            numbers.iter().copied().filter(|number| self.processes.contains_key(number)).collect();
        if killed.is_empty() {
            return;
        }
        let at_risk: BTreeSet<Slot> =
            killed.iter().flat_map(|number| self.processes[number].node.slots_at_risk()).collect();
        let window = CRASH_WINDOW + 4 * (self.delay_max - self.delay_max.min(DELAY_MAX));
        // Backups do not cross a cut.
        let cut = self.record.cut.as_ref().filter(|_| !self.cut.is_empty());
        let cut_at = cut.map_or(self.now, |cut| cut.at);
        let recent = self.now.min(cut_at).saturating_sub(window);
        let mut lost = BTreeSet::new();
        let mut forgotten = BTreeSet::new();
        for (key, slot) in self.each_slot_of_key() {
            if at_risk.contains(&slot) {
                if self.has_recent_copy(slot, &killed) { &mut lost } else { &mut forgotten }.insert(key);
            }
        }
        self.note_fault(None);
        for (since, keys) in [(recent, lost), (0, forgotten)] {
            self.note_fault_of(keys, Some((since, self.now + window)));
        }
        for number in killed {
            for key in 0..self.keys.len() {
                let hits =
                    self.processes[&number].node.borrowed(self.keys[key].key, self.monotonic_time_of(number));
                self.note(key, Effect::Lost(hits), self.now, false);
            }
            let (at, stored) = &self.stored;
            if let Some(snapshot) = stored.get(&number) {
                // If it starts before the others, what was given back since then still counts.
                let unsure_from = at.saturating_sub(UNSURE_BEFORE);
                let has_slot = |slot| snapshot.copies.iter().any(|copy| copy.slot == slot);
                let is_in = |key: &usize| has_slot(Slot::for_key(self.keys[*key].key, self.shape.slots));
                let keys = (0..self.keys.len()).filter(is_in).collect();
                self.own_limits.lost.push((unsure_from, self.now));
                self.snapshots.push_back(Some(snapshot.clone()));
                self.record.faults.push(Fault { at: self.now, unsure_from, forgets: None, keys });
            }
            self.end(number);
        }
    }

    /// Whether a replica that survives has a copy of the slot that its owner has sent, and has not gone on sending to one
    /// that is killed too.
    fn has_recent_copy(&self, slot: Slot, killed: &BTreeSet<usize>) -> bool {
        let (dead, survivors): (Vec<_>, Vec<_>) =
            self.processes.iter().partition(|(number, _)| killed.contains(number));
        let newest = |processes: &[(&usize, &Process)]| {
            processes.iter().filter_map(|(_, process)| process.node.newest_version(slot)).max()
        };
        let is_backed_up_at_dead = dead.iter().any(|(_, process)| {
            let receiver = process.node.backed_up_at(slot);
            killed.iter().any(|number| receiver == Some(keys::member(*number)))
        });
        let is_refused = survivors.iter().any(|(_, process)| process.node.is_backup_refused(slot));
        let dead = newest(&dead);
        let copy = newest(&survivors);
        !is_backed_up_at_dead && !is_refused && copy.map(|copy| copy.epoch) >= dead.map(|dead| dead.epoch)
    }

    /// What the process writes to its snapshot.
    pub(super) fn snapshot(&self, number: usize) -> Option<Snapshot> {
        let Process { node, memory, secret, .. } = self.processes.get(&number)?;
        let now = self.wall_of(number);
        let copy = |slot| {
            let stored = node.last_copy(slot).unwrap_or_else(|| memory.copy(slot, node.epoch(slot))(now));
            let encoded = stored.encode(now)?;
            Some(encoded.decode(now).expect("it was just encoded"))
        };
        let copies: Vec<_> = memory.each_slot().filter_map(copy).collect();
        let secret = secret.clone()?;
        (!copies.is_empty()).then_some(Snapshot { secret, copies })
    }

    /// The process has announced its leaving, and writes a snapshot.
    fn leave(&mut self, number: usize) {
        let snapshot = self.snapshot(number);
        self.snapshots.extend(snapshot.map(Some));
        let peers: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        for to in peers {
            let link = self.links.remove(&(number, to)).unwrap_or_default();
            self.departing_links.push((number, to, link));
        }
        self.end(number);
    }

    /// Removes the process. Connected peers notice soon, unless they are cut off.
    fn end(&mut self, number: usize) {
        self.processes.remove(&number);
        let peers: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        self.links.retain(|(from, to), _| *from != number && *to != number);
        for other in peers {
            let due = self.now + self.rng.random_range(1..=NOTICE_MAX);
            self.loss_notices.push((due, other, number));
        }
        let calls = self.open.extract_if(.., |(process, _), _| *process == number);
        let lost: Vec<OpenCall> = calls.map(|(_, call)| call).collect();
        for OpenCall { purpose, checks, called_at, .. } in lost {
            match purpose {
                Purpose::Settle(number) | Purpose::SettleAgain(number) => {
                    let is_first = matches!(purpose, Purpose::Settle(_));
                    self.finish_settlement(number, is_first, &checks, called_at, None);
                    continue;
                }
                Purpose::SetLimit(key, change) => {
                    self.own_limits.finish(key, change, None, self.now);
                    continue;
                }
                Purpose::Decide | Purpose::Reserve(_) | Purpose::ReserveAgain(..) => {}
            }
            for check in checks {
                if let (Some(key), Operation::Charge(hits) | Operation::Refund(hits)) =
                    (check.number, check.operation)
                {
                    self.note(key, Effect::Lost(hits), called_at, false);
                }
            }
        }
    }

    /// Ends processes that have handed off every slot and answered every call.
    pub(super) fn end_departed(&mut self) {
        let has_open_calls = |number: &usize| self.open.keys().any(|(process, _)| process == number);
        let done = |(number, process): (&usize, &Process)| {
            (process.is_leaving && !has_open_calls(number)).then_some(*number)
        };
        let done: Vec<usize> = self.processes.iter().filter_map(done).collect();
        for number in done {
            self.leave(number);
        }
    }

    pub(super) fn tick(&mut self, number: usize) {
        let now = self.time_of(number);
        if self.frozen.contains_key(&number) || self.stalled.contains(&number) {
            return;
        }
        if self.rng.random_bool(0.8)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.hasten_tick(now);
            if now < process.node.tick_due() {
                return;
            }
            process.node.tick(now);
            process.node.report(&mut process.local_share, now);
            self.act(number);
        }
    }

    /// Sends the messages and performs the actions of a replica.
    pub(super) fn act(&mut self, number: usize) {
        let now = self.time_of(number);
        let wall = self.wall_of(number);
        let Some(process) = self.processes.get_mut(&number) else { return };
        let waiting: Vec<MemberId> = process.node.ready_peers();
        let actions = process.node.actions();
        let of_peer = |peer| (peer, process.node.outgoing(peer, usize::MAX, usize::MAX, now));
        let outgoing: Vec<_> = waiting.into_iter().map(of_peer).collect();
        for (peer, messages) in outgoing {
            let to = (0..self.started).find(|other| keys::member(*other) == peer);
            let Some(to) = to.filter(|to| self.links.contains_key(&(number, *to))) else { continue };
            let delay = self.delay(number, to);
            let batch = wire::encode(&messages, wall);
            self.totals.messages += messages.len() as u64;
            self.totals.batches += 1;
            self.totals.bytes += batch.len() as u64;
            if let Some(link) = self.links.get_mut(&(number, to)) {
                link.last = link.last.max(self.now + delay);
                link.in_flight.push_back(Sent { at: self.now, due: link.last, batch });
            }
        }
        for action in actions {
            match action {
                NodeAction::Dial(address) => {
                    let to = address.parse().expect("addresses are numbers in the simulation");
                    self.dial(number, to);
                }
                NodeAction::Disconnect(member) => {
                    let other = (0..self.started).find(|other| keys::member(*other) == member);
                    if let Some(other) = other.filter(|other| self.links.contains_key(&(number, *other))) {
                        self.links.remove(&(number, other));
                        self.links.remove(&(other, number));
                        // The peer learns of it when it can.
                        if self.processes.contains_key(&other) {
                            self.lose_session(other, number);
                        }
                    }
                }
                NodeAction::Complete(ticket, outcome) => {
                    let call = self.open.get_mut(&(number, ticket.call));
                    let (Some(call), Some(process)) = (call, self.processes.get_mut(&number)) else {
                        continue;
                    };
                    let share = &mut process.local_share;
                    let standing = process.node.local_share_basis();
                    if let Some(outcomes) = call.complete(ticket.check, outcome, share, standing) {
                        let decided =
                            |by| outcomes.iter().filter(|each| each.decided_by == by).count() as u64;
                        self.totals.degraded += decided(DecidedBy::Degraded);
                        self.totals.by_lease += decided(DecidedBy::Lease);
                        self.advance(number, ticket.call);
                    }
                }
                NodeAction::Assign(assignments) => self.assign_quotas(number, assignments),
                NodeAction::SetHashSecret(secret) => {
                    if let Some(process) = self.processes.get_mut(&number) {
                        process.secret = Some(secret);
                        process.local_share.clear();
                    }
                }
                NodeAction::LogJoined
                | NodeAction::LogClusterAdopted
                | NodeAction::LogIsolation { .. }
                | NodeAction::LogOutOfRange(_) => {}
            }
        }
        if let Some(process) = self.processes.get_mut(&number) {
            process.is_leaving |= process.node.is_drained(now);
        }
    }
}
