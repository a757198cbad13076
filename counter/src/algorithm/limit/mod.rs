//! `Limit`: an enum of all algorithms. It selects the counter kind and dispatches each call. The names of algorithms, and
//! the limits that replace those of rules.

use std::{borrow::Cow, num::NonZeroU64, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    algorithm::{
        Admission, Algorithm, Decision, Excess, Operation, Verdict,
        concurrency::Concurrency,
        counter::{Counter, Receipt, Variant, own},
        fixed_window::{Classic, FixedWindow},
        gcra::Rate,
        granted::{HitRate, STILL_NANOS},
        leaky_queue::LeakyQueue,
        penalty::{Penalty, PenaltyState},
        sliding_log::SlidingLog,
        sliding_window::SlidingWindow,
        stepped_bucket::SteppedBucket,
        token_bucket::TokenBucket,
        window::Window,
    },
    named,
    time::timestamp::Timestamp,
};

mod held;
mod penalized;

/// An active limit: an algorithm with its parameters. Replicas number the variants by their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// What envoyproxy/ratelimit does.
    Classic(Classic),
    /// `fixed_window`
    FixedWindow(FixedWindow),
    /// `sliding_window`
    SlidingWindow(SlidingWindow),
    /// `sliding_log`, and `sliding_window` with `sub_windows`
    SlidingLog(SlidingLog),
    /// `token_bucket`
    TokenBucket(TokenBucket),
    /// `token_bucket` with `refill_amount` and `refill_interval`
    SteppedBucket(SteppedBucket),
    /// `leaky_bucket`: the level of a leaky bucket is what a token bucket lacks, so both use the same arithmetic.
    LeakyBucket(TokenBucket),
    /// `leaky_queue`
    LeakyQueue(LeakyQueue),
    /// `concurrency`
    Concurrency(Concurrency),
    /// A limit of another variant with a `penalty`.
    Penalized(Penalized),
    // Append others here, and in `PlainLimit`.
}

/// The codec of a limit without a penalty, which is that of any [`Limit`]. A penalty of a penalty would be read without a
/// bound on its depth.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Limit")]
enum PlainLimit {
    Classic(Classic),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    SteppedBucket(SteppedBucket),
    LeakyBucket(TokenBucket),
    LeakyQueue(LeakyQueue),
    Concurrency(Concurrency),
    #[serde(deserialize_with = "never")]
    Penalized(Penalized),
}

/// Refuses the penalty of a limit with a penalty.
fn never<'de, D: Deserializer<'de>>(_: D) -> Result<Penalized, D::Error> {
    Err(D::Error::custom("a penalty of a penalty"))
}

/// The bucket, which lets nothing pass if its whole rate is granted.
fn closed_if_still(bucket: TokenBucket) -> TokenBucket {
    if bucket.rate == Rate::new(NonZeroU64::MIN, STILL_NANOS) {
        TokenBucket { burst: 0, ..bucket }
    } else {
        bucket
    }
}

/// A limit with a penalty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Penalized {
    both: Box<LimitAndPenalty>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LimitAndPenalty {
    // Invariant: it has no penalty itself.
    #[serde(with = "PlainLimit")]
    limit: Limit,
    penalty: Penalty,
}

/// The expression for the algorithm of a limit, with its own type.
#[macro_export]
macro_rules! each_algorithm {
    ($limit:expr, $algorithm:ident => $expression:expr) => {
        match $limit {
            $crate::algorithm::Limit::Classic($algorithm) => $expression,
            $crate::algorithm::Limit::FixedWindow($algorithm) => $expression,
            $crate::algorithm::Limit::SlidingWindow($algorithm) => $expression,
            $crate::algorithm::Limit::SlidingLog($algorithm) => $expression,
            $crate::algorithm::Limit::TokenBucket($algorithm) => $expression,
            $crate::algorithm::Limit::SteppedBucket($algorithm) => $expression,
            $crate::algorithm::Limit::LeakyBucket($algorithm) => $expression,
            $crate::algorithm::Limit::LeakyQueue($algorithm) => $expression,
            $crate::algorithm::Limit::Concurrency($algorithm) => $expression,
            $crate::algorithm::Limit::Penalized($algorithm) => $expression,
        }
    };
}
pub use each_algorithm;

