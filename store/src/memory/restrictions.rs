//! States that restrict decisions: suspended ownership, and a lead that a clock gave up.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use tollgate_counter::time::{Lead, Timestamp};

/// The active restrictions. Every decision reads them, so the flags are one byte.
#[derive(Debug, Default)]
pub(super) struct Restrictions {
    flags: AtomicU8,
    // The lead, in nanoseconds. Only valid while its flag is set.
    at: AtomicU64,
    until: AtomicU64,
}

const SUSPENDED: u8 = 1;
const LEAD: u8 = 2;

impl Restrictions {
    /// Whether decisions are suspended.
    #[inline(always)]
    pub(super) fn is_suspended(&self) -> bool {
        self.flags.load(Relaxed) & SUSPENDED != 0
    }

    pub(super) fn set_suspended(&self, suspended: bool) {
        if suspended {
            self.flags.fetch_or(SUSPENDED, Relaxed);
        } else {
            self.flags.fetch_and(!SUSPENDED, Relaxed);
        }
    }

    /// Sets a lead that this clock gives up. An earlier one may have ended at an instant that this clock shows again.
    pub(super) fn give_up(&self, lead: Lead) {
        self.at.store(lead.at.as_nanos(), Relaxed);
        self.until.fetch_max(lead.until.as_nanos(), Relaxed);
        self.flags.fetch_or(LEAD, Relaxed);
    }

    /// Adds a lead of the clock that received counters come from.
    pub(super) fn add_lead(&self, lead: Lead) {
        self.at.fetch_max(lead.at.as_nanos(), Relaxed);
        self.until.fetch_max(lead.until.as_nanos(), Relaxed);
        self.flags.fetch_or(LEAD, Relaxed);
    }

