//! The dividers of this process, each stored with the counter that it divides.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Granted, HitRate, Limit, QuotaTerms},
    descriptor::Key,
    each_apart,
    lock::Lock,
    metrics::{Histogram, MetricCounter, micros},
    time::Timestamp,
};

use crate::{
    divider::{
        Divider,
        assignment::{
            ASSIGNMENT_TTL, Assignment, DELIVERY_MAX, DividerReport, DivisionOutcome, brought,
            end_of_assignment, moved,
        },
    },
    memory::{
        Memory,
        grants::{CounterView, Turn},
    },
    slot::Slot,
    subscribers::{SubscriberId, Subscribers},
};

/// Dividers are spread over so many locks.
const SHARDS: usize = 64;
/// The subscribers that turns without a report visit in one call, so that nothing else waits long: several milliseconds.
const VISITS_MAX: usize = 8_192;

/// A report, and the counter whose limit is divided.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriberReport {
    /// The key of the counter.
    pub key: Key,
    /// The limit of the counter.
    pub limit: Limit,
    /// The subscriber.
    pub id: SubscriberId,
    /// The part of the limit to which the subscriber is entitled.
    pub terms: QuotaTerms,
    /// The report.
    pub report: DividerReport,
}

/// Takes reports to the dividers of their counters, on this replica or another one. The assignments that follow come
/// later.
pub trait Divide: fmt::Debug + Send + Sync {
    /// Sends these reports in their order.
    fn report(&self, reports: Vec<SubscriberReport>);
}

/// Assignments for subscribers.
pub type Assignments = Vec<(SubscriberId, Assignment)>;

/// The dividers of counters in memory.
#[derive(Debug)]
pub struct Dividers {
    memory: Arc<Memory>,
    shards: Box<[Lock<DividerShard>]>,
    // Where the next turns begin.
    next_shard: AtomicUsize,
    // By slot: until then, assignments may be in force that are not known here. In nanoseconds.
    learns_until: Box<[AtomicU64]>,
    stats: DividerStats,
}

#[derive(Debug, Default)]
struct DividerShard {
    // By slot, because the dividers of a slot go with it.
    dividers: BTreeMap<(Slot, Key), Placed>,
    // The next turn of each divider that has one.
    due: BTreeSet<(Timestamp, (Slot, Key))>,
    // Slots of which other hits are granted since this was asked last.
    changed: BTreeSet<Slot>,
}

#[derive(Debug)]
struct Placed {
    divider: Divider,
    // Invariant: also in `due`. At most the instant of the next turn: an earlier one stays, so that most reports leave
    // `due` as it is.
    next_at: Option<Timestamp>,
    // By the last turn.
    granted: Granted,
}

impl Placed {
    fn new(divider: Divider) -> Self {
        Self { granted: divider.granted(), divider, next_at: None }
    }
}

/// How the limits of a slot are divided, for another replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotDivisions {
    // What the clock of the sender showed.
    at: Timestamp,
    learns_until: Timestamp,
    #[serde(with = "each_apart")]
    each: Vec<(Key, Divider)>,
}

impl SlotDivisions {
    /// The number of subscribers.
    #[cfg(test)]
    pub(super) fn subscribers(&self) -> usize {
        self.each.iter().map(|(_, divider)| divider.len()).sum()
    }

    /// The memory of the divisions, in bytes.
    pub fn bytes(&self) -> usize {
        let heap: usize = self.each.iter().map(|(_, divider)| divider.heap_bytes()).sum();
        self.each.capacity() * size_of::<(Key, Divider)>() + heap
    }

    /// What is granted of each limit.
    pub fn granted(&self) -> impl Iterator<Item = (Key, &Limit, Granted)> {
        self.each.iter().map(|(key, divider)| (*key, divider.limit(), divider.granted()))
    }

    /// Adds other divisions of the same slot.
    pub fn extend(&mut self, other: Self) {
        self.move_to(other.at);
        self.learns_until = self.learns_until.max(other.learns_until);
        for (key, divider) in other.each {
            match self.each.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => known.add(divider, self.at),
                None => self.each.push((key, divider)),
            }
        }
    }

    /// Moves all instants to a clock that shows `to`.
    fn move_to(&mut self, to: Timestamp) {
        let from = std::mem::replace(&mut self.at, to);
        self.learns_until = moved(self.learns_until, from, to);
        self.each.iter_mut().for_each(|(_, divider)| divider.move_to(from, to));
    }
}

