//! What keeps decisions from the straight line: slots that are not to be relied upon, and a lead that a clock gave up.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::time::Timestamp;

/// A lead that a clock gave up: it went on from `at` although it had shown `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The instant at which it was given up, by the clock that was put right.
    pub at: Timestamp,
    /// The latest instant that the clock had shown. From then on no counter lies ahead any more.
    pub until: Timestamp,
}

impl Lead {
    /// One lead that stands for both.
    pub(in crate::store) fn and(self, other: Self) -> Self {
        Self { at: self.at.max(other.at), until: self.until.max(other.until) }
    }

    /// The same, by a clock that shows `back` nanoseconds less.
    pub(in crate::store) fn shifted_back(self, back: u64) -> Self {
        Self { at: self.at.minus(back), until: self.until.minus(back) }
    }
}

/// What is in force; it is read by every decision, so it is one byte.
#[derive(Debug, Default)]
pub(super) struct Restrictions {
    flags: AtomicU8,
    // Of the lead, in nanoseconds. They only matter while its flag is set.
    at: AtomicU64,
    until: AtomicU64,
}

/// One reading of a [`Restrictions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

const SUSPENDED: u8 = 1;
const LEAD: u8 = 2;

impl Flags {
    /// Whether nothing is in force.
    #[inline(always)]
    pub(super) fn are_clear(self) -> bool {
        self.0 == 0
    }

    /// Whether what is held is not to be relied upon for now.
    #[inline(always)]
    pub(super) fn is_suspended(self) -> bool {
        self.0 & SUSPENDED != 0
    }
}

impl Restrictions {
    #[inline(always)]
    pub(super) fn flags(&self) -> Flags {
        Flags(self.flags.load(Relaxed))
    }

    pub(super) fn set_suspended(&self, suspended: bool) {
        if suspended {
            self.flags.fetch_or(SUSPENDED, Relaxed);
        } else {
            self.flags.fetch_and(!SUSPENDED, Relaxed);
        }
    }

    /// A clock has given up a lead, or counters come from one that has.
    pub(super) fn add_lead(&self, lead: Lead) {
        self.at.fetch_max(lead.at.as_nanos(), Relaxed);
        self.until.fetch_max(lead.until.as_nanos(), Relaxed);
        self.flags.fetch_or(LEAD, Relaxed);
    }

    /// The lead in force.
    pub(super) fn lead(&self) -> Option<Lead> {
        let [at, until] = [&self.at, &self.until].map(|nanos| Timestamp::from_nanos(nanos.load(Relaxed)));
        (self.flags.load(Relaxed) & LEAD != 0).then_some(Lead { at, until })
    }

