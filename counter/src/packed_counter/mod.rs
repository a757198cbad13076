//! A counter in 16 bytes, with what eviction needs to know without its limit.

use std::mem;

use layout::{ApproxNumber, Large, UsedShare};
use pack::{Pack, pack, unpack, window_nanos};

use crate::{
    algorithm::{
        Algorithm, Decision, Operation,
        counter::{Counter, PenalizedCounter, Receipt, Variant},
        each_algorithm,
        limit::Limit,
        log_counter::LogCounter,
        penalty::PenaltyRecord,
    },
    time::timestamp::Timestamp,
};

mod codec;
mod layout;
mod pack;
#[cfg(any(test, feature = "testing"))]
mod testing;

pub use codec::{
    Age, DecodeClock, DecodeError, NUMBER_BYTES_MAX, number_bytes, put, put_tagged, tagged, take,
};
pub use layout::PackedCounter;

/// The instant of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The time of the operation.
    pub now: Timestamp,
    /// When the clock gave up a lead, if it has one; not after `now`.
    pub given_up: Option<Timestamp>,
}

impl PackedCounter {
    /// Keeps the place of a counter that is taken out of its table: it is neither idle nor evicted.
    pub const TAKEN: Self = Self::Window { used: UsedShare(u8::MAX), count: 0, end: Timestamp::MAX };

