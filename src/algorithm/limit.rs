//! `Limit`: an enum of all algorithms. It selects the counter kind and dispatches each call.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Classic, DebtCounter, DebtReceipt, Decision, Excess, FixedWindow, LeakyQueue, LogCounter,
        LogReceipt, Operation, SlidingCounter, SlidingLog, SlidingReceipt, SlidingWindow, Span, StepCounter,
        StepReceipt, SteppedBucket, TokenBucket, Verdict, Window, WindowCounter, WindowReceipt,
    },
    time::Timestamp,
};

mod lease;
mod share;

/// A limit in force: an algorithm with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// What envoyproxy/ratelimit does.
    Classic(Classic),
    /// `fixed_window`
    FixedWindow(FixedWindow),
    /// `sliding_window`
    SlidingWindow(SlidingWindow),
    /// `sliding_window` with `sub_windows`
    SubWindows(SlidingLog),
    /// `sliding_log`
    SlidingLog(SlidingLog),
    /// `token_bucket`
    TokenBucket(TokenBucket),
    /// `token_bucket` with `refill_amount` and `refill_interval`
    SteppedBucket(SteppedBucket),
    /// `leaky_bucket`: the level of a leaky bucket is what a token bucket lacks, so both use the same arithmetic.
    LeakyBucket(TokenBucket),
    /// `leaky_queue`
    LeakyQueue(LeakyQueue),
}

/// The history of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counter {
    /// Hits in a window.
    Window(WindowCounter),
    /// Hits in a window and the one before it.
    Sliding(SlidingCounter),
    /// Charges and their instants.
    Log(LogCounter),
    /// A debt that time pays off.
    Debt(DebtCounter),
    /// Tokens that are missing.
    Step(StepCounter),
}

/// What taking one charge back needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receipt {
    /// Of a charge to a window.
    Window(WindowReceipt),
    /// Of a charge to a window that slides.
    Sliding(SlidingReceipt),
    /// Of a charge that is remembered.
    Log(LogReceipt),
    /// Of a charge to a debt.
    Debt(DebtReceipt),
    /// Of a charge in a step.
    Step(StepReceipt),
}

/// What distinguishes two counters of one descriptor: the algorithm and its window, not the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterKind {
    algorithm: u8,
    // The length of the window, or a code that stands for it.
    window: u64,
    // The length of a sub-window.
    grain: u64,
}

impl CounterKind {
    /// The bytes that are hashed into a key. They never change, because keys outlive versions.
    pub fn bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[0] = self.algorithm;
        bytes[1..9].copy_from_slice(&self.window.to_le_bytes());
        bytes[9..].copy_from_slice(&self.grain.to_le_bytes());
        bytes
    }
}

impl Limit {
    /// Whether this is the algorithm of envoyproxy/ratelimit and not one of the named algorithms.
    pub fn is_classic(&self) -> bool {
        matches!(self, Self::Classic(_))
    }

    /// Predicts the answer to `operation` from the answer to a peek, by what is left.
    pub(crate) fn predict(&self, operation: Operation, peek: &Decision) -> Decision {
        let passes = match (operation, self.excess()) {
            (Operation::Peek, _) => peek.verdict.passes(),
            (Operation::Refund(_), _) => true,
            (Operation::Charge(hits), Excess::Refuse | Excess::Count) => hits <= peek.remaining,
            (Operation::Charge(_), Excess::Overdraft(_)) => peek.remaining > 0,
        };
        let verdict = if passes { Verdict::Pass } else { Verdict::Refuse { retry_after: None } };
        Decision { verdict, ..*peek }
    }

    /// Hits that pass when nothing was counted.
    pub fn allowance(&self) -> u64 {
        match self {
            Self::Classic(limit) => limit.limit,
            Self::FixedWindow(limit) => limit.limit,
            Self::SlidingWindow(limit) => limit.limit,
            Self::SubWindows(limit) | Self::SlidingLog(limit) => limit.limit,
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => limit.burst,
            Self::SteppedBucket(limit) => limit.burst,
            Self::LeakyQueue(limit) => limit.burst.map_or(0, |burst| burst.saturating_add(1)),
        }
    }

    /// What happens to a charge that is larger than what is left. A queue refuses it.
    fn excess(&self) -> Excess {
        match self {
            Self::Classic(_) => Excess::Count,
            Self::FixedWindow(limit) => limit.excess,
            Self::SlidingWindow(limit) => limit.excess,
            Self::SubWindows(limit) | Self::SlidingLog(limit) => limit.excess,
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => limit.excess,
            Self::SteppedBucket(limit) => limit.excess,
            Self::LeakyQueue(_) => Excess::Refuse,
        }
    }

