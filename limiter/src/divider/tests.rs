//! The laws of the divider, over histories of reports, with a counter in memory beside it.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{Excess, FixedWindow, Limit, Operation, Rate, TokenBucket, Window},
    descriptor::{Entry, Key, KeyText, Secret},
    rules::QuotaTerms,
    store::{Check, Memory, OnFull, OnRefusal},
    time::{SECOND, Timestamp},
};

const MINUTE: u64 = 60 * SECOND;
/// One tick before a minute.
const START: Timestamp = Timestamp::from_nanos(1_790_000_040 * SECOND - TICK);

fn bucket(per_second: u64, burst: u64) -> Limit {
    let one = NonZeroU64::new(SECOND).unwrap();
    let rate = Rate::new(NonZeroU64::new(per_second).unwrap(), one);
    Limit::TokenBucket(TokenBucket { rate, burst, excess: Excess::Refuse })
}

fn window(limit: u64, nanos: u64) -> Limit {
    Limit::FixedWindow(FixedWindow {
        limit,
        window: Window::of_nanos(nanos).unwrap(),
        excess: Excess::Refuse,
    })
}

fn id(stream: u64) -> SubscriberId {
    SubscriberId { replica: 0, stream, bucket: 0 }
}

/// What Envoy makes of its assignments for one bucket: hits are spread evenly over time.
#[derive(Clone, Debug, Default)]
struct Client {
    tokens: f64,
    max: f64,
    per_second: f64,
    expires_at: Timestamp,
    usage: Usage,
    admitted: u64,
}