named! {
    /// The name of an algorithm in a rule. A rule without one is classic.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AlgorithmName {
        /// `fixed_window`
        FixedWindow = "fixed_window",
        /// `sliding_window`
        SlidingWindow = "sliding_window",
        /// `sliding_log`
        SlidingLog = "sliding_log",
        /// `token_bucket`
        TokenBucket = "token_bucket",
        /// `leaky_bucket`
        LeakyBucket = "leaky_bucket",
        /// `leaky_queue`
        LeakyQueue = "leaky_queue",
        /// `concurrency`
        Concurrency = "concurrency",
    }
}

/// What distinguishes two counters of one descriptor: the algorithm and its window, not the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterKind {
    algorithm: u8,
    // The length of the window, or a code that stands for it.
    window: u64,
    // The length of a sub-window.
    sub_window: u64,
}

impl CounterKind {
    /// The bytes that are hashed into a key. They never change, because keys outlive versions.
    pub fn bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[0] = self.algorithm;
        bytes[1..9].copy_from_slice(&self.window.to_le_bytes());
        bytes[9..].copy_from_slice(&self.sub_window.to_le_bytes());
        bytes
    }

    /// The time over which hits are retained or come back, in nanoseconds; not of calendar windows.
    pub fn window_nanos(self) -> u64 {
        self.window
    }
}

impl Limit {
    /// Whether the limit has the algorithm of envoyproxy/ratelimit and not one of the named algorithms.
    pub fn is_classic(&self) -> bool {
        self.algorithm().is_none()
    }

    /// The name of the algorithm in rules; `None` if the limit is classic.
    pub fn algorithm(&self) -> Option<AlgorithmName> {
        Some(match self {
            Self::Classic(_) => return None,
            Self::FixedWindow(_) => AlgorithmName::FixedWindow,
            Self::SlidingLog(log) if log.has_sub_windows() => AlgorithmName::SlidingWindow,
            Self::SlidingWindow(_) => AlgorithmName::SlidingWindow,
            Self::SlidingLog(_) => AlgorithmName::SlidingLog,
            Self::TokenBucket(_) | Self::SteppedBucket(_) => AlgorithmName::TokenBucket,
            Self::LeakyBucket(_) => AlgorithmName::LeakyBucket,
            Self::LeakyQueue(_) => AlgorithmName::LeakyQueue,
            Self::Concurrency(_) => AlgorithmName::Concurrency,
            Self::Penalized(penalized) => return penalized.limit().algorithm(),
        })
    }

    /// The limit without a penalty.
    pub fn plain(&self) -> &Self {
        match self.penalized() {
            Some(penalized) => penalized.limit(),
            None => self,
        }
    }

    /// `plain`, a limit without a penalty, with the penalty of `self`, if there is one.
    fn with_plain(&self, plain: Self) -> Self {
        match self.penalized() {
            Some(penalized) => Self::Penalized(Penalized::new(plain, *penalized.penalty())),
            None => plain,
        }
    }

    /// The limit with its penalty, if it has one.
    pub fn penalized(&self) -> Option<&Penalized> {
        if let Self::Penalized(penalized) = self { Some(penalized) } else { None }
    }

    /// Predicts the answer to `operation` from the answer to a peek, by what is left.
    pub fn predict(&self, operation: Operation, peek: &Decision) -> Decision {
        let passes = match (operation, self.excess()) {
            (Operation::Peek, _) => peek.verdict.passes(),
            (Operation::Refund(_), _) => true,
            (Operation::Charge(hits), Excess::Refuse | Excess::Count) => hits <= peek.remaining,
            (Operation::Charge(_), Excess::Overdraft(_)) => peek.remaining > 0,
        };
        let verdict = if passes { Verdict::Pass } else { Verdict::Refuse { retry_after: None } };
        Decision { verdict, ..*peek }
    }

    /// Hits that pass when nothing was charged.
    pub fn allowance(&self) -> u64 {
        each_algorithm!(self, limit => limit.allowance())
    }

    /// What happens to a charge that is larger than what is left.
    pub fn excess(&self) -> Excess {
        each_algorithm!(self, limit => limit.excess())
    }

