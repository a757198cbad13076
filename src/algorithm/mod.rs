//! How a decision is made: pure functions of a limit, a counter, an instant and an ask.
//!
//! A limit is policy, a counter is history. Nothing here locks, waits, logs or reads a clock.

use std::time::Duration;

use crate::time::Timestamp;

mod classic;
mod fixed_window;
mod pace;
mod token_bucket;
mod window;

#[cfg(test)]
mod examples;
#[cfg(test)]
mod laws;

pub use classic::Classic;
pub use fixed_window::FixedWindow;
pub use pace::{Pace, PaceCounter, PaceReceipt};
pub use token_bucket::TokenBucket;
pub use window::{Window, WindowCounter, WindowReceipt};

/// What a caller wants of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Only look: nothing is taken.
    Look,
    /// Take this many hits, or none.
    Charge(u64),
    /// Give this many hits back, the newest first. Never refused, never gives more than the limit.
    Refund(u64),
}

/// Whether it may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may, now.
    Pass,
    /// It may, after this time.
    Delay(Duration),
    /// It may not.
    Refuse {
        /// The same ask passes after this time and not before; `None` where it never would.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether it may pass, now or later.
    pub const fn passes(self) -> bool {
        match self {
            Self::Pass | Self::Delay(_) => true,
            Self::Refuse { .. } => false,
        }
    }
}

/// The answer to one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<R = Receipt> {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// Hits that would pass now. (Of a classic limit: the limit less what was counted.)
    pub remaining: u64,
    /// Passed: until the window ends or the bucket is full. Refused: until the same ask passes; where it
    /// never does, as if it had passed.
    pub reset_after: Duration,
    /// What [`Algorithm::undo`] needs to take this charge back; `None` where there is nothing to take back.
    pub receipt: Option<R>,
}

/// What happens to a charge that is larger than what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    /// It is refused and changes nothing.
    #[default]
    Refuse,
    /// It is refused and counted all the same (`count_denied`).
    Count,
    /// It passes as long as anything is left, and leaves a debt of at most this many hits (`overdraft`).
    Overdraft(u64),
}

/// One way to limit.
pub trait Algorithm {
    /// The history it keeps for one key. The default is that of a key never seen.
    type Counter: Default;
    /// What taking one charge back needs.
    type Receipt;

    /// Answers `ask`, and charges or refunds `counter` accordingly.
    fn decide(&self, counter: &mut Self::Counter, now: Timestamp, ask: Ask) -> Decision<Self::Receipt>;

    /// Takes back what still counts of one charge, never more.
    fn undo(&self, counter: &mut Self::Counter, receipt: Self::Receipt, now: Timestamp);

    /// The instant from which `counter` may be forgotten without changing any answer.
    fn idle_at(&self, counter: &Self::Counter) -> Timestamp;

    /// What was consumed after `base`, an earlier state of the same counter.
    fn since(&self, counter: &Self::Counter, base: &Self::Counter, now: Timestamp) -> Self::Counter;

    /// Adds what was consumed elsewhere.
    fn absorb(&self, counter: &mut Self::Counter, other: &Self::Counter, now: Timestamp);
}

/// A limit in force: an algorithm with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What envoyproxy/ratelimit does.
    Classic(Classic),
    /// `fixed_window`
    FixedWindow(FixedWindow),
    /// `token_bucket`
    TokenBucket(TokenBucket),
}

/// The history of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Hits in a window.
    Window(WindowCounter),
    /// A debt that time pays off.
    Pace(PaceCounter),
}

/// What taking one charge back needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// Of a charge to a window.
    Window(WindowReceipt),
    /// Of a charge to a debt.
    Pace(PaceReceipt),
}

/// What makes two counters of one descriptor different counters: the algorithm and its window, not the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    algorithm: u8,
    nanos: u64,
}

impl Kind {
    /// Its bytes in the text of a key. They never change: keys outlive versions.
    pub fn bytes(self) -> [u8; 9] {
        let mut bytes = [self.algorithm; 9];
        bytes[1..].copy_from_slice(&self.nanos.to_le_bytes());
        bytes
    }
}

impl Limit {
    /// Whether it is what envoyproxy/ratelimit does, and not one of the named algorithms.
    pub fn is_classic(&self) -> bool {
        matches!(self, Self::Classic(_))
    }

    /// Which counters it counts in.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Classic(limit) => Kind { algorithm: 0, nanos: limit.window.nanos() },
            Self::FixedWindow(limit) => Kind { algorithm: 1, nanos: limit.window.nanos() },
            Self::TokenBucket(limit) => Kind { algorithm: 2, nanos: limit.pace.nanos() },
        }
    }
}

impl<R> Decision<R> {
    fn map<S>(self, wrap: impl FnOnce(R) -> S) -> Decision<S> {
        Decision {
            verdict: self.verdict,
            remaining: self.remaining,
            reset_after: self.reset_after,
            receipt: self.receipt.map(wrap),
        }
    }
}

/// Sends each call on to the algorithm, given which kind of counter it keeps.
///
/// The kind is part of the key, so a counter of another kind turns up only where two hashes collide. It is then
/// as good as none.
macro_rules! dispatch {
    ($($limit:ident => $counter:ident),* $(,)?) => {
        impl Limit {
            /// The counter of a key never seen.
            pub fn fresh(&self) -> Counter {
                match self {
                    $(Self::$limit(_) => Counter::$counter(Default::default()),)*
                }
            }

            /// Answers `ask`, and charges or refunds `counter` accordingly.
            pub fn decide(&self, counter: &mut Counter, now: Timestamp, ask: Ask) -> Decision {
                match (self, &mut *counter) {
                    $((Self::$limit(limit), Counter::$counter(counter)) => {
                        limit.decide(counter, now, ask).map(Receipt::$counter)
                    })*
                    (limit, other) => {
                        *other = limit.fresh();
                        limit.decide(other, now, ask)
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

            /// The instant from which `counter` may be forgotten without changing any answer.
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

            /// Adds what was consumed elsewhere.
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
    TokenBucket => Pace,
}