    /// Hits that `operation` charges, given whether it passes.
    pub(crate) fn charged(&self, operation: Operation, passes: bool) -> u64 {
        match operation {
            Operation::Charge(hits) if operation.changes(passes, self.excess()) => hits,
            Operation::Charge(_) | Operation::Peek | Operation::Refund(_) => 0,
        }
    }

    /// Whether `operation` changes its counter, given whether it passes.
    pub(crate) fn is_changed_by(&self, operation: Operation, passes: bool) -> bool {
        operation.changes(passes, self.excess())
    }

    /// For limits that keep a debt as time: the longest time to pay a debt, in nanoseconds, at which a single hit still
    /// passes. 0 for all others.
    pub(crate) fn passing_debt_max(&self) -> u64 {
        match self {
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => limit.passing_debt_max(),
            Self::SteppedBucket(limit) => limit.passing_debt_max(),
            Self::LeakyQueue(limit) => limit.passing_debt_max(),
            Self::Classic(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::SubWindows(_)
            | Self::SlidingLog(_) => 0,
        }
    }

    /// The windows that its [`WindowCounter`]s count in.
    pub(crate) fn window(&self) -> Option<&Window> {
        match self {
            Self::Classic(limit) => Some(&limit.window),
            Self::FixedWindow(limit) => Some(&limit.window),
            Self::SlidingWindow(_)
            | Self::SubWindows(_)
            | Self::SlidingLog(_)
            | Self::TokenBucket(_)
            | Self::SteppedBucket(_)
            | Self::LeakyBucket(_)
            | Self::LeakyQueue(_) => None,
        }
    }

    /// The length of the windows that its [`SlidingCounter`]s count in.
    pub(crate) fn span(&self) -> Option<Span> {
        match self {
            Self::SlidingWindow(limit) => Some(limit.span),
            Self::Classic(_)
            | Self::FixedWindow(_)
            | Self::SubWindows(_)
            | Self::SlidingLog(_)
            | Self::TokenBucket(_)
            | Self::SteppedBucket(_)
            | Self::LeakyBucket(_)
            | Self::LeakyQueue(_) => None,
        }
    }

    /// The same limit for a caller with this timeout. Only a queue depends on it.
    pub fn within(&self, timeout: Option<Duration>) -> Cow<'_, Self> {
        match self {
            Self::LeakyQueue(queue) if timeout.is_some() => {
                Cow::Owned(Self::LeakyQueue(LeakyQueue { timeout, ..*queue }))
            }
            Self::LeakyQueue(_)
            | Self::Classic(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::SubWindows(_)
            | Self::SlidingLog(_)
            | Self::TokenBucket(_)
            | Self::SteppedBucket(_)
            | Self::LeakyBucket(_) => Cow::Borrowed(self),
        }
    }

    /// The same limit for recording known consumption: a charge larger than what is left leaves a debt of up to `debt`
    /// hits if the algorithm can hold one. A limit with an overdraft keeps its own bound.
    pub fn with_debt(&self, debt: u64) -> Self {
        let mut limit = self.clone();
        let excess = match &mut limit {
            Self::FixedWindow(limit) => &mut limit.excess,
            Self::SlidingWindow(limit) => &mut limit.excess,
            Self::SubWindows(limit) | Self::SlidingLog(limit) => &mut limit.excess,
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => &mut limit.excess,
            Self::SteppedBucket(limit) => &mut limit.excess,
            // A classic limit counts refused hits anyway; a queue holds only hits that wait.
            Self::Classic(_) | Self::LeakyQueue(_) => return limit,
        };
        match excess {
            Excess::Refuse | Excess::Count => *excess = Excess::Overdraft(debt),
            Excess::Overdraft(_) => {}
        }
        limit
    }

    /// The time in which the whole allowance comes back, if that is constant.
    pub fn period(&self) -> Option<Duration> {
        let nanos = match self {
            Self::Classic(Classic { window, .. }) | Self::FixedWindow(FixedWindow { window, .. }) => {
                match window {
                    Window::Aligned(span) => span.nanos(),
                    Window::Calendar(_) => return None,
                }
            }
            Self::SlidingWindow(limit) => limit.span.nanos(),
            Self::SubWindows(limit) | Self::SlidingLog(limit) => limit.span.nanos(),
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => limit.rate.nanos(),
            Self::LeakyQueue(limit) => limit.rate.nanos(),
            Self::SteppedBucket(_) => return None,
        };
        Some(Duration::from_nanos(nanos))
    }

    /// The kind of counter that this limit uses.
    pub fn kind(&self) -> CounterKind {
        let windows = |aligned, calendar, window: &Window| match window {
            Window::Aligned(span) => CounterKind { algorithm: aligned, window: span.nanos(), grain: 0 },
            Window::Calendar(each) => CounterKind { algorithm: calendar, window: each.code(), grain: 0 },
        };
        let plain = |algorithm, window| CounterKind { algorithm, window, grain: 0 };
        match self {
            Self::Classic(limit) => windows(0, 1, &limit.window),
            Self::FixedWindow(limit) => windows(2, 3, &limit.window),
            Self::SlidingWindow(limit) => plain(4, limit.span.nanos()),
            Self::SubWindows(limit) => {
                CounterKind { algorithm: 5, window: limit.span.nanos(), grain: limit.grain.get() }
            }
            Self::SlidingLog(limit) => plain(6, limit.span.nanos()),
            Self::TokenBucket(limit) => plain(7, limit.rate.nanos()),
            Self::SteppedBucket(limit) => plain(8, limit.interval.get()),
            Self::LeakyBucket(limit) => plain(9, limit.rate.nanos()),
            Self::LeakyQueue(limit) => plain(10, limit.rate.nanos()),
        }
    }
}

impl Counter {
    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Log(log) => log.heap_bytes(),
            Self::Window(_) | Self::Sliding(_) | Self::Debt(_) | Self::Step(_) => 0,
        }
    }

    /// Moves all instants back by `back` nanoseconds, for a clock that shows that much less.
    pub(crate) fn shift_back(&mut self, back: u64) {
        match self {
            Self::Window(counter) => counter.start = counter.start.minus(back),
            Self::Sliding(counter) => counter.start = counter.start.minus(back),
            Self::Log(counter) => counter.shift_back(back),
            Self::Debt(counter) => counter.paid_at = counter.paid_at.minus(back),
            Self::Step(counter) => counter.full_at = counter.full_at.minus(back),
        }
    }
}