impl Dividers {
    /// Dividers of the counters of `memory`, of which nothing is granted.
    pub fn new(memory: Arc<Memory>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Lock::default()).collect(),
            next_shard: AtomicUsize::new(0),
            learns_until: (0..memory.slots()).map(|_| AtomicU64::default()).collect(),
            memory,
            stats: DividerStats::default(),
        }
    }

    /// The dividers after a restart: assignments of an earlier process may be in force.
    #[must_use]
    pub fn after_restart(self, now: Timestamp) -> Self {
        (0..self.memory.slots()).for_each(|slot| self.learn(Slot::at(slot), now));
        self
    }

    /// What has happened.
    pub fn stats(&self) -> &DividerStats {
        &self.stats
    }

    /// The number of counters that are divided.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().dividers.len()).sum()
    }

    /// Whether no counter is divided.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().dividers.is_empty())
    }

    /// What is granted of all counters.
    pub fn granted(&self) -> Granted {
        let mut all = Granted::default();
        for shard in &self.shards {
            for placed in shard.lock().dividers.values() {
                let Granted { rate, hits } = placed.granted;
                all.rate = all.rate.plus(rate);
                all.hits = all.hits.saturating_add(hits);
            }
        }
        all
    }

    /// Takes a report, and returns the assignments that follow.
    pub fn report(&self, report: &SubscriberReport, now: Timestamp) -> Assignments {
        let SubscriberReport { key, ref limit, id, terms, report } = *report;
        if let DividerReport::Counted(used) = report {
            self.memory.grants().charge(key, limit, used, now);
            return Assignments::new();
        }
        // That of the key itself, if it has one.
        let limit = &*self.memory.grants().limit_in_force(key, limit, now);
        let slot = self.memory.slot(key);
        let begins = matches!(report, DividerReport::Usage(_) | DividerReport::Resumed(_));
        let mut shard = self.shard(slot);
        let divider = match shard.dividers.entry((slot, key)) {
            Entry::Occupied(placed) => &mut placed.into_mut().divider,
            Entry::Vacant(place) if begins => {
                let divider = Divider::new(limit.clone(), self.learns_until(slot), now);
                &mut place.insert(Placed::new(divider)).divider
            }
            Entry::Vacant(_) => return Assignments::new(),
        };
        if begins && !divider.has_room_for(id) {
            self.stats.refused.increase();
            return Assignments::new();
        }
        // A subscriber ends under the limit that it had.
        if report != DividerReport::End {
            divider.set_limit(limit, now);
        }
        self.divide(&mut shard, (slot, key), now, |divider, view| {
            divider.report(id, terms, report, view, now)
        })
    }

    /// The subscribers of the counter of `key` at `now`, at most `max` of them; `None` if it is not divided here.
    pub fn subscribers(&self, key: Key, max: usize, now: Timestamp) -> Option<Subscribers> {
        let slot = self.memory.slot(key);
        let shard = self.shard(slot);
        shard.dividers.get(&(slot, key)).map(|placed| placed.divider.subscribers(max, now))
    }

    /// The replicas that have subscribers of the counters of a slot.
    pub fn replicas(&self, slot: Slot) -> BTreeSet<u64> {
        let shard = self.shard(slot);
        let placed = shard.dividers.range(slot.places()).map(|(_, placed)| placed);
        placed.flat_map(|placed| placed.divider.ids()).map(|id| id.replica).collect()
    }

    /// Ends the subscribers of a replica, of the counters of a slot.
    pub fn leave_all(&self, slot: Slot, replica: u64) {
        for (_, placed) in self.shard(slot).dividers.range_mut(slot.places()) {
            placed.divider.leave_all(replica);
        }
    }

    /// Makes turns that are due at `now` in slots that `may_divide`, and returns the assignments that follow. If there are
    /// many, the others wait for the next call.
    pub fn turn(&self, now: Timestamp, may_divide: impl Fn(Slot) -> bool) -> Assignments {
        let mut all = Assignments::new();
        let mut visits = 0;
        let first = self.next_shard.load(Ordering::Relaxed);
        for index in (first..first + SHARDS).map(|index| index % SHARDS) {
            let mut shard = self.shards[index].lock();
            let is_due = |(at, (slot, _)): &&(Timestamp, (Slot, Key))| *at <= now && may_divide(*slot);
            let due = shard.due.iter().take_while(|(at, _)| *at <= now).filter(is_due);
            for (_, place) in due.copied().take(VISITS_MAX).collect::<Vec<_>>() {
                if visits >= VISITS_MAX {
                    self.next_shard.store(index, Ordering::Relaxed);
                    return all;
                }
                visits += 1 + shard.dividers.get(&place).map_or(0, |placed| placed.divider.len());
                all.extend(self.divide(&mut shard, place, now, |divider, view| divider.turn(view, now)));
            }
        }
        all
    }

    /// How the limits of a slot are divided.
    pub fn divisions_of(&self, slot: Slot, now: Timestamp) -> SlotDivisions {
        let shard = self.shard(slot);
        let of_slot = shard.dividers.range(slot.places());
        let each = of_slot.map(|((_, key), placed)| (*key, placed.divider.copied())).collect();
        SlotDivisions { at: now, learns_until: self.learns_until(slot), each }
    }

    /// Removes the dividers of a slot, and returns them. Its counters must go with them.
    pub fn take_slot(&self, slot: Slot, now: Timestamp) -> SlotDivisions {
        let divisions = self.divisions_of(slot, now);
        let mut shard = self.shard(slot);
        for (place, placed) in shard.dividers.extract_if(slot.places(), |_, _| true).collect::<Vec<_>>() {
            if let Some(at) = placed.next_at {
                shard.due.remove(&(at, place));
            }
        }
        divisions
    }

    /// Adds the dividers of a slot, whose counters are here since just now.
    pub fn add_slot(&self, slot: Slot, mut divisions: SlotDivisions, now: Timestamp) {
        divisions.move_to(now);
        let learns_until = divisions.learns_until.as_nanos();
        self.learns_until[slot.index()].fetch_max(learns_until, Ordering::Relaxed);
        let mut shard = self.shard(slot);
        for (key, divider) in divisions.each {
            let place = (slot, key);
            match shard.dividers.get_mut(&place) {
                Some(known) => known.divider.add(divider, now),
                None => drop(shard.dividers.insert(place, Placed::new(divider))),
            }
            let Some(placed) = shard.dividers.get(&place) else { continue };
            let limit = placed.divider.limit().clone();
            let granted = placed.divider.granted();
            self.memory.grants().adopt(key, &limit, granted, now);
            // The next turn assigns what has changed.
            self.divide(&mut shard, place, now, |divider, _| DivisionOutcome {
                turn: Turn { granted: divider.granted(), ..Turn::default() },
                next_at: Some(now),
                ..DivisionOutcome::default()
            });
        }
    }

    /// Removes all dividers, and returns them for the next process. What they have granted stays granted here.
    pub fn take_all(&self, now: Timestamp) -> Vec<(Slot, SlotDivisions)> {
        let of_slots = self.memory.each_slot().map(|slot| (slot, self.take_slot(slot, now)));
        of_slots.filter(|(_, divisions)| !divisions.each.is_empty()).collect()
    }

    /// Goes on with the divisions of an earlier process. Its streams have ended. The counters are those of its last
    /// snapshot, in which everything that is granted is charged.
    pub fn restore(&self, slot: Slot, mut divisions: SlotDivisions, now: Timestamp) {
        if now < divisions.at {
            // The snapshot was moved back, too.
            divisions.move_to(now);
        }
        for (key, limit, granted) in divisions.granted() {
            if !self.memory.grants().restore(key, limit, granted, divisions.at) {
                let unpaid = unpaid_hits(limit, granted.rate, now.since(divisions.at));
                self.memory.grants().charge(key, limit, unpaid, now);
            }
        }
        divisions.at = now;
        for (_, divider) in &mut divisions.each {
            let replicas: BTreeSet<u64> = divider.ids().iter().map(|id| id.replica).collect();
            replicas.into_iter().for_each(|replica| divider.leave_all(replica));
        }
        self.add_slot(slot, divisions, now);
    }

    /// The owner of a slot is lost, and so is what it has assigned last.
    pub fn learn(&self, slot: Slot, now: Timestamp) {
        self.learns_until[slot.index()].store(end_of_assignment(now).as_nanos(), Ordering::Relaxed);
        for (_, placed) in self.shard(slot).dividers.range_mut(slot.places()) {
            placed.divider.learn(now);
        }
    }

    /// Removes all dividers, because their counters are discarded.
    pub fn discard(&self) {
        self.shards.iter().for_each(|shard| *shard.lock() = DividerShard::default());
    }

    /// Takes the slots of which other hits are granted since the last call.
    pub fn take_changed(&self) -> Vec<Slot> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut shard.lock().changed)).collect()
    }

    fn learns_until(&self, slot: Slot) -> Timestamp {
        Timestamp::from_nanos(self.learns_until[slot.index()].load(Ordering::Relaxed))
    }

    fn divide(
        &self,
        shard: &mut DividerShard,
        place: (Slot, Key),
        now: Timestamp,
        divide: impl FnOnce(&mut Divider, CounterView) -> DivisionOutcome,
    ) -> Assignments {
        let Some(placed) = shard.dividers.get_mut(&place) else { return Assignments::new() };
        let (slot, key) = place;
        let limit = placed.divider.limit().clone();
        let mut outcome = DivisionOutcome::default();
        self.memory.grants().turn(key, &limit, now, |view| {
            outcome = divide(&mut placed.divider, view);
            outcome.turn
        });
        let Turn { used, granted, .. } = outcome.turn;
        self.stats.used.add(used);
        self.stats.beyond_grant.add(outcome.beyond_grant);
        self.stats.visited.add(outcome.visited as u64);
        if let Some(time) = outcome.converged_after {
            self.stats.convergence.record(time);
        }
        if placed.granted != granted {
            placed.granted = granted;
            shard.changed.insert(slot);
        }
        let is_over = placed.divider.is_empty() && granted.is_nothing();
        let pending = placed.next_at.filter(|at| now < *at);
        let next_at = pending.into_iter().chain(outcome.next_at).min().filter(|_| !is_over);
        if next_at != placed.next_at {
            if let Some(at) = std::mem::replace(&mut placed.next_at, next_at) {
                shard.due.remove(&(at, place));
            }
            shard.due.extend(next_at.map(|at| (at, place)));
        }
        if is_over {
            self.memory.grants().end(key, now);
            shard.dividers.remove(&place);
        }
        outcome.assignments
    }

    fn shard(&self, slot: Slot) -> MutexGuard<'_, DividerShard> {
        self.shards[slot.index() % SHARDS].lock()
    }
}

