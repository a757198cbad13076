//! The sliding window by two counts: the current window and the previous one, weighted by the part of it that lies
//! within one window length before now.
//!
//! The estimate is rounded down, as in the article that made this algorithm known ("How we built rate limiting
//! capable of scaling to millions of domains", Cloudflare, 2017); that formula is its bound.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Algorithm, Decision, Excess, Operation, Span, Verdict},
    time::Timestamp,
};

/// At most `limit` hits by the estimate: the hits of the current window plus the weighted hits of the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// Hits within the length of the window; 0 lets none pass.
    pub limit: u64,
    /// The length of the window.
    pub span: Span,
    /// What happens to a charge larger than what is left. A debt expires like hits that passed.
    pub excess: Excess,
}

/// Hits counted in one window and in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingCounter {
    /// The start of the current window.
    pub(crate) start: Timestamp,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

/// A charge to one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingReceipt {
    start: Timestamp,
    hits: u64,
}

impl SlidingWindow {
    fn advanced(&self, counter: &SlidingCounter, now: Timestamp) -> SlidingCounter {
        counter.advanced(self.span, self.span.start(now))
    }

    /// The time from `now` to the end of its window, at most the whole window.
    fn ahead(&self, counter: &SlidingCounter, now: Timestamp) -> u64 {
        self.length() - now.nanos_since(counter.start).min(self.length())
    }

    fn length(&self) -> u64 {
        self.span.nanos()
    }

    fn end(&self, start: Timestamp) -> Timestamp {
        start.plus(self.length())
    }

    /// The weighted hits of the previous window.
    fn weight(&self, counter: &SlidingCounter, now: Timestamp) -> u64 {
        let weighed = u128::from(counter.previous) * u128::from(self.ahead(counter, now));
        // At most `previous`, so it fits.
        (weighed / u128::from(self.length())) as u64
    }

    fn estimate(&self, counter: &SlidingCounter, now: Timestamp) -> u64 {
        counter.current.saturating_add(self.weight(counter, now))
    }

    fn left(&self, counter: &SlidingCounter, now: Timestamp) -> u64 {
        self.limit.saturating_sub(self.estimate(counter, now))
    }

    fn charge(
        &self,
        counter: &mut SlidingCounter,
        now: Timestamp,
        hits: u64,
    ) -> (bool, Option<SlidingReceipt>) {
        let left = self.left(counter, now);
        let counted = counter.current.saturating_add(hits);
        if hits <= left {
            counter.current = counted;
            return (true, Some(SlidingReceipt { start: counter.start, hits }));
        }
        match self.excess {
            Excess::Refuse => (false, None),
            Excess::Count => {
                counter.current = counted;
                (false, None)
            }
            Excess::Overdraft(_) if left == 0 => (false, None),
            Excess::Overdraft(debt) => {
                let most = self.limit.saturating_add(debt) - self.weight(counter, now);
                counter.current = counted.min(most);
                (true, None)
            }
        }
    }

    /// The instant at which `hits` of the window that ends at `end` weigh at most `weight`.
    fn decayed_at(&self, hits: u64, weight: u64, end: Timestamp) -> Timestamp {
        if hits <= weight {
            return end;
        }
        // The largest distance to the end of the next window at which hits * distance / length rounds down to
        // `weight`.
        let length = u128::from(self.length());
        let ahead = ((u128::from(weight) + 1) * length - 1) / u128::from(hits);
        // Less than the length, as `weight` is less than `hits`.
        end.plus(self.length() - ahead as u64)
    }

    /// The first instant at which `hits` would pass without further charges; `None` if they never pass.
    fn passes_at(&self, counter: &SlidingCounter, hits: u64) -> Option<Timestamp> {
        let hits = match self.excess {
            Excess::Refuse | Excess::Count => hits,
            Excess::Overdraft(_) => hits.min(1),
        };
        let room = self.limit.checked_sub(hits)?;
        Some(match room.checked_sub(counter.current) {
            Some(weight) => self.decayed_at(counter.previous, weight, counter.start),
            None => self.decayed_at(counter.current, room, self.end(counter.start)),
        })
    }
}

impl Algorithm for SlidingWindow {
    type Counter = SlidingCounter;
    type Receipt = SlidingReceipt;

    fn decide(
        &self,
        counter: &mut SlidingCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<SlidingReceipt> {
        let mut advanced = self.advanced(counter, now);
        let (hits, passes, receipt) = match operation {
            Operation::Peek => (1, self.left(&advanced, now) > 0, None),
            Operation::Charge(hits) => {
                let (passes, receipt) = self.charge(&mut advanced, now, hits);
                (hits, passes, receipt)
            }
            Operation::Refund(hits) => {
                advanced.remove(hits);
                (0, true, None)
            }
        };
        if operation.changes(passes, self.excess) {
            *counter = advanced;
        }
        let end = self.end(advanced.start).since(now);
        let remaining = self.left(&advanced, now);
        if passes {
            return Decision { verdict: Verdict::Pass, remaining, reset_after: end, receipt };
        }
        let retry_after = self.passes_at(&advanced, hits).map(|then| then.since(now));
        let reset_after = retry_after.unwrap_or(end);
        Decision { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt }
    }

    fn undo(&self, counter: &mut SlidingCounter, receipt: SlidingReceipt, _now: Timestamp) {
        if receipt.start == counter.start {
            counter.current = counter.current.saturating_sub(receipt.hits);
        } else if self.end(receipt.start) == counter.start {
            counter.previous = counter.previous.saturating_sub(receipt.hits);
        }
    }

    fn idle_at(&self, counter: &SlidingCounter) -> Timestamp {
        if counter.current == 0 {
            self.decayed_at(counter.previous, 0, counter.start)
        } else {
            self.decayed_at(counter.current, 0, self.end(counter.start))
        }
    }

    fn since(&self, counter: &SlidingCounter, base: &SlidingCounter, now: Timestamp) -> SlidingCounter {
        let start = self.span.start(now).max(counter.start).max(base.start);
        let (counter, base) = (counter.advanced(self.span, start), base.advanced(self.span, start));
        SlidingCounter {
            start,
            previous: counter.previous.saturating_sub(base.previous),
            current: counter.current.saturating_sub(base.current),
        }
    }

    fn absorb(&self, counter: &mut SlidingCounter, other: &SlidingCounter, now: Timestamp) {
        let current = self.span.start(now).max(counter.start);
        // The other clock may be ahead; at most one window of that is kept.
        let start = other.start.min(self.end(current)).max(current);
        let other = if other.start < start { other.advanced(self.span, start) } else { *other };
        let advanced = counter.advanced(self.span, start);
        *counter = SlidingCounter {
            start,
            previous: advanced.previous.saturating_add(other.previous),
            current: advanced.current.saturating_add(other.current),
        };
    }

    fn clamp_ahead(&self, counter: &mut SlidingCounter, at: Timestamp, now: Timestamp) {
        if self.end(self.span.start(now)) < counter.start {
            counter.start = self.end(self.span.start(at));
        }
    }
}

impl SlidingCounter {
    /// The counter in the window that starts at `start`; a later window stays.
    fn advanced(&self, span: Span, start: Timestamp) -> Self {
        if start <= self.start {
            return *self;
        }
        let previous = if self.start.plus(span.nanos()) == start { self.current } else { 0 };
        Self { start, previous, current: 0 }
    }

    /// Removes `hits`, the newest first, or as many as there are.
    fn remove(&mut self, hits: u64) {
        let rest = hits.saturating_sub(self.current);
        self.current = self.current.saturating_sub(hits);
        self.previous = self.previous.saturating_sub(rest);
    }
}
