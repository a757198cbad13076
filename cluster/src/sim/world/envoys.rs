//! Clients that decide by themselves: what they are assigned, what they report, and what passes at all of them together.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use rand::RngExt;
use tollgate_counter::{
    algorithm::{Excess, FixedWindow, HitRate, Limit, QuotaTerms, Rate, TokenBucket, Window},
    descriptor::Key,
    time::SECOND,
};
use tollgate_store::divider::{
    ASSIGNMENT_TTL, Assignment, Assignments, DividerReport, SubscriberId, SubscriberUsage, UNCERTAIN,
};

use crate::{
    message::check::{RemoteCheck, RemoteOperation},
    sim::{
        keys,
        world::{MILLISECOND, STEP, World},
    },
};

/// Hits of the budget in its window, which is longer than any script.
pub(in crate::sim) const BUDGET_HITS: u64 = 4_000;
/// The limit that is divided as a rate.
pub(in crate::sim) const RATE: HitRate = HitRate { per_second: 100, burst: 20 };
/// The time from one report to the next.
const REPORT_EVERY: u64 = 5 * SECOND;
/// The numbers of the keys among those of the simulation, which has fewer.
const FIRST_KEY: usize = 9_000;

/// The limits that clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) enum Quota {
    /// A window.
    Budget,
    /// A bucket.
    Rate,
}

const QUOTAS: [Quota; 2] = [Quota::Budget, Quota::Rate];

impl Quota {
    pub(in crate::sim) fn key(self) -> Key {
        keys::key(FIRST_KEY + self as usize)
    }

    fn limit(self) -> Limit {
        let [second, per_second] = [SECOND, RATE.per_second].map(|number| NonZeroU64::new(number).unwrap());
        let limit = BUDGET_HITS;
        let burst = RATE.burst;
        let excess = Excess::Refuse;
        match self {
            Self::Budget => {
                let window = Window::from_nanos(100 * 86_400 * SECOND).unwrap();
                Limit::FixedWindow(FixedWindow { limit, window, excess })
            }
            Self::Rate => {
                Limit::TokenBucket(TokenBucket { rate: Rate::new(per_second, second), burst, excess })
            }
        }
    }
}

/// One client, with a bucket for each limit. The bucket of a number belongs to the limit of that number.
#[derive(Debug, Default)]
struct Envoy {
    caller: u32,
    // The replica and the number of its stream, while there is one.
    stream: Option<(usize, u64)>,
    next_report: u64,
    // Hits that are asked for in a second, of each limit.
    demand: f64,
    buckets: [Bucket; 2],
}

#[derive(Debug, Default)]
struct Bucket {
    max: f64,
    per_second: f64,
    tokens: f64,
    expires_at: u64,
    due: f64,
    usage: SubscriberUsage,
    has_reported: bool,
}

/// All clients, and what has passed.
#[derive(Debug, Default)]
pub(super) struct Envoys {
    each: Vec<Envoy>,
    streams: u64,
    // Assignments on their way: when they arrive.
    in_flight: Vec<(u64, SubscriberId, Assignment)>,
    // The instant of each hit that passed.
    passed: BTreeMap<Quota, Vec<u64>>,
    // Hits of the budget that were assigned, and when.
    slices: Vec<(u64, u64)>,
}

impl Bucket {
    fn assign(&mut self, assignment: Assignment, now: u64) {
        match assignment {
            Assignment::Share(rate) => {
                let max = rate.burst as f64;
                let per_second = rate.per_second as f64;
                // A changed bucket keeps the ratio to which it is full; one after a refusal of all begins full.
                let was_open = self.per_second > 0.0 && self.max > 0.0 && now < self.expires_at;
                let ratio = if was_open { self.tokens / self.max } else { 1.0 };
                (self.max, self.per_second, self.tokens) = (max, per_second, max * ratio);
            }
            Assignment::Slice(hits) => {
                (self.max, self.per_second, self.tokens) = (hits as f64, 0.0, hits as f64);
            }
            // A replica does not renew what it has not sent, or what may have ended.
            Assignment::Renewal(hits)
                if self.max != hits as f64 || self.expires_at <= now + UNCERTAIN.as_nanos() as u64 =>
            {
                return;
            }
            Assignment::Renewal(_) => {}
            Assignment::Deny => (self.max, self.per_second, self.tokens) = (0.0, 0.0, 0.0),
        }
        self.expires_at = now + ASSIGNMENT_TTL.as_nanos() as u64;
    }

    /// Begins with another stream.
    fn begin(&mut self) {
        (self.has_reported, self.usage.allowed_before) = (false, 0);
    }

    fn ask(&mut self, now: u64) -> bool {
        let passes = now < self.expires_at && self.tokens >= 1.0;
        if passes {
            self.tokens -= 1.0;
            self.usage.allowed += 1;
        } else {
            self.usage.denied += 1;
        }
        passes
    }
}

impl World {
    /// Starts clients of these callers, each of which asks for so many hits a second of each limit.
    pub(super) fn start_envoys(&mut self, envoys: &[(u32, u32)]) {
        for (caller, demand) in envoys {
            let next_report = self.now + self.rng.random_range(0..REPORT_EVERY);
            let demand = f64::from(*demand);
            self.envoys.each.push(Envoy { caller: *caller, next_report, demand, ..Envoy::default() });
        }
    }