    /// Hits that `operation` charges, given whether it passes.
    pub fn charged(&self, operation: Operation, passes: bool) -> u64 {
        match operation {
            Operation::Charge(hits) if operation.changes(passes, || self.excess()) => hits,
            Operation::Charge(_) | Operation::Peek | Operation::Refund(_) => 0,
        }
    }

    /// Whether `operation` changes the counter of the limit, given whether it passes.
    pub fn is_changed_by(&self, operation: Operation, passes: bool) -> bool {
        operation.changes(passes, || self.excess())
            || matches!((self, operation), (Self::Penalized(_), Operation::Charge(_)))
    }

    /// Hits that come back in each period.
    pub fn hits_per_period(&self) -> u64 {
        each_algorithm!(self, limit => limit.hits_per_period())
    }

    /// The windows that hits are counted in, if they are whole windows.
    pub fn window(&self) -> Option<&Window> {
        each_algorithm!(self, limit => limit.window())
    }

    /// The time in which the whole allowance comes back, if that is constant.
    pub fn period(&self) -> Option<Duration> {
        self.period_nanos().map(Duration::from_nanos)
    }

    /// The time in which the whole allowance comes back, in nanoseconds, if that is constant.
    pub(super) fn period_nanos(&self) -> Option<u64> {
        each_algorithm!(self, limit => limit.period())
    }

    /// Replaces the numbers of hits, and what happens to a charge that is larger than what is left.
    pub(super) fn change(&mut self, number: &dyn Fn(u64) -> u64, excess: &dyn Fn(Excess) -> Excess) {
        each_algorithm!(self, limit => limit.change(number, excess));
    }

    /// Whether a part of what is left may be leased to another replica. This requires that a refused hit leaves no
    /// trace, except in a classic limit, and that no hit waits.
    pub fn is_leasable(&self) -> bool {
        match self {
            Self::Classic(_) => true,
            Self::FixedWindow(_) | Self::SlidingWindow(_) => self.excess() == Excess::Refuse,
            Self::TokenBucket(_) | Self::SteppedBucket(_) | Self::LeakyBucket(_) => {
                self.excess() == Excess::Refuse
            }
            // A borrower would not know of refusals elsewhere, and a place that is taken on one replica may be freed on
            // another.
            Self::SlidingLog(_) | Self::LeakyQueue(_) | Self::Penalized(_) | Self::Concurrency(_) => false,
        }
    }

    /// How the limit lets hits pass.
    pub fn admission(&self) -> Admission {
        fn admission<A: Algorithm>(_: &A) -> Admission {
            A::ADMISSION
        }
        if let Self::Penalized(penalized) = self {
            return penalized.limit().admission();
        }
        each_algorithm!(self, limit => admission(limit))
    }