    /// The current lead.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        let [at, until] = [&self.at, &self.until].map(|nanos| Timestamp::from_nanos(nanos.load(Relaxed)));
        (self.flags.load(Relaxed) & LEAD != 0).then_some(Lead { at, until })
    }

    /// Ends the lead once the clock has caught up with it.
    pub(super) fn end_lead(&self, now: Timestamp) {
        if self.lead().is_some_and(|lead| lead.until <= now) {
            self.flags.fetch_and(!LEAD, Relaxed);
            // Restores the flag if another lead was added in between.
            if now.as_nanos() < self.until.load(Relaxed) {
                self.flags.fetch_or(LEAD, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use super::*;
    use tollgate_counter::{
        algorithm::{
            Decision, Limit, Operation, Verdict,
            laws::{every_limit, with_penalty},
        },
        time::SECOND,
    };

    use crate::{
        check::{Check, LimitOrigin, OnFull, OnRefusal},
        memory::{
            Memory,
            tests::{BYTES, NOW, key},
        },
        slot_data::SlotData,
    };

    const DAY: u64 = 86_400 * SECOND;
    /// What the clock showed while it was 30 days ahead.
    const SHOWN: Timestamp = NOW.plus(30 * DAY);
    const LEAD: Lead = Lead { at: NOW, until: SHOWN };

    /// A limit of ten a day for each algorithm.
    fn limits() -> Vec<Limit> {
        every_limit(10, DAY)
    }

    fn check<'l>(limit: &'l Limit, name: &str, operation: Operation) -> Check<'l> {
        Check {
            key: key(&format!("{name} {:?}", limit.kind())),
            limit,
            operation,
            on_refusal: OnRefusal::Keep,
            origin: LimitOrigin::Rule,
        }
    }

    fn apply(memory: &Memory, check: &Check<'_>, now: Timestamp) -> Decision<Infallible> {
        memory.apply_single(check, now).unwrap().decision
    }

    /// A store whose allowances were used up while the clock was ahead.
    fn used_up() -> Memory {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
        memory.each_slot().for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
        for limit in &limits() {
            for name in ["asked", "silent"] {
                for _ in 0..10 {
                    assert!(
                        apply(&memory, &check(limit, name, Operation::Charge(1)), SHOWN).verdict.passes()
                    );
                }
            }
        }
        memory
    }

    #[test]
    fn penalty_of_a_lead_lasts_no_longer_than_its_greatest_length() {
        for limit in limits().into_iter().map(|limit| with_penalty(limit, DAY)) {
            let memory = Memory::new(BYTES, OnFull::Deny);
            let check = check(&limit, "one", Operation::Charge(1));
            for _ in 0..13 {
                apply(&memory, &check, SHOWN);
            }
            let penalty = |now| memory.peek(check.key, &limit, now).details.penalty.unwrap();
            assert_eq!(penalty(SHOWN).ends_after, Some(Duration::from_nanos(DAY / 100)));
            memory.give_up_lead(LEAD);
            assert_eq!(penalty(NOW).ends_after, Some(Duration::from_nanos(DAY / 10)), "{limit:?}");
            assert_eq!(penalty(NOW).forgotten_after, Duration::from_nanos(DAY / 2));
            assert!(!apply(&memory, &check, NOW).verdict.passes());
            assert_eq!(penalty(NOW.plus(DAY / 10)).ends_after, None);
        }
    }

    /// Asserts that nothing is freed at `now`, when the clock is corrected, and that three days later no key is
    /// refused, whether it was charged in between or not.
    fn assert_clamped(memory: &Memory, now: Timestamp) {
        for limit in &limits() {
            let refused = apply(memory, &check(limit, "asked", Operation::Charge(1)), now);
            assert!(!refused.verdict.passes(), "{limit:?} frees {refused:?}");
            let wait = refused.reset_after;
            assert!(wait.as_nanos() <= 3 * u128::from(DAY), "{limit:?} refuses for {wait:?}");
            for name in ["asked", "silent"] {
                let check = check(limit, name, Operation::Peek);
                assert_eq!(memory.peek(check.key, limit, now.plus(3 * DAY)).peek.remaining, 10, "{limit:?}");
                assert_eq!(apply(memory, &check, now.plus(3 * DAY)).remaining, 10, "{limit:?} {name}");
            }
        }
    }

    #[test]
    fn lead_given_up_frees_nothing_and_locks_no_key_out() {
        let memory = used_up();
        memory.give_up_lead(LEAD);
        assert_clamped(&memory, NOW);
    }

    #[test]
    fn handed_off_slot_with_lead_given_up_locks_no_key_out() {
        // The clock of the other replica is an hour behind and was never ahead.
        let (memory, there) = (used_up(), NOW.minus(DAY / 24));
        memory.give_up_lead(LEAD);
        let other = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
        for slot in memory.each_slot() {
            let (data, _) = memory.release(slot).unwrap();
            other.acquire(slot, SlotData::decode(&data.encode(NOW), there).unwrap(), there);
        }
        assert_clamped(&other, there);
    }

    #[test]
    fn second_lead_that_goes_back_further_locks_no_key_out() {
        let memory = used_up();
        memory.give_up_lead(Lead { at: NOW.plus(9 * DAY), until: SHOWN });
        memory.give_up_lead(LEAD);
        for limit in &limits() {
            // The first check since then, long after the windows that the clock shows again.
            let peek = check(limit, "silent", Operation::Peek);
            assert_eq!(apply(&memory, &peek, NOW.plus(3 * DAY)).remaining, 10, "{limit:?}");
        }
    }

    #[test]
    fn lead_ends_when_clock_catches_up() {
        let memory = used_up();
        memory.give_up_lead(LEAD);
        memory.sweep_part(0, SHOWN.minus(1));
        assert!(memory.restrictions.lead().is_some());
        memory.sweep_part(0, SHOWN);
        assert!(memory.restrictions.lead().is_none());
    }

    #[test]
    fn window_from_clock_ahead_is_clamped_to_the_next() {
        let (memory, limits) = (used_up(), limits());
        for limit in &limits[..3] {
            let Verdict::Refuse { retry_after: Some(wait) } =
                apply(&memory, &check(limit, "asked", Operation::Charge(1)), NOW).verdict
            else {
                panic!("{limit:?} frees its hits");
            };
            assert!(wait.as_nanos() <= 3 * u128::from(DAY), "{limit:?} refuses for {wait:?}");
        }
    }
}