/// What a counter may lack of its burst, if it would be full after this time without the rate that was granted. Then it is
/// not in a snapshot.
fn unpaid_hits(limit: &Limit, granted: HitRate, time: Duration) -> u64 {
    let Some(rate) = limit.hit_rate() else { return 0 };
    let in_force = time.min(ASSIGNMENT_TTL + DELIVERY_MAX);
    let after = brought(rate.per_second, time - in_force);
    brought(granted.per_second, in_force).saturating_add(1).saturating_sub(after).min(rate.burst)
}

/// Bounds of the times until shares are adjusted. A smaller share is in force after half a second, and one of a client
/// that has gone ends after 16 s.
const CONVERGENCE_BOUNDS: [Duration; 12] = micros([
    100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 17_500_000,
    30_000_000, 60_000_000,
]);

/// What has happened to dividers.
#[derive(Debug)]
pub struct DividerStats {
    /// Hits that clients have let pass and that were charged.
    pub used: MetricCounter,
    /// Hits that passed at clients without having been granted.
    pub beyond_grant: MetricCounter,
    /// Reports of subscribers beyond the most that one limit has.
    pub refused: MetricCounter,
    /// Subscribers that divisions have visited.
    pub visited: MetricCounter,
    /// Times from changes of demand or of clients until all shares were adjusted.
    pub convergence: Histogram,
}

impl Default for DividerStats {
    fn default() -> Self {
        Self {
            used: MetricCounter::default(),
            beyond_grant: MetricCounter::default(),
            refused: MetricCounter::default(),
            visited: MetricCounter::default(),
            convergence: Histogram::new(&CONVERGENCE_BOUNDS),
        }
    }
}
