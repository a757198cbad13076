//! Clients that do with their assignments what Envoy does, and callers beside them, under a clock in ticks.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_counter::{
    algorithm::{Limit, Operation, QuotaTerms},
    descriptor::{Entry, Key, KeyText, Secret},
    time::{SECOND, Timestamp},
};

use crate::{
    check::{Check, LimitOrigin, OnFull, OnRefusal},
    divider::{
        assignment::{ASSIGNMENT_TTL, Assignment, DividerReport, SubscriberUsage},
        registry::{Assignments, Dividers, SlotDivisions, SubscriberReport},
    },
    memory::Memory,
    slot::Slot,
    slot_copy::{EncodedSlot, Epoch},
    subscribers::SubscriberId,
};

/// One tick before a minute.
pub(super) const START: Timestamp = Timestamp::from_nanos(1_790_000_040 * SECOND - TICK);
const TICK: u64 = SECOND / 100;

pub(super) fn id(stream: u64) -> SubscriberId {
    SubscriberId { replica: 0, stream, bucket: 0 }
}

/// What Envoy makes of its assignments for one bucket: hits are spread evenly over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    tokens: f64,
    max: f64,
    pub(super) per_second: f64,
    expires_at: Timestamp,
    usage: SubscriberUsage,
    admitted: u64,
    // Of its stream, the number of its bucket.
    bucket: u32,
    idle_reports: u32,
    // Whether its next report is the first one of another stream.
    resumes: bool,
}

/// A bucket without requests is abandoned after so many reports.
const IDLE_REPORTS_MAX: u32 = 12;

impl Client {
    fn assign(&mut self, assignment: Assignment, now: Timestamp) {
        match assignment {
            Assignment::Share(rate) => {
                // A changed bucket keeps the ratio to which it is full; one after a refusal of all begins full.
                let was_open = self.per_second > 0.0 && self.max > 0.0 && now < self.expires_at;
                let ratio = if was_open { self.tokens / self.max } else { 1.0 };
                (self.max, self.per_second) = (rate.burst as f64, rate.per_second as f64);
                self.tokens = self.max * ratio;
            }
            Assignment::Slice(hits) => {
                (self.tokens, self.max, self.per_second) = (hits as f64, hits as f64, 0.0)
            }
            Assignment::Renewal(hits) => assert_eq!(self.max, hits as f64, "a renewal is equal"),
            Assignment::Deny => (self.tokens, self.max, self.per_second) = (0.0, 0.0, 0.0),
        }
        self.expires_at = now.after(ASSIGNMENT_TTL);
    }

    fn take_usage(&mut self) -> SubscriberUsage {
        let usage = self.usage;
        self.usage = SubscriberUsage { allowed_before: usage.allowed_in_all(), ..SubscriberUsage::default() };
        usage
    }

    fn ask(&mut self, now: Timestamp) -> bool {
        let passes = now < self.expires_at && self.tokens >= 1.0 - 1e-9;
        if passes {
            (self.tokens, self.admitted) = (self.tokens - 1.0, self.admitted + 1);
            self.usage.allowed += 1;
        } else {
            self.usage.denied += 1;
        }
        passes
    }
}

/// Clients of one limit, beside callers that ask for each request.
pub(super) struct World {
    pub(super) dividers: Dividers,
    pub(super) memory: Arc<Memory>,
    pub(super) limit: Limit,
    pub(super) key: Key,
    pub(super) now: Timestamp,
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) terms: BTreeMap<u64, QuotaTerms>,
    next_report: BTreeMap<u64, Timestamp>,
    // The number of buckets that each client has had before.
    buckets: BTreeMap<u64, u32>,
    due: BTreeMap<(u64, u64), f64>,
    // Whether there is no server: reports are lost.
    is_down: bool,
    // The instant of everything that passed.
    pub(super) passed: Vec<Timestamp>,
}

impl World {
    pub(super) fn new(limit: Limit) -> Self {
        Self::starting_at(START, limit)
    }