    /// Applies `decide` to an unused counter. Returns the counter unless it stays idle.
    pub fn first(
        limit: &Limit,
        now: Timestamp,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> (Decision, Option<Self>) {
        let mut counter = limit.fresh();
        let decision = decide(&mut counter);
        let packed = (now < limit.idle_at(&counter)).then(|| Self::new(limit, counter, &decision));
        (decision, packed)
    }

    /// Packs `counter` after `decision` of `limit`.
    pub fn new(limit: &Limit, mut counter: Counter, decision: &Decision) -> Self {
        if let Counter::Penalized(penalized) = counter {
            let PenalizedCounter { counter, record } = *penalized;
            return Self::penalized(Self::new(limit, counter, decision), record);
        }
        let used = UsedShare::new(limit.allowance(), decision);
        let limit = limit.plain();
        each_algorithm!(limit, limit => pack(limit, &mut counter, used)).unwrap_or_else(|| {
            let idle_at = limit.idle_at(&counter);
            Self::large(used, idle_at, counter)
        })
    }

    fn large(used: UsedShare, idle_at: Timestamp, counter: Counter) -> Self {
        Self::Large(Box::new(Large { counter, idle_at, used }))
    }

    fn penalized(counter: Self, record: PenaltyRecord) -> Self {
        Self::Penalized(Box::new(PenalizedCounter { counter, record }))
    }

    /// The counter without its record.
    fn plain(&self) -> &Self {
        if let Self::Penalized(penalized) = self { &penalized.counter } else { self }
    }

    /// The counter without its record, and the record.
    fn into_plain(self) -> (Self, Option<PenaltyRecord>) {
        match self {
            Self::Penalized(penalized) => (penalized.counter, Some(penalized.record)),
            plain => (plain, None),
        }
    }

    /// Whether there is a record of refusals or penalties.
    pub fn has_record(&self) -> bool {
        matches!(self, Self::Penalized(_))
    }

    /// The counter without the record of refusals.
    pub fn without_record(self) -> Self {
        self.into_plain().0
    }

    /// Releases the memory of a log beyond its entries.
    pub fn release_spare(&mut self) {
        match self {
            Self::Large(large) => large.counter.release_spare(),
            Self::Penalized(penalized) => penalized.counter.release_spare(),
            Self::Window { .. } | Self::Sliding { .. } | Self::Debt { .. } | Self::Step { .. } => {}
        }
    }

    /// The penalties in the record.
    pub fn penalties(&self) -> u32 {
        if let Self::Penalized(penalized) = self { penalized.record.penalties } else { 0 }
    }

    /// Answers `operation` of a limit of the same kind, and charges or refunds the counter accordingly. `keep` returns
    /// what is retained of a receipt. `None`, without a change, if the counter is of another kind, does not fit into 16
    /// bytes before or after the operation, may be ahead of the clock, or has a limit with a penalty.
    // `inline(always)`: a decision is too large to move.
    #[inline(always)]
    pub fn decide<R>(
        &mut self,
        limit: &Limit,
        Now { now, given_up }: Now,
        operation: Operation,
        keep: impl FnOnce(Receipt) -> Option<R>,
    ) -> Option<Decision<R>> {
        each_algorithm!(limit, algorithm => {
            let mut counter = unpack(self, algorithm)?;
            if counter.may_be_ahead(window_nanos(algorithm), given_up, now) {
                return None;
            }
            let decision = algorithm.decide(&mut counter, now, operation);
            let packed = counter.pack(algorithm, UsedShare::new(algorithm.allowance(), &decision))?;
            // What is replaced was unpacked, so there is nothing to drop.
            mem::forget(mem::replace(self, packed));
            Some(decision.keep_receipt(|receipt| keep(receipt.into_enum())))
        })
    }

    /// Applies `decide` to the counter, after it is corrected if it is ahead of the clock.
    pub fn change(
        &mut self,
        limit: &Limit,
        now: Now,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> Decision {
        self.correct(limit, now);
        self.update(limit, decide)
    }

    /// A copy of the counter, corrected if it is ahead of the clock.
    pub fn corrected(&self, limit: &Limit, now: Now) -> Counter {
        let mut copy = self.clone();
        copy.correct(limit, now);
        copy.counter(limit)
    }

    /// Unpacks the counter, applies `action` and packs it again. `limit` must be of the same kind.
    fn update(&mut self, limit: &Limit, action: impl FnOnce(&mut Counter) -> Decision) -> Decision {
        match self {
            // In place, because it may be long.
            Self::Large(large) => {
                let decision = action(&mut large.counter);
                if let Counter::Penalized(_) = large.counter {
                    *self = Self::new(limit, mem::take(&mut large.counter), &decision);
                    return decision;
                }
                large.idle_at = limit.idle_at(&large.counter);
                large.used = UsedShare::new(limit.allowance(), &decision);
                decision
            }
            // Without a copy, because one with a record may be long.
            Self::Penalized(_)
            | Self::Window { .. }
            | Self::Sliding { .. }
            | Self::Debt { .. }
            | Self::Step { .. } => {
                let mut counter = mem::replace(self, Self::TAKEN).into_counter(limit);
                let decision = action(&mut counter);
                *self = Self::new(limit, counter, &decision);
                decision
            }
        }
    }

    /// The unpacked counter. `limit` must be of the same kind.
    pub fn counter(&self, limit: &Limit) -> Counter {
        match self {
            Self::Large(large) => large.counter.clone(),
            Self::Window { .. } | Self::Sliding { .. } | Self::Debt { .. } | Self::Step { .. } => {
                each_algorithm!(limit.plain(), limit => unpack(self, limit).unwrap_or_default().into_enum())
            }
            Self::Penalized(penalized) => {
                let PenalizedCounter { counter, record } = &**penalized;
                PenalizedCounter { counter: counter.counter(limit), record: *record }.into()
            }
        }
    }

    /// The unpacked counter, without a copy. `limit` must be of the same kind.
    fn into_counter(self, limit: &Limit) -> Counter {
        match self {
            Self::Large(large) => large.counter,
            Self::Penalized(penalized) => {
                let PenalizedCounter { counter, record } = *penalized;
                PenalizedCounter { counter: counter.into_counter(limit), record }.into()
            }
            small => small.counter(limit),
        }
    }

    /// Clamps the counter if it is ahead of the clock. A window may come from a replica whose clock is ahead; it then
    /// becomes the next one. Debts and logs are transferred as ages, so they are ahead only if this clock gave up a
    /// lead.
    fn correct(&mut self, limit: &Limit, Now { now, given_up }: Now) {
        let is_penalized = matches!(self, Self::Penalized(_)) && given_up.is_some();
        if is_penalized
            || each_algorithm!(limit.plain(), limit => self.plain().may_be_ahead(limit, given_up, now))
        {
            self.update(limit, |counter| {
                limit.clamp_ahead(counter, given_up.unwrap_or(now), now);
                limit.decide(counter, now, Operation::Peek)
            });
        }
    }

    fn may_be_ahead<A>(&self, algorithm: &A, given_up: Option<Timestamp>, now: Timestamp) -> bool
    where
        A: Algorithm<Counter: Pack>,
    {
        let window_nanos = window_nanos(algorithm);
        let may_be_ahead = |counter: &A::Counter| counter.may_be_ahead(window_nanos, given_up, now);
        if let Self::Large(large) = self {
            return Variant::from_enum(&large.counter).is_some_and(may_be_ahead);
        }
        unpack(self, algorithm).is_some_and(|counter| may_be_ahead(&counter))
    }

    /// A copy for a backup that has the last copy: of a log the changes since then, if they suffice.
    pub fn copy_changes(&mut self) -> Self {
        self.copy_with(LogCounter::copy_changes)
    }

    /// A copy of everything. The next copy of changes has what changes from now on.
    pub fn copy_all(&mut self) -> Self {
        self.copy_with(LogCounter::copy_all)
    }

    fn copy_with(&mut self, copy: impl FnOnce(&mut LogCounter) -> LogCounter) -> Self {
        if let Self::Penalized(penalized) = self {
            return Self::penalized(penalized.counter.copy_with(copy), penalized.record);
        }
        if let Self::Large(large) = self
            && let Counter::Log(log) = &mut large.counter
        {
            return Self::large(large.used, large.idle_at, Counter::Log(copy(log)));
        }
        self.clone()
    }

    /// Whether the copy has only the changes of a log.
    pub fn is_partial(&self) -> bool {
        self.log().is_some_and(LogCounter::is_partial)
    }

    /// Whether nothing is missing in this copy, or `earlier` has it.
    pub fn can_follow(&self, earlier: Option<&Self>) -> bool {
        match (self.log(), earlier.and_then(Self::log)) {
            (Some(log), Some(earlier)) => log.can_follow(earlier),
            (Some(_) | None, _) => !self.is_partial(),
        }
    }

    /// The counter with what has not changed since an earlier copy, if this copy has only the changes of a log.
    pub fn after(self, earlier: Self) -> Self {
        let (later, record) = self.into_plain();
        let (earlier, _) = earlier.into_plain();
        let all = match (later, earlier) {
            (Self::Large(mut later), Self::Large(earlier)) => {
                later.counter = match (later.counter, earlier.counter) {
                    (Counter::Log(later), Counter::Log(earlier)) => Counter::Log(later.after(earlier)),
                    (later, _of_another_kind) => later,
                };
                Self::Large(later)
            }
            (later, _) => later,
        };
        match record {
            Some(record) => Self::penalized(all, record),
            None => all,
        }
    }

    /// The log, if the counter is one.
    pub fn log(&self) -> Option<&LogCounter> {
        if let Self::Large(large) = self.plain()
            && let Counter::Log(log) = &large.counter
        {
            Some(log)
        } else {
            None
        }
    }

    /// The instant from which the counter may be evicted without changing any answer.
    pub fn idle_at(&self) -> Timestamp {
        match self {
            Self::Window { end, .. } => *end,
            Self::Sliding { until, .. } => until.timestamp(),
            Self::Debt { rest, paid_at, .. } => paid_at.plus(u64::from(*rest > 0)),
            Self::Step { full_at, .. } => *full_at,
            Self::Large(large) => large.idle_at,
            Self::Penalized(penalized) => penalized.counter.idle_at().max(penalized.record.forgotten_at),
        }
    }

    /// How much an eviction would give away, from 0 to 254; `None` if the counter refuses now, because eviction would
    /// admit a refused key.
    pub fn eviction_cost(&self, now: Timestamp) -> Option<u8> {
        let owed = |until: Timestamp, passing_debt_max: ApproxNumber| {
            let debt = until.nanos_since(now);
            let most = passing_debt_max.number();
            // The share is at most 254, as the debt is at most `most`.
            (debt <= most).then(|| (u128::from(debt) * 254 / u128::from(most.max(1))) as u8)
        };
        let counted = |used: UsedShare| (used.0 < u8::MAX).then_some(used.0);
        match self {
            Self::Window { used, .. } | Self::Sliding { used, .. } => counted(*used),
            Self::Debt { passing_debt_max, paid_at, .. } => owed(*paid_at, *passing_debt_max),
            Self::Step { passing_debt_max, full_at, .. } => owed(*full_at, *passing_debt_max),
            Self::Large(large) => counted(large.used),
            Self::Penalized(penalized) if now < penalized.record.until => None,
            // What is remembered is worth little: the key has a full allowance, or nearly one.
            Self::Penalized(penalized) if penalized.counter.idle_at() <= now => Some(0),
            Self::Penalized(penalized) => penalized.counter.eviction_cost(now),
        }
    }

    /// The bytes on the heap.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Window { .. } | Self::Sliding { .. } | Self::Debt { .. } | Self::Step { .. } => 0,
            Self::Large(large) => size_of::<Large>() + large.counter.heap_bytes(),
            Self::Penalized(penalized) => {
                size_of::<PenalizedCounter<Self>>() + penalized.counter.heap_bytes()
            }
        }
    }
}

#[cfg(test)]
mod tests;