/// Dispatches each call to the algorithm and its kind of counter.
///
/// The kind is part of the key, so a counter of another kind appears only if two hashes collide. It is then treated
/// as a fresh one.
macro_rules! dispatch {
    ($($limit:ident => $counter:ident),* $(,)?) => {
        impl Limit {
            /// A fresh counter.
            pub fn fresh(&self) -> Counter {
                match self {
                    $(Self::$limit(_) => Counter::$counter(Default::default()),)*
                }
            }

            /// Answers `operation`, and charges or refunds `counter` accordingly.
            pub fn decide(&self, counter: &mut Counter, now: Timestamp, operation: Operation) -> Decision {
                match (self, &mut *counter) {
                    $((Self::$limit(limit), Counter::$counter(counter)) => {
                        limit.decide(counter, now, operation).map(Receipt::$counter)
                    })*
                    (limit, other) => {
                        *other = limit.fresh();
                        limit.decide(other, now, operation)
                    }
                }
            }

            /// Takes back what still counts of one charge, never more.
            pub fn undo(&self, counter: &mut Counter, receipt: Receipt, now: Timestamp) {
                match (self, counter, receipt) {
                    $((Self::$limit(limit), Counter::$counter(counter), Receipt::$counter(receipt)) => {
                        limit.undo(counter, receipt, now);
                    })*
                    _another_counters_receipt => {}
                }
            }

            /// The instant from which `counter` may be evicted without changing any answer.
            pub fn idle_at(&self, counter: &Counter) -> Timestamp {
                match (self, counter) {
                    $((Self::$limit(limit), Counter::$counter(counter)) => limit.idle_at(counter),)*
                    _another_limits_counter => Timestamp::EPOCH,
                }
            }

            /// What was consumed after `base`, an earlier state of the same counter.
            pub fn since(&self, counter: &Counter, base: &Counter, now: Timestamp) -> Counter {
                match (self, counter, base) {
                    $((Self::$limit(limit), Counter::$counter(counter), Counter::$counter(base)) => {
                        Counter::$counter(limit.since(counter, base, now))
                    })*
                    _another_limits_counter => counter.clone(),
                }
            }

            /// Clamps `counter` after a clock gave up a lead at `at`, not after `now`: see [`Algorithm::clamp_ahead`].
            pub fn clamp_ahead(&self, counter: &mut Counter, at: Timestamp, now: Timestamp) {
                match (self, counter) {
                    $((Self::$limit(limit), Counter::$counter(counter)) => limit.clamp_ahead(counter, at, now),)*
                    _another_limits_counter => {}
                }
            }

            /// Adds what was consumed on another replica.
            pub fn absorb(&self, counter: &mut Counter, other: &Counter, now: Timestamp) {
                match (self, counter, other) {
                    $((Self::$limit(limit), Counter::$counter(counter), Counter::$counter(other)) => {
                        limit.absorb(counter, other, now);
                    })*
                    _another_limits_counter => {}
                }
            }
        }
    };
}

dispatch! {
    Classic => Window,
    FixedWindow => Window,
    SlidingWindow => Sliding,
    SubWindows => Log,
    SlidingLog => Log,
    TokenBucket => Debt,
    SteppedBucket => Step,
    LeakyBucket => Debt,
    LeakyQueue => Debt,
}