    pub(super) fn starting_at(now: Timestamp, limit: Limit) -> Self {
        let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
        let dividers = Dividers::new(memory.clone());
        let mut text = KeyText::new("test");
        text.entry(Entry::new("name", "a"));
        let key = text.key(&[], &Secret::from_bytes([1; 16]));
        let (clients, terms, next_report) = Default::default();
        Self {
            dividers,
            memory,
            limit,
            key,
            now,
            clients,
            terms,
            next_report,
            buckets: BTreeMap::new(),
            due: BTreeMap::new(),
            is_down: false,
            passed: vec![],
        }
    }

    fn deliver(&mut self, assignments: Assignments) {
        for (id, assignment) in assignments {
            if let Some(client) = self.clients.get_mut(&id.stream).filter(|client| client.bucket == id.bucket)
            {
                client.assign(assignment, self.now);
            }
        }
    }

    pub(super) fn of(&self, stream: u64, report: DividerReport) -> SubscriberReport {
        let terms = self.terms.get(&stream).copied().unwrap_or_default();
        let bucket = self.clients.get(&stream).map_or(0, |client| client.bucket);
        let id = SubscriberId { bucket, ..id(stream) };
        SubscriberReport { key: self.key, limit: self.limit.clone(), id, terms, report }
    }

    fn report(&mut self, stream: u64) {
        let Some(client) = self.clients.get_mut(&stream) else { return };
        let usage = client.take_usage();
        let is_idle = usage.allowed == 0 && usage.denied == 0;
        client.idle_reports = if is_idle { client.idle_reports + 1 } else { 0 };
        let is_abandoned = client.idle_reports >= IDLE_REPORTS_MAX && client.per_second > 0.0;
        if self.is_down {
            self.next_report.insert(stream, self.now.plus(5 * SECOND));
            return;
        }
        let resumes = std::mem::take(&mut client.resumes);
        let report = if resumes { DividerReport::Resumed(usage) } else { DividerReport::Usage(usage) };
        let assignments = self.dividers.report(&self.of(stream, report), self.now);
        self.deliver(assignments);
        self.next_report.insert(stream, self.now.plus(5 * SECOND));
        if is_abandoned {
            self.end(stream);
        }
    }

    /// The bucket of a client goes, with its stream or without. Its next request begins another one.
    pub(super) fn end(&mut self, stream: u64) {
        self.leave(stream);
        self.clients.remove(&stream);
    }

    /// The stream of a client ends. It opens another one when it reports next.
    pub(super) fn reopen(&mut self, stream: u64) {
        let Some(next_report) = self.next_report.get(&stream).copied() else { return };
        self.leave(stream);
        let client = self.clients.get_mut(&stream).expect("a client that reports");
        let buckets = self.buckets.entry(stream).or_default();
        *buckets += 1;
        (client.bucket, client.resumes, client.usage.allowed_before) = (*buckets, true, 0);
        self.next_report.insert(stream, next_report);
    }

    /// Another process goes on with the counter, and does not know what was granted.
    pub(super) fn restart(&mut self) {
        self.memory.grants().end(self.key, self.now);
        self.dividers = Dividers::new(self.memory.clone()).after_restart(self.now);
        self.reopen_all();
    }

    /// The process ends with a snapshot. After so many seconds with these demands another one goes on with it.
    pub(super) fn restart_from_snapshot(&mut self, down: f64, demands: &[(u64, f64)]) {
        let bytes = postcard::to_stdvec(&self.dividers.take_all(self.now)).unwrap();
        let divisions: Vec<(Slot, SlotDivisions)> = postcard::from_bytes(&bytes).unwrap();
        let copy = |slot| self.memory.copy(slot, Epoch::default())(self.now).encode(self.now);
        let copies = self.memory.each_slot().map(copy);
        let stored: Vec<EncodedSlot> = copies.flatten().collect();
        let (taken_at, memory) = (self.now, self.memory.clone());
        self.is_down = true;
        // Nothing asks this server any more.
        self.memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
        self.dividers = Dividers::new(memory);
        self.run(down, demands, 0.0);
        self.is_down = false;
        for slot in stored {
            self.memory.restore(slot.decode(taken_at).unwrap().data, self.now);
        }
        self.dividers = Dividers::new(self.memory.clone());
        for (slot, divisions) in divisions {
            self.dividers.restore(slot, divisions, self.now);
        }
        self.reopen_all();
    }