impl Client {
    fn assign(&mut self, assignment: Assignment, now: Timestamp) {
        match assignment {
            Assignment::Share(rate) => {
                // A changed bucket keeps the ratio to which it is full; one after a refusal of all begins full.
                let ratio =
                    if self.per_second > 0.0 && self.max > 0.0 { self.tokens / self.max } else { 1.0 };
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

    fn take_usage(&mut self) -> Usage {
        let usage = self.usage;
        self.usage = Usage { allowed_before: usage.allowed_in_all(), ..Usage::default() };
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
struct World {
    dividers: Dividers,
    memory: Arc<Memory>,
    limit: Limit,
    key: Key,
    now: Timestamp,
    clients: BTreeMap<u64, Client>,
    terms: BTreeMap<u64, QuotaTerms>,
    next_report: BTreeMap<u64, Timestamp>,
    due: BTreeMap<(u64, u64), f64>,
    // The instant of everything that passed.
    passed: Vec<Timestamp>,
}

const TICK: u64 = SECOND / 100;

impl World {
    fn new(limit: Limit) -> Self {
        let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
        let dividers = Dividers::new(memory.clone());
        let mut text = KeyText::new("test");
        text.entry(Entry { key: "name", value: "a" });
        let key = text.key(&[], &Secret::from_bytes([1; 16]));
        let (clients, terms, next_report) = Default::default();
        Self {
            dividers,
            memory,
            limit,
            key,
            now: START,
            clients,
            terms,
            next_report,
            due: BTreeMap::new(),
            passed: vec![],
        }
    }

    fn deliver(&mut self, assignments: Assignments) {
        for (id, assignment) in assignments {
            if let Some(client) = self.clients.get_mut(&id.stream) {
                client.assign(assignment, self.now);
            }
        }
    }

    fn of(&self, stream: u64, report: Report) -> SubscriberReport {
        let terms = self.terms.get(&stream).copied().unwrap_or_default();
        SubscriberReport { key: self.key, limit: self.limit.clone(), id: id(stream), terms, report }
    }

    fn report(&mut self, stream: u64) {
        let Some(client) = self.clients.get_mut(&stream) else { return };
        let report = Report::Usage(client.take_usage());
        let assignments = self.dividers.report(&self.of(stream, report), self.now);
        self.deliver(assignments);
        self.next_report.insert(stream, self.now.plus(5 * SECOND));
    }

    /// Callers that ask for each request.
    fn call(&mut self) -> bool {
        let check = Check {
            key: self.key,
            limit: &self.limit,
            operation: Operation::Charge(1),
            on_refusal: OnRefusal::TakeBack,
        };
        self.memory.apply_single(&check, self.now).unwrap().decision.verdict.passes()
    }

    /// A client opens another stream.
    fn resume(&mut self, from: u64, to: u64) {
        self.leave(from);
        let mut client = self.clients.remove(&from).expect("a client");
        client.usage.allowed_before = 0;
        let report = Report::Resumed(client.take_usage());
        self.clients.insert(to, client);
        let assignments = self.dividers.report(&self.of(to, report), self.now);
        self.deliver(assignments);
        self.next_report.insert(to, self.now.plus(5 * SECOND));
    }

    fn leave(&mut self, stream: u64) {
        let assignments = self.dividers.report(&self.of(stream, Report::End), self.now);
        self.deliver(assignments);
        self.next_report.remove(&stream);
    }

    /// Runs for a time with so many hits a second of each client, and of callers. Returns what passed of each of them.
    fn run(&mut self, seconds: f64, demands: &[(u64, f64)], calls: f64) -> Vec<u64> {
        let mut each = vec![0; demands.len() + 1];
        for _ in 0..(seconds * SECOND as f64 / TICK as f64) as u64 {
            self.now = self.now.plus(TICK);
            let assignments = self.dividers.turn(self.now, |_| true);
            self.deliver(assignments);
            for (index, (stream, demand)) in demands.iter().enumerate() {
                let client = self.clients.entry(*stream).or_default();
                client.tokens =
                    (client.tokens + client.per_second * TICK as f64 / SECOND as f64).min(client.max);
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

    /// The most that passed in any span of this length.
    fn most_in(&self, span: u64) -> u64 {
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

#[test]
fn rate_is_divided_by_demand_and_follows_a_shift() {
    let mut world = World::new(bucket(100, 20));
    world.run(10.0, &[(1, 150.0), (2, 60.0), (3, 5.0)], 0.0);
    let each = world.run(10.0, &[(1, 150.0), (2, 60.0), (3, 5.0)], 0.0);
    assert!(each.iter().sum::<u64>() >= 950, "{each:?}");
    assert!(each[2] >= 45 && each[0].abs_diff(each[1]) <= 60, "{each:?}");
    world.run(10.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    assert!(each.iter().sum::<u64>() >= 950, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        // One more for each client whose part of the burst is below one.
        assert!(most <= 20 + 100 * seconds + 3, "{most} in {seconds} s");
    }
}

#[test]
fn time_until_shares_are_adjusted_is_that_of_the_slowest() {
    let mut world = World::new(bucket(100, 20));
    world.run(20.0, &[(1, 150.0)], 0.0);
    let counted = |world: &World| world.dividers.stats().convergence.buckets();
    let before = counted(&world);
    assert!(before.count > 0 && before.sum < 0.1, "nothing waits for others: {before:?}");
    // The newcomer waits until the smaller share of the other one is in force.
    world.run(3.0, &[(1, 150.0), (2, 50.0)], 0.0);
    let shared = counted(&world);
    assert!((0.45..0.65).contains(&(shared.sum - before.sum)), "{shared:?}");
    // The share of a client that has gone is in force for its time.
    world.run(20.0, &[(1, 150.0), (2, 50.0)], 0.0);
    let (before, since) = (counted(&world), world.now);
    world.leave(2);
    world.run(30.0, &[(1, 150.0)], 0.0);
    let after = counted(&world);
    assert!(after.count > before.count, "{:?} since {since:?}", after);
    assert!((5.0..=16.5).contains(&(after.sum - before.sum)), "{:?}", after.sum - before.sum);
}

#[test]
fn demand_beyond_a_share_divides_again_while_other_shares_are_ample() {
    let mut world = World::new(bucket(1_000, 200));
    let demands = [(1, 100.0), (2, 100.0), (3, 100.0)];
    world.run(30.0, &demands, 0.0);
    let run = |clients: &[(u64, f64)], world: &mut World| {
        world.run(11.0, clients, 0.0);
        let granted = world.dividers.granted().rate;
        assert!(granted.per_second <= 1_000 && granted.burst <= 203, "{granted:?}");
        world.run(5.0, clients, 0.0)
    };
    // Within its share a client gets all that it asks for, and so does one that asks for most of the rate.
    for demands in [[(1, 120.0), (2, 80.0), (3, 0.0)], [(1, 700.0), (2, 80.0), (3, 5.0)]] {
        let each = run(&demands, &mut world);
        for ((_, demand), passed) in demands.iter().zip(&each) {
            assert!(*passed as f64 >= 0.98 * demand * 5.0, "{each:?} of {demands:?}");
        }
    }
}

#[test]
fn demand_beyond_a_scarce_share_leaves_it_until_others_need_less() {
    let mut world = World::new(bucket(100, 20));
    let shares = |world: &World| [1, 2, 3, 4].map(|stream| world.clients[&stream].per_second);
    world.run(20.0, &[(1, 60.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    let before = shares(&world);
    for other in [70.0, 150.0, 50.0] {
        world.run(5.0, &[(1, other), (2, other + 10.0), (3, 120.0), (4, 5.0)], 0.0);
        assert_eq!(shares(&world), before);
    }
    let each = world.run(12.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    assert!(each[0] >= 118, "{each:?}");
    let each = world.run(10.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 0.0);
    assert!(each[1] >= 380 && each[2] >= 380 && each[3] >= 49, "{each:?}");
    // Callers get their part of a limit that was settled.
    world.run(12.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 20.0);
    let each = world.run(10.0, &[(1, 10.0), (2, 80.0), (3, 100.0), (4, 5.0)], 20.0);
    assert!(each[4] >= 190 && each.iter().sum::<u64>() >= 950, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 4, "{most} in {seconds} s");
    }
}

#[test]
fn subscribers_are_listed_by_demand_until_their_parts_end() {
    let mut world = World::new(bucket(100, 20));
    assert_eq!(world.dividers.subscribers(world.key, 2, world.now), None);
    world.run(20.0, &[(1, 5.0), (2, 60.0), (3, 150.0)], 0.0);
    world.leave(3);
    let listed = world.dividers.subscribers(world.key, 2, world.now).unwrap();
    assert_eq!(listed.number, 3);
    let [first, second] = listed.first[..] else { panic!("{listed:?}") };
    assert_eq!((first.id.stream, first.has_ended), (3, true));
    assert_eq!((second.id.stream, second.has_ended), (2, false));
    assert!((145.0..=155.0).contains(&first.demand), "{first:?}");
    assert!(matches!(first.part, Part::Share(rate) if (40..=60).contains(&rate.per_second)), "{first:?}");
    world.leave(2);
    world.run(20.0, &[(1, 5.0)], 3.0);
    let listed = world.dividers.subscribers(world.key, 2, world.now).unwrap();
    assert_eq!((listed.number, listed.first[0].id.stream), (1, 1));
    assert!((2.0..=4.0).contains(&listed.callers), "{listed:?}");
}

#[test]
fn single_client_gets_the_whole_rate_after_its_first_report() {
    let mut world = World::new(bucket(100, 20));
    let first = world.run(4.0, &[(1, 150.0)], 0.0)[0];
    assert!((190..=230).contains(&first), "{first}");
    world.run(2.0, &[(1, 150.0)], 0.0);
    let then = world.run(10.0, &[(1, 150.0)], 0.0)[0];
    assert!(then >= 990, "{then}");
}

#[test]
fn rate_is_shared_by_clients_and_callers() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0)], 150.0);
    let each = world.run(20.0, &[(1, 150.0)], 150.0);
    let sum: u64 = each.iter().sum();
    assert!((1_800..=2_020).contains(&sum) && each[0] >= 800 && each[1] >= 800, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 1, "{most} in {seconds} s");
    }
}

#[test]
fn share_of_ended_client_returns_after_its_time() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0), (2, 150.0)], 0.0);
    world.leave(1);
    let before = world.run(10.0, &[(2, 150.0)], 0.0)[0];
    assert!(before <= 600, "{before}");
    world.run(8.0, &[(2, 150.0)], 0.0);
    let after = world.run(10.0, &[(2, 150.0)], 0.0)[0];
    assert!(after >= 950, "{after}");
}

fn terms(weight: u32, floor: u64) -> QuotaTerms {
    QuotaTerms { weight: NonZeroU32::new(weight).unwrap(), floor }
}

#[test]
fn scarce_rate_is_divided_by_weight() {
    let mut world = World::new(bucket(100, 20));
    world.terms = [(1, terms(3, 0)), (2, terms(1, 0))].into();
    world.run(12.0, &[(1, 150.0), (2, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 150.0), (2, 150.0)], 0.0);
    assert!(each[0].abs_diff(750) <= 40 && each[1].abs_diff(250) <= 40, "{each:?}");
    // What the heavier one does not need is for the other.
    world.run(12.0, &[(1, 20.0), (2, 150.0)], 0.0);
    let each = world.run(10.0, &[(1, 20.0), (2, 150.0)], 0.0);
    assert!(each[0] >= 190 && each[1] >= 700, "{each:?}");
}

#[test]
fn floor_of_idle_client_passes_at_once() {
    let mut world = World::new(bucket(100, 20));
    world.terms = [(1, terms(1, 30))].into();
    world.run(12.0, &[(1, 1.0), (2, 200.0)], 0.0);
    world.run(20.0, &[(1, 0.0), (2, 200.0)], 0.0);
    let each = world.run(4.0, &[(1, 60.0), (2, 200.0)], 0.0);
    assert!(each[0] >= 4 * 30 - 5, "{each:?}");
}

#[test]
fn budget_is_divided_by_weight() {
    let mut world = World::new(window(500, MINUTE));
    world.terms = [(1, terms(4, 0)), (2, terms(1, 0))].into();
    let each = world.run(59.9, &[(1, 100.0), (2, 100.0)], 0.0);
    assert_eq!(each.iter().sum::<u64>(), 500, "{each:?}");
    assert!(each[0] > 2 * each[1], "{each:?}");
}

#[test]
fn floor_of_budget_is_kept_for_a_client_that_waits() {
    let mut world = World::new(window(500, MINUTE));
    world.terms = [(1, terms(1, 100))].into();
    world.run(1.0, &[(1, 1.0)], 0.0);
    world.run(40.0, &[(1, 0.0), (2, 100.0), (3, 100.0)], 0.0);
    let each = world.run(18.9, &[(1, 20.0), (2, 100.0), (3, 100.0)], 0.0);
    assert!(each[0] >= 100 - 1, "{each:?}");
    assert_eq!(world.passed.len(), 500);
}

#[test]
fn client_goes_on_with_its_share_over_another_stream() {
    let mut world = World::new(bucket(100, 20));
    world.run(12.0, &[(1, 150.0), (2, 20.0)], 0.0);
    world.resume(1, 3);
    let each = world.run(5.0, &[(3, 150.0), (2, 20.0)], 0.0);
    assert!(each[0] >= 350 && each[1] >= 90, "{each:?}");
    for seconds in [1, 5, 10] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 20 + 100 * seconds + 2, "{most} in {seconds} s");
    }
}

#[test]
fn division_goes_on_in_another_replica() {
    for limit in [bucket(100, 20), window(6_000, MINUTE)] {
        let mut world = World::new(limit);
        let demands = [(1, 30.0), (2, 150.0)];
        world.run(12.0, &demands, 5.0);
        let slot = world.memory.slot(world.key);
        let bytes = postcard::to_stdvec(&world.dividers.take_slot(slot, world.now)).unwrap();
        let divisions: SlotDivisions = postcard::from_bytes(&bytes).unwrap();
        assert!(world.dividers.is_empty() && divisions.subscribers() == 2);
        world.memory.grants().end(world.key, world.now);
        world.dividers = Dividers::new(world.memory.clone());
        world.dividers.add_slot(slot, divisions, world.now);
        let each = world.run(10.0, &demands, 5.0);
        world.run(37.9, &demands, 5.0);
        if world.limit.hit_rate().is_some() {
            assert!((900..=1_020).contains(&each.iter().sum::<u64>()), "{each:?}");
            let most = world.most_in(10 * SECOND);
            assert!(most <= 20 + 1_000 + 2, "{most} in 10 s");
        } else {
            assert!(each[0] >= 290 && each[1] >= 1_400, "{each:?}");
            assert!((5_950..=6_000).contains(&world.passed.len()), "{}", world.passed.len());
        }
    }
}

#[test]
fn hits_of_lost_reports_are_charged_with_the_next_one() {
    let world = World::new(window(500, MINUTE));
    let report = |usage, after: u64| {
        world.dividers.report(&world.of(1, Report::Usage(usage)), START.plus(after * SECOND));
        world.memory.admin().peek(world.key, &world.limit, START.plus(after * SECOND)).peek.remaining
    };
    assert_eq!(report(Usage { denied: 1, ..Usage::default() }, 1), 500);
    // A report of 15 hits is lost. The refusal proves that nothing is left of the slice.
    assert_eq!(report(Usage { allowed: 2, denied: 0, allowed_before: 15 }, 11), 483);
    assert_eq!(report(Usage { allowed: 3, denied: 1, allowed_before: 17 }, 16), 480);
}

#[test]
fn division_moves_between_clocks() {
    let mut divisions = SlotDivisions::default();
    let world = World::new(bucket(100, 20));
    world.dividers.report(&world.of(1, Report::Usage(Usage { allowed: 1, ..Usage::default() })), START);
    let slot = world.memory.slot(world.key);
    divisions.extend(world.dividers.take_slot(slot, START));
    world.dividers.add_slot(slot, divisions, START.plus(MINUTE));
    // As much of its time is left as before.
    world.dividers.turn(START.plus(MINUTE + 15 * SECOND), |_| true);
    assert!(!world.dividers.is_empty());
    world.dividers.turn(START.plus(MINUTE + 17 * SECOND), |_| true);
    assert!(world.dividers.is_empty());
}

#[test]
fn budget_is_used_exactly_in_a_fresh_window() {
    let mut world = World::new(window(500, MINUTE));
    let each = world.run(59.9, &[(1, 14.0), (2, 6.0), (3, 1.5)], 0.0);
    assert_eq!(each.iter().sum::<u64>(), 500, "{each:?}");
}

#[test]
fn budget_is_never_exceeded_in_any_window() {
    let mut world = World::new(window(500, MINUTE));
    for minute in 0..5 {
        let demands = [(1, 14.0), (2 + minute % 2, 30.0), (7, 1.5)];
        let sum: u64 = world.run(60.0, &demands, 3.0).iter().sum();
        assert!((400..=500).contains(&sum), "{sum} in minute {minute}");
    }
}

#[test]
fn budget_below_the_demand_refuses_only_the_first_requests() {
    let mut world = World::new(window(500, MINUTE));
    let each = world.run(60.0, &[(1, 3.0), (2, 2.0), (3, 1.5)], 0.0);
    assert!(each.iter().sum::<u64>() >= 385 - 10, "{each:?}");
}

#[test]
fn slow_rate_goes_from_one_client_to_the_next() {
    let half = Rate::new(NonZeroU64::new(30).unwrap(), NonZeroU64::new(MINUTE).unwrap());
    let limit = Limit::TokenBucket(TokenBucket { rate: half, burst: 10, excess: Excess::Refuse });
    let mut world = World::new(limit);
    let each = world.run(120.0, &[(1, 1.0), (2, 1.0), (3, 1.0)], 0.0);
    let sum: u64 = each.iter().sum();
    assert!((50..=70).contains(&sum) && each[..3].iter().all(|one| *one >= 12), "{each:?}");
    for seconds in [1, 10, 60] {
        let most = world.most_in(seconds * SECOND);
        assert!(most <= 10 + seconds / 2, "{most} in {seconds} s");
    }
}

#[test]
fn divider_without_its_ledger_grants_nothing_unknown() {
    let mut world = World::new(window(500, MINUTE));
    world.run(20.0, &[(1, 10.0), (2, 10.0)], 0.0);
    // Another process takes over: the counter is known, the grants are not.
    world.memory.grants().end(world.key, world.now);
    world.dividers = Dividers::new(world.memory.clone()).after_restart(world.now);
    let sum: u64 = world.run(39.9, &[(1, 10.0), (2, 10.0)], 0.0).iter().sum();
    let before = world.passed.len() as u64 - sum;
    assert!(before + sum <= 500, "{before} + {sum}");
}

#[test]
fn slice_that_may_have_ended_is_not_renewed() {
    let world = World::new(window(500, MINUTE));
    let id = id(1);
    let report = |after: u64| {
        let usage = Report::Usage(Usage { denied: 1, ..Usage::default() });
        world.dividers.report(&world.of(1, usage), START.plus(after * SECOND))
    };
    assert_eq!(report(1), [(id, Assignment::Slice(20))]);
    assert_eq!(report(11), [(id, Assignment::Renewal(20))]);
    assert_eq!(report(26), [(id, Assignment::Slice(20))]);
    // All of the first slice counts as used.
    let free = |now| world.memory.admin().peek(world.key, &world.limit, now).peek.remaining;
    assert_eq!(free(START.plus(26 * SECOND)), 480);
    let listed = world.dividers.subscribers(world.key, 9, START.plus(26 * SECOND)).unwrap();
    assert_eq!(listed.first[0].part, Part::Slice { hits: 20, left: 20 });
}

/// The terms of the clients 1 to 5, with floors of at most 5.
fn any_terms() -> impl Strategy<Value = BTreeMap<u64, QuotaTerms>> {
    prop::collection::vec((1..1_000_u32, 0..=5_u64), 5).prop_map(|each| {
        (1..).zip(each).map(|(stream, (weight, floor))| (stream, terms(weight, floor))).collect()
    })
}

fn demands() -> impl Strategy<Value = Vec<(u64, f64)>> {
    prop::collection::vec(0..120_u32, 1..6)
        .prop_map(|each| (1..).zip(each).map(|(stream, demand)| (stream, f64::from(demand))).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rate_is_kept_over_any_history(
        per_second in 10..100_u64,
        burst in 6..30_u64,
        phases in prop::collection::vec((demands(), 0..40_u32), 1..4),
        terms in any_terms(),
    ) {
        let mut world = World::new(bucket(per_second, burst));
        world.terms = terms;
        for (demands, calls) in phases {
            world.run(12.0, &demands, f64::from(calls));
            let granted = world.dividers.granted().rate;
            prop_assert!(granted.per_second <= per_second && granted.burst <= burst + 6, "{:?}", granted);
        }
        for seconds in [1, 5, 10] {
            let most = world.most_in(seconds * SECOND);
            // A share whose part of the burst is below one has a burst of one.
            prop_assert!(most <= burst + per_second * seconds + 6, "{} in {} s", most, seconds);
        }
    }

    #[test]
    fn client_with_demand_gets_something_within_two_reports(
        per_second in 10..100_u64, demands in demands(), terms in any_terms(),
    ) {
        let mut world = World::new(bucket(per_second, 20));
        world.terms = terms;
        world.run(11.0, &demands, 20.0);
        for _ in 0..2 {
            let each = world.run(11.0, &demands, 20.0);
            for ((_, demand), passed) in demands.iter().zip(&each) {
                prop_assert!(*demand < 1.0 || *passed > 0, "{:?} of {:?}", each, demands);
            }
        }
    }

    #[test]
    fn floor_is_kept_while_all_floors_fit(
        per_second in 31..100_u64, demands in demands(), terms in any_terms(), calls in 0..100_u32,
    ) {
        // A floor of at most 5 for each of five clients, and one hit for callers.
        let mut world = World::new(bucket(per_second, 40));
        world.terms = terms.clone();
        world.run(16.0, &demands, f64::from(calls));
        for (stream, _) in demands.iter().filter(|(_, demand)| *demand > 0.0) {
            let share = world.clients[stream].per_second;
            prop_assert!(share >= terms[stream].floor as f64, "{} of {:?} with {:?}", share, demands, terms);
        }
    }

    #[test]
    fn budget_is_kept_over_any_history(
        limit in 20..400_u64,
        phases in prop::collection::vec((demands(), 0..10_u32), 1..4),
        terms in any_terms(),
    ) {
        let mut world = World::new(window(limit, MINUTE));
        world.terms = terms;
        for (demands, calls) in phases {
            let sum: u64 = world.run(60.0, &demands, f64::from(calls)).iter().sum();
            prop_assert!(sum <= limit, "{} of {}", sum, limit);
        }
    }
}