    /// The streams of a replica end, with a report of that if the replica goes on.
    pub(super) fn end_streams(&mut self, replica: usize) {
        for index in 0..self.envoys.each.len() {
            let envoy = &mut self.envoys.each[index];
            let Some((_, stream)) = envoy.stream.take_if(|(on, _)| *on == replica) else { continue };
            envoy.buckets.iter_mut().for_each(Bucket::begin);
            for quota in QUOTAS {
                self.report_quota(replica, stream, quota, DividerReport::End);
            }
        }
    }

    /// Takes what a replica passes to its streams.
    pub(super) fn assign_quotas(&mut self, _replica: usize, assignments: Assignments) {
        for (id, assignment) in assignments {
            let at = self.now + self.rng.random_range(0..10 * MILLISECOND);
            self.envoys.in_flight.push((at, id, assignment));
        }
    }

    /// What clients do in one step of time.
    pub(super) fn run_envoys(&mut self) {
        let now = self.now;
        let arrived: Vec<_> = self.envoys.in_flight.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, id, assignment) in arrived {
            let is_of = |envoy: &&mut Envoy| envoy.stream.is_some_and(|(_, stream)| stream == id.stream);
            if let Some(envoy) = self.envoys.each.iter_mut().find(is_of) {
                envoy.buckets[id.bucket as usize].assign(assignment, now);
                if id.bucket == Quota::Budget as u32
                    && let Assignment::Slice(hits) = assignment
                {
                    self.envoys.slices.push((now, hits));
                }
            }
        }
        for index in 0..self.envoys.each.len() {
            let envoy = &mut self.envoys.each[index];
            for (quota, bucket) in QUOTAS.into_iter().zip(&mut envoy.buckets) {
                let time = STEP as f64 / SECOND as f64;
                bucket.tokens = bucket.max.min(bucket.tokens + bucket.per_second * time);
                bucket.due += envoy.demand * time;
                while bucket.due >= 1.0 {
                    bucket.due -= 1.0;
                    if bucket.ask(now) {
                        self.envoys.passed.entry(quota).or_default().push(now);
                    }
                }
            }
            if envoy.next_report <= now {
                envoy.next_report += REPORT_EVERY;
                self.report_envoy(index);
            }
        }
    }

    fn report_envoy(&mut self, index: usize) {
        if self.envoys.each[index].stream.is_none_or(|(replica, _)| !self.takes_reports(replica)) {
            let replica = self.random_replica();
            self.envoys.streams += 1;
            let number = u64::from(self.envoys.each[index].caller) << u32::BITS | self.envoys.streams;
            let stream = replica.map(|replica| (replica, number));
            let envoy = &mut self.envoys.each[index];
            envoy.stream = stream;
            envoy.buckets.iter_mut().for_each(Bucket::begin);
        }
        for quota in QUOTAS {
            let envoy = &mut self.envoys.each[index];
            let bucket = &mut envoy.buckets[quota as usize];
            // The counts are set to 0 also if there is no stream.
            let usage = std::mem::take(&mut bucket.usage);
            let Some((replica, stream)) = envoy.stream else { continue };
            bucket.usage.allowed_before = usage.allowed_before + usage.allowed;
            let is_first = !std::mem::replace(&mut bucket.has_reported, true);
            let report = if is_first { DividerReport::Resumed(usage) } else { DividerReport::Usage(usage) };
            self.report_quota(replica, stream, quota, report);
        }
    }

    fn takes_reports(&self, replica: usize) -> bool {
        self.processes.get(&replica).is_some_and(|process| !process.is_leaving)
    }

    fn report_quota(&mut self, replica: usize, stream: u64, quota: Quota, report: DividerReport) {
        let now = self.time_of(replica);
        let id = SubscriberId { replica: keys::member(replica).number(), stream, bucket: quota as u32 };
        let operation = RemoteOperation::Divide(id, QuotaTerms::default(), report);
        let check = RemoteCheck { key: quota.key(), limit: quota.limit(), operation, lease_hits: 0 };
        if let Some(process) = self.processes.get_mut(&replica) {
            process.node.send(check, now);
            self.act(replica);
        }
    }

    /// Hits of a limit that have passed at clients in any time of this length, at most.
    pub(in crate::sim) fn most_in(&self, quota: Quota, time: Duration) -> u64 {
        let passed = self.envoys.passed.get(&quota).map(Vec::as_slice).unwrap_or_default();
        let time = time.as_nanos() as u64;
        let mut first = 0;
        let mut most = 0;
        for (last, at) in passed.iter().enumerate() {
            while passed[first] + time <= *at {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most as u64
    }

    /// Hits of a limit that have passed at clients from this instant on.
    pub(in crate::sim) fn passed_since(&self, quota: Quota, since: u64) -> u64 {
        let passed = self.envoys.passed.get(&quota).into_iter().flatten();
        passed.filter(|at| since <= **at).count() as u64
    }

    /// Hits of the budget that were assigned in this time.
    pub(in crate::sim) fn sliced_between(&self, from: u64, to: u64) -> u64 {
        self.envoys.slices.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, hits)| hits).sum()
    }
}