    /// The limit for a caller with this timeout. Only delays depend on it.
    pub fn within(&self, timeout: Option<Duration>) -> Cow<'_, Self> {
        if timeout.is_some()
            && let Self::LeakyQueue(queue) = self.plain()
        {
            let queue = LeakyQueue { timeout, ..*queue };
            return Cow::Owned(self.with_plain(Self::LeakyQueue(queue)));
        }
        Cow::Borrowed(self)
    }

    /// The limit of the same counters, except that a refused hit is not charged. A penalty stays.
    pub fn without_refused_charges(&self) -> Cow<'_, Self> {
        // A classic limit cannot refuse without counting, but shares its counter with a fixed window.
        if let Self::Classic(FixedWindow { limit, window, excess: _ }) = self.plain() {
            let fixed = FixedWindow { limit: *limit, window: window.clone(), excess: Excess::Refuse };
            return Cow::Owned(self.with_plain(Self::FixedWindow(fixed)));
        }
        match self.excess() {
            Excess::Count => Cow::Owned(self.changed(|number| number, |_| Excess::Refuse)),
            Excess::Refuse | Excess::Overdraft(_) => Cow::Borrowed(self),
        }
    }

    /// The limit for recording known consumption: a charge larger than what is left leaves a debt of up to `debt` hits
    /// if the algorithm can hold one. A limit with an overdraft keeps its own bound.
    pub fn with_debt(&self, debt: u64) -> Self {
        self.changed(|number| number, |excess| excess.with_debt(debt))
    }

    /// The share of each of `members` replicas: the limit divided by their number, rounded up, so that all shares
    /// together exceed the limit by at most one hit for each member. Bursts, queues, steps and debts are divided by the
    /// same number. Windows stay the same, so that the share uses the same counters.
    pub fn share(&self, members: u32) -> Self {
        let part = |number: u64| number.div_ceil(members.max(1).into());
        self.changed(part, |excess| match excess {
            Excess::Refuse | Excess::Count => excess,
            Excess::Overdraft(debt) => Excess::Overdraft(part(debt)),
        })
    }

    /// The limit with `hits` fewer hits.
    pub fn less(&self, hits: u64) -> Self {
        self.changed(|number| number.saturating_sub(hits), |excess| excess)
    }

    fn changed(&self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) -> Self {
        let mut changed = self.clone();
        changed.change(&number, &excess);
        changed
    }

    /// The nanoseconds of the period of the limit, if counters do not depend on it: a debt is a time.
    pub fn free_period_nanos(&self) -> Option<u64> {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::LeakyQueue(_) => {
                Some(self.kind().window_nanos())
            }
            Self::Penalized(penalized) => penalized.limit().free_period_nanos(),
            Self::Classic(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::SlidingLog(_)
            | Self::SteppedBucket(_)
            | Self::Concurrency(_) => None,
        }
    }

    /// The limit as a rate that can be divided over clients; `None` if it is divided as a budget, or not at all.
    pub fn hit_rate(&self) -> Option<HitRate> {
        each_algorithm!(self, limit => limit.hit_rate())
    }

    /// The limit for callers without a part of its rate. It uses the same counters. Without a rate nothing passes.
    #[must_use]
    pub fn without_rate(&self, rate: HitRate) -> Self {
        match self.without_rate_and_burst(rate) {
            Self::TokenBucket(bucket) => Self::TokenBucket(closed_if_still(bucket)),
            Self::LeakyBucket(bucket) => Self::LeakyBucket(closed_if_still(bucket)),
            Self::SteppedBucket(bucket) if bucket.interval == STILL_NANOS => {
                Self::SteppedBucket(SteppedBucket { burst: 0, ..bucket })
            }
            other => other,
        }
    }

    /// The limit without a part of its rate and of its burst. It uses the same counters: a bucket of which the whole
    /// rate is granted keeps what it holds.
    #[must_use]
    pub fn without_rate_and_burst(&self, part: HitRate) -> Self {
        let mut limit = self.clone();
        if part != HitRate::default() {
            each_algorithm!(&mut limit, limit => limit.reduce(part));
        }
        limit
    }

    /// Keeps what a bucket lacks while other parts of its rate are granted than `before`: as many hits, which come back
    /// at the rate that is left. At most two bursts, in case that another replica has added what it read at another rate.
    pub fn keep_debt(&self, counter: &mut Counter, before: HitRate, after: HitRate, now: Timestamp) {
        match (self.without_rate_and_burst(before), self.without_rate_and_burst(after)) {
            (Self::TokenBucket(before), Self::TokenBucket(after))
            | (Self::LeakyBucket(before), Self::LeakyBucket(after)) => {
                after.keep_debt(own(counter), &before, self.allowance().saturating_mul(2), now);
            }
            (Self::SteppedBucket(before), Self::SteppedBucket(after)) => {
                after.keep_missing(own(counter), &before, self.allowance().saturating_mul(2), now);
            }
            // Windows count the same hits.
            (_, _) => {}
        }
    }

    /// The kind of counter that this limit uses, with or without a penalty.
    pub fn kind(&self) -> CounterKind {
        let windows = |aligned, calendar, window: &Window| match window {
            Window::Aligned(span) => CounterKind { algorithm: aligned, window: span.nanos(), sub_window: 0 },
            Window::Calendar(each) => CounterKind { algorithm: calendar, window: each.code, sub_window: 0 },
        };
        let plain = |algorithm, window| CounterKind { algorithm, window, sub_window: 0 };
        match self {
            Self::Classic(limit) => windows(0, 1, &limit.window),
            Self::FixedWindow(limit) => windows(2, 3, &limit.window),
            Self::SlidingWindow(limit) => plain(4, limit.span.nanos()),
            Self::SlidingLog(limit) if limit.has_sub_windows() => {
                CounterKind { algorithm: 5, window: limit.span.nanos(), sub_window: limit.sub_window.get() }
            }
            Self::SlidingLog(limit) => plain(6, limit.span.nanos()),
            Self::TokenBucket(limit) => plain(7, limit.rate.nanos()),
            Self::SteppedBucket(limit) => plain(8, limit.interval.get()),
            Self::LeakyBucket(limit) => plain(9, limit.rate.nanos()),
            Self::LeakyQueue(limit) => plain(10, limit.rate.nanos()),
            Self::Concurrency(limit) => plain(11, limit.hold_max.nanos()),
            Self::Penalized(penalized) => penalized.limit().kind(),
        }
    }

    /// The limit that decides at `now` on `counter`: without its penalty, unless one lasts.
    pub fn penalized_now(&self, counter: &Counter, now: Timestamp) -> &Self {
        let lasts = counter.record().is_some_and(|record| now < record.until);
        if lasts { self } else { self.plain() }
    }

    /// The record of the refusals of a key; `None` if there is none, or without a penalty.
    pub fn penalty_state(&self, counter: &Counter, now: Timestamp) -> Option<PenaltyState> {
        let record = counter.record().filter(|record| now < record.forgotten_at);
        self.penalized().and(record).map(|record| record.state(now))
    }

    /// The time after which `operation`, which has just passed with this much `remaining` and this `reset_after`, passes
    /// again without further charges: zero if it passes at once, otherwise an upper bound. `None` if none is known.
    pub fn repeats_after(
        &self,
        operation: Operation,
        remaining: u64,
        reset_after: Duration,
    ) -> Option<Duration> {
        let hits = self.hits_needed(operation);
        if hits <= remaining {
            return Some(Duration::ZERO);
        }
        let debt_max = match self.excess() {
            Excess::Refuse | Excess::Count => 0,
            Excess::Overdraft(debt) => debt,
        };
        match self {
            // A debt is paid by whole windows, of which those of a calendar differ in length.
            Self::Classic(_) | Self::FixedWindow(_) if debt_max == 0 => Some(reset_after),
            Self::Classic(_) | Self::FixedWindow(_) => {
                let windows = u32::try_from(debt_max.div_ceil(self.allowance().max(1))).ok()?;
                reset_after.checked_add(self.period()?.checked_mul(windows)?)
            }
            Self::SlidingWindow(window) => Some(window.repeats_after(hits, debt_max, reset_after)),
            // The oldest entry has at least one hit.
            Self::SlidingLog(_) if debt_max == 0 && hits - remaining == 1 => Some(reset_after),
            Self::SlidingLog(log) => Some(log.retention()),
            // Everything has come back then.
            Self::TokenBucket(_) | Self::SteppedBucket(_) | Self::LeakyBucket(_) | Self::LeakyQueue(_) => {
                Some(reset_after)
            }
            // A charge that has passed ends a row of refusals.
            Self::Penalized(both) => both.limit().repeats_after(operation, remaining, reset_after),
            // Places are freed when their callers say so.
            Self::Concurrency(_) => None,
        }
    }

    /// Whether `operation` passes when nothing was charged. Otherwise it never passes.
    pub fn can_pass(&self, operation: Operation) -> bool {
        match operation {
            Operation::Peek => self.allowance() > 0,
            Operation::Charge(_) => self.hits_needed(operation) <= self.allowance(),
            Operation::Refund(_) => true,
        }
    }

    /// How many hits must be left for `operation` to pass again. A peek that has passed has changed nothing.
    fn hits_needed(&self, operation: Operation) -> u64 {
        match operation {
            Operation::Peek | Operation::Refund(_) => 0,
            Operation::Charge(hits) => self.excess().needed(hits),
        }
    }
}