    /// All clients open other streams when they report next.
    fn reopen_all(&mut self) {
        for (stream, client) in &mut self.clients {
            let buckets = self.buckets.entry(*stream).or_default();
            *buckets += 1;
            (client.bucket, client.resumes, client.usage.allowed_before) = (*buckets, true, 0);
        }
    }

    /// Callers that ask for each request.
    fn call(&mut self) -> bool {
        let check = Check {
            key: self.key,
            limit: &self.limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        };
        self.memory.apply_single(&check, self.now).unwrap().decision.verdict.passes()
    }

    /// A client opens another stream.
    pub(super) fn resume(&mut self, from: u64, to: u64) {
        self.leave(from);
        let mut client = self.clients.remove(&from).expect("a client");
        client.usage.allowed_before = 0;
        let report = DividerReport::Resumed(client.take_usage());
        self.clients.insert(to, client);
        let assignments = self.dividers.report(&self.of(to, report), self.now);
        self.deliver(assignments);
        self.next_report.insert(to, self.now.plus(5 * SECOND));
    }

    pub(super) fn leave(&mut self, stream: u64) {
        let assignments = self.dividers.report(&self.of(stream, DividerReport::End), self.now);
        self.deliver(assignments);
        self.next_report.remove(&stream);
    }

    /// Runs for a time with so many hits a second of each client, and of callers. Returns what passed of each of them.
    pub(super) fn run(&mut self, seconds: f64, demands: &[(u64, f64)], calls: f64) -> Vec<u64> {
        let mut each = vec![0; demands.len() + 1];
        for _ in 0..(seconds * SECOND as f64 / TICK as f64) as u64 {
            self.now = self.now.plus(TICK);
            let assignments = self.dividers.turn(self.now, |_| true);
            self.deliver(assignments);
            for client in self.clients.values_mut() {
                let more = client.per_second * TICK as f64 / SECOND as f64;
                client.tokens = (client.tokens + more).min(client.max);
            }
            for (index, (stream, demand)) in demands.iter().enumerate() {
                let buckets = &mut self.buckets;
                self.clients.entry(*stream).or_insert_with(|| {
                    let number = buckets.entry(*stream).and_modify(|number| *number += 1).or_default();
                    Client { bucket: *number, ..Client::default() }
                });
                let due = self.due.entry((*stream, 0)).or_default();
                *due += demand * TICK as f64 / SECOND as f64;
                while self.due[&(*stream, 0)] >= 1.0 {
                    *self.due.get_mut(&(*stream, 0)).unwrap() -= 1.0;
                    let is_new = !self.next_report.contains_key(stream);
                    if self.clients.get_mut(stream).unwrap().ask(self.now) {
                        each[index] += 1;
                        self.passed.push(self.now);
                    }
                    if is_new {
                        self.report(*stream);
                    }
                }
            }
            let due = self.due.entry((u64::MAX, 0)).or_default();
            *due += calls * TICK as f64 / SECOND as f64;
            while self.due[&(u64::MAX, 0)] >= 1.0 {
                *self.due.get_mut(&(u64::MAX, 0)).unwrap() -= 1.0;
                if self.call() {
                    each[demands.len()] += 1;
                    self.passed.push(self.now);
                }
            }
            let due: Vec<u64> = self
                .next_report
                .iter()
                .filter(|(_, at)| **at <= self.now)
                .map(|(stream, _)| *stream)
                .collect();
            due.into_iter().for_each(|stream| self.report(stream));
        }
        each
    }

    /// The most that passed in any time beyond a rate of so many hits a second.
    pub(super) fn most_beyond(&self, per_second: f64) -> f64 {
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for (index, at) in self.passed.iter().enumerate() {
            let level = index as f64 - per_second * at.nanos_since(START) as f64 / SECOND as f64;
            least = least.min(level);
            most = most.max(level + 1.0 - least);
        }
        most
    }

    /// The most that passed in any span of this length.
    pub(super) fn most_in(&self, span: u64) -> u64 {
        let (mut first, mut most) = (0, 0);
        for (last, at) in self.passed.iter().enumerate() {
            while self.passed[first].plus(span) <= *at {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most as u64
    }
}