    /// Ends the lead once the clock shows again what it had shown.
    pub(super) fn end_lead(&self, now: Timestamp) {
        if self.lead().is_some_and(|lead| lead.until <= now) {
            self.flags.fetch_and(!LEAD, Relaxed);
            // One that was added meanwhile goes on.
            if now.as_nanos() < self.until.load(Relaxed) {
                self.flags.fetch_or(LEAD, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::{
        algorithm::{
            Classic, Decision, Excess, FixedWindow, LeakyQueue, Limit, Operation, Rate, SlidingLog,
            SlidingWindow, Span, SteppedBucket, TokenBucket, Verdict, Window,
        },
        store::{
            Check, Memory, OnFull, OnRefusal, SlotData,
            memory::tests::{BYTES, NOW, key},
        },
        time::SECOND,
    };

    const DAY: u64 = 86_400 * SECOND;
    /// What the clock showed that was 30 days ahead.
    const SHOWN: Timestamp = NOW.plus(30 * DAY);
    const LEAD: Lead = Lead { at: NOW, until: SHOWN };

    /// Ten a day, by each algorithm.
    fn limits() -> [Limit; 9] {
        let (span, excess) = (Span::of_nanos(DAY).unwrap(), Excess::Refuse);
        let [one, ten, hour, day] = [1, 10, DAY / 24, DAY].map(|number| NonZeroU64::new(number).unwrap());
        let (rate, limit) = (Rate::new(ten, day), 10);
        let window = Window::Aligned(span);
        let bucket = TokenBucket { rate, burst: 10, excess };
        [
            Limit::Classic(Classic { limit, window: window.clone() }),
            Limit::FixedWindow(FixedWindow { limit, window, excess }),
            Limit::SlidingWindow(SlidingWindow { limit, span, excess }),
            Limit::SlidingLog(SlidingLog { limit, span, grain: one, excess }),
            Limit::SubWindows(SlidingLog { limit, span, grain: hour, excess }),
            Limit::TokenBucket(bucket),
            Limit::LeakyBucket(bucket),
            Limit::SteppedBucket(SteppedBucket { amount: one, interval: hour, burst: 10, excess }),
            Limit::LeakyQueue(LeakyQueue { rate, burst: Some(9), max_delay: None, timeout: None }),
        ]
    }

    fn check<'l>(limit: &'l Limit, name: &str, operation: Operation) -> Check<'l> {
        Check {
            key: key(&format!("{name} {:?}", limit.kind())),
            limit,
            operation,
            on_refusal: OnRefusal::Keep,
        }
    }

    fn alone(memory: &Memory, check: &Check<'_>, now: Timestamp) -> Decision<()> {
        memory.apply_single(check, now).unwrap().unwrap().decision
    }

    fn among_others(memory: &Memory, check: &Check<'_>, now: Timestamp) -> Decision<()> {
        memory.apply(&[*check], now, |_| false).unwrap()[0].without_receipt()
    }

    /// A memory all of whose allowances were used up while the clock was ahead.
    fn used_up() -> Memory {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
        memory.each_slot().for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
        for limit in &limits() {
            for name in ["asked", "silent"] {
                for _ in 0..10 {
                    assert!(
                        among_others(&memory, &check(limit, name, Operation::Charge(1)), SHOWN)
                            .verdict
                            .passes()
                    );
                }
            }
        }
        memory
    }

    /// That nothing is freed at `now`, when the clock was put right, and no key is locked out three days later, asked
    /// meanwhile or not.
    fn owns(
        memory: &Memory,
        now: Timestamp,
        decide: impl Fn(&Memory, &Check<'_>, Timestamp) -> Decision<()>,
    ) {
        for limit in &limits() {
            let refused = decide(memory, &check(limit, "asked", Operation::Charge(1)), now);
            let Verdict::Refuse { retry_after: Some(wait) } = refused.verdict else {
                panic!("{limit:?} frees {refused:?}");
            };
            assert!(wait.as_nanos() <= 3 * u128::from(DAY), "{limit:?} locks out for {wait:?}");
            for name in ["asked", "silent"] {
                let check = check(limit, name, Operation::Peek);
                assert_eq!(memory.peek(check.key, limit, now.plus(3 * DAY)).peek.remaining, 10, "{limit:?}");
                assert_eq!(decide(memory, &check, now.plus(3 * DAY)).remaining, 10, "{limit:?} {name}");
            }
        }
    }

    #[test]
    fn lead_given_up_frees_nothing_and_locks_no_key_out() {
        for decide in [alone, among_others] {
            let memory = used_up();
            memory.give_up_lead(LEAD);
            owns(&memory, NOW, decide);
        }
    }

    #[test]
    fn slot_handed_off_after_a_lead_was_given_up_locks_no_key_out() {
        // The other replica's clock shows an hour less, and never was ahead.
        let (memory, there) = (used_up(), NOW.minus(DAY / 24));
        memory.give_up_lead(LEAD);
        let other = Memory::new(BYTES, OnFull::Deny).with_slots(4).shared();
        for slot in memory.each_slot() {
            let (data, _) = memory.release(slot).unwrap();
            other.acquire(slot, SlotData::decode(&data.encode(NOW), there).unwrap(), there);
        }
        owns(&other, there, among_others);
    }

    #[test]
    fn lead_ends_when_the_clock_shows_again_what_it_had_shown() {
        let memory = used_up();
        memory.give_up_lead(LEAD);
        memory.sweep_part(0, SHOWN.minus(1));
        assert!(!memory.restrictions.flags().are_clear());
        memory.sweep_part(0, SHOWN);
        assert!(memory.restrictions.flags().are_clear());
    }

    #[test]
    fn window_that_arrives_from_a_clock_ahead_is_cut_to_the_next() {
        let (memory, limits) = (used_up(), limits());
        for limit in &limits[..3] {
            let Verdict::Refuse { retry_after: Some(wait) } =
                among_others(&memory, &check(limit, "asked", Operation::Charge(1)), NOW).verdict
            else {
                panic!("{limit:?} frees its hits");
            };
            assert!(wait.as_nanos() <= 3 * u128::from(DAY), "{limit:?} locks out for {wait:?}");
        }
    }
}