impl Limit {
    /// A fresh counter.
    pub fn fresh(&self) -> Counter {
        fn fresh<A: Algorithm>(_: &A) -> Counter {
            A::Counter::default().into()
        }
        each_algorithm!(self.plain(), limit => fresh(limit))
    }

    /// Answers `operation`, and charges or refunds `counter` accordingly.
    pub fn decide(&self, counter: &mut Counter, now: Timestamp, operation: Operation) -> Decision {
        each_algorithm!(self, limit => {
            limit.decide(own(counter), now, operation).keep_receipt(|receipt| Some(receipt.into_enum()))
        })
    }

    /// Takes back what still counts of one charge, never more.
    pub fn undo(&self, counter: &mut Counter, receipt: Receipt, now: Timestamp) {
        each_algorithm!(self, limit => if let Some(receipt) = Variant::from_enum(&receipt) {
            limit.undo(own(counter), *receipt, now);
        });
    }

    /// The instant from which `counter` may be evicted without changing any answer.
    pub fn idle_at(&self, counter: &Counter) -> Timestamp {
        each_algorithm!(self, limit => Variant::from_enum(counter)
            .map_or(Timestamp::EPOCH, |counter| limit.idle_at(counter)))
    }

    /// What was consumed after `base`, an earlier state of the same counter.
    pub fn since(&self, counter: &Counter, base: &Counter, now: Timestamp) -> Counter {
        each_algorithm!(self, limit => match (Variant::from_enum(counter), Variant::from_enum(base)) {
            (Some(counter), Some(base)) => limit.since(counter, base, now).into_enum(),
            // The base is of another kind.
            (Some(_), None) | (None, Some(_) | None) => counter.clone(),
        })
    }

