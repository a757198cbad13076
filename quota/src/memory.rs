//! The memory that quotas take: one budget for all that streams make this process keep, with a share for each caller.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tollgate_counter::{
    lock::lock,
    resilience::{CALLER_SHARE, CallerOrigin, SharedUse},
    time::Timestamp,
};

/// What has ended is given back at whole multiples of this time, so that few instants are retained.
const STEP: Duration = Duration::from_millis(100);

/// The number of a caller: the same at every replica. Two callers with one number have one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallerNumber(u32);

/// The callers that have buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketOwner {
    pub(super) caller: CallerNumber,
    pub(super) stream: u64,
}

/// The budget.
#[derive(Debug)]
pub(super) struct QuotaMemory {
    max: usize,
    uses: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    all: usize,
    // Those above zero.
    of_callers: HashMap<CallerNumber, usize>,
    // Invariant: ascending by their instants.
    ending: VecDeque<MemoryRelease>,
}

/// Memory that is given back later.
#[derive(Debug)]
struct MemoryRelease {
    at: Timestamp,
    caller: CallerNumber,
    bytes: usize,
}

impl CallerNumber {
    pub(super) fn new(origin: &CallerOrigin) -> Self {
        let mut hasher = DefaultHasher::new();
        origin.hash(&mut hasher);
        Self(hasher.finish() as u32)
    }

    /// The number of this caller's stream that is opened as the `nth`.
    pub(super) fn stream(self, nth: u32) -> u64 {
        u64::from(self.0) << u32::BITS | u64::from(nth)
    }
}

impl QuotaMemory {
    pub(super) fn new(max: u64) -> Self {
        Self { max: usize::try_from(max).unwrap_or(usize::MAX), uses: Mutex::default() }
    }

    /// Takes memory for a caller. Returns whether its share has room.
    pub(super) fn take(&self, caller: CallerNumber, bytes: usize, now: Timestamp) -> bool {
        let mut uses = self.uses(now);
        let own = uses.of_callers.get(&caller).copied().unwrap_or_default();
        let has_room = SharedUse { own, all: uses.all, max: self.max }.has_room_for(bytes, CALLER_SHARE);
        if has_room && bytes > 0 {
            uses.all += bytes;
            *uses.of_callers.entry(caller).or_default() += bytes;
        }
        has_room
    }

    /// Gives memory back.
    pub(super) fn give_back(&self, caller: CallerNumber, bytes: usize, now: Timestamp) {
        self.uses(now).give_back(caller, bytes);
    }

    /// Gives memory back after a time, which is the same in all calls.
    pub(super) fn give_back_after(&self, time: Duration, caller: CallerNumber, bytes: usize, now: Timestamp) {
        let at = now.after(time + STEP);
        let step = u64::try_from(STEP.as_nanos()).unwrap_or(u64::MAX);
        let at = Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % step);
        let mut uses = self.uses(now);
        match uses.ending.back_mut() {
            Some(last) if last.caller == caller && at <= last.at => last.bytes += bytes,
            last => {
                let at = last.map_or(at, |last| at.max(last.at));
                uses.ending.push_back(MemoryRelease { at, caller, bytes });
            }
        }
    }

    /// All bytes that are taken at `now`.
    pub(super) fn bytes(&self, now: Timestamp) -> usize {
        self.uses(now).all
    }

    fn uses(&self, now: Timestamp) -> MutexGuard<'_, Uses> {
        // Each change is whole before anything can panic.
        let mut uses = lock(&self.uses);
        while let Some(MemoryRelease { caller, bytes, .. }) =
            uses.ending.pop_front_if(|first| first.at <= now)
        {
            uses.give_back(caller, bytes);
        }
        uses
    }
}

impl Uses {
    fn give_back(&mut self, caller: CallerNumber, bytes: usize) {
        let Some(own) = self.of_callers.get_mut(&caller) else { return };
        *own -= bytes;
        self.all -= bytes;
        if *own == 0 {
            self.of_callers.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_counter::time::SECOND;

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(100 * SECOND + 7);

    fn caller(address: &str) -> CallerNumber {
        CallerNumber::new(&CallerOrigin::network(Some(address.parse().unwrap())))
    }

    #[test]
    fn caller_takes_half_and_leaves_room_for_others() {
        let memory = QuotaMemory::new(1_000);
        let (first, second) = (caller("10.0.0.1"), caller("10.0.0.2"));
        while memory.take(first, 10, NOW) {}
        assert_eq!(memory.bytes(NOW), 500);
        assert!(memory.take(second, 120, NOW) && !memory.take(second, 10, NOW));
        memory.give_back(first, 500, NOW);
        assert!(memory.take(second, 370, NOW));
        assert_eq!(memory.bytes(NOW), 490);
    }

    #[test]
    fn what_has_ended_counts_for_its_time() {
        let memory = QuotaMemory::new(1_000);
        let first = caller("fd00::1");
        assert!(memory.take(first, 500, NOW));
        for _ in 0..5 {
            memory.give_back_after(Duration::from_secs(17), first, 100, NOW);
        }
        assert_eq!(memory.uses.lock().unwrap().ending.len(), 1);
        assert_eq!(memory.bytes(NOW.after(Duration::from_secs(17)).minus(1)), 500);
        assert!(!memory.take(caller("fd00::2"), 10, NOW), "addresses of one network are one caller");
        assert_eq!(memory.bytes(NOW.after(Duration::from_secs(17) + STEP)), 0);
    }
}