    /// Adds what was consumed on another replica.
    pub fn absorb(&self, counter: &mut Counter, other: &Counter, now: Timestamp) {
        each_algorithm!(self, limit => if let Some(other) = Variant::from_enum(other) {
            limit.absorb(own(counter), other, now);
        });
    }

    /// Charges `hits` that were consumed at `at`: see [`Algorithm::charge_at`].
    pub fn charge_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        each_algorithm!(self, limit => limit.charge_at(own(counter), hits, at, now));
    }

    /// Takes back `hits` that [`Limit::charge_at`] charged at `at`, as far as they still count.
    pub fn refund_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        let mut taken = self.fresh();
        self.charge_at(&mut taken, hits, at, now);
        *counter = self.since(counter, &taken, now);
    }

    /// Clamps `counter` after a clock gave up a lead at `at`, not after `now`: see [`Algorithm::clamp_ahead`].
    pub fn clamp_ahead(&self, counter: &mut Counter, at: Timestamp, now: Timestamp) {
        each_algorithm!(self, limit => limit.clamp_ahead(own(counter), at, now));
    }
}

/// What decides on one key in place of the numbers of its rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnTerms {
    /// The limit, of the same kind as that of the rule.
    pub limit: Limit,
    /// What is displayed: see [`OwnTerms::displayed`], or [`OwnTerms::UNLIMITED`].
    pub requests_per_unit: u64,
}

/// The bits of a displayed number. Those above are the code of its unit.
const NUMBER_BITS: u32 = 61;
/// The largest displayed number.
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 2;

impl OwnTerms {
    /// What is displayed for a limit that refuses nothing.
    pub const UNLIMITED: u64 = u64::MAX;

    /// What is displayed for this number of requests, in the unit with this code from 1 to 7, or in that of the rule (0).
    pub fn displayed(requests: u64, unit: u8) -> u64 {
        requests.min(NUMBER_MAX) | u64::from(unit) << NUMBER_BITS
    }

    /// The number of requests and the code of the unit, of what is displayed.
    pub fn requests_and_unit(displayed: u64) -> (u64, u8) {
        (displayed & ((1 << NUMBER_BITS) - 1), (displayed >> NUMBER_BITS) as u8)
    }

    /// Whether the own limit refuses nothing.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_unit == Self::UNLIMITED
    }

    /// Whether the own limit may refuse what `rule` lets pass.
    pub fn may_be_smaller_than(&self, rule: &Limit) -> bool {
        let Self { limit, .. } = self;
        let is_as_large = rule.allowance() <= limit.allowance()
            && rule.hits_per_period() <= limit.hits_per_period()
            && limit.kind().window_nanos() <= rule.kind().window_nanos();
        !self.is_unlimited() && !is_as_large
    }

    /// `decision` of the own limit; a pass with `u64::MAX` hits left if it refuses nothing.
    pub fn allowed(&self, decision: Decision) -> Decision {
        if self.is_unlimited() {
            Decision { verdict: Verdict::Pass, remaining: u64::MAX, ..decision }
        } else {
            decision
        }
    }
}
