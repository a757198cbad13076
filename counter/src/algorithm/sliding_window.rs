//! The sliding window by two counts: the current window and the previous one, weighted by the part of it that lies
//! within one window length before now.
//!
//! The estimate is rounded down, as in the article that made this algorithm known ("How we built rate limiting
//! capable of scaling to millions of domains", Cloudflare, 2017); that formula is its bound.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation,
        granted::HitRate,
        held::{ChargePosition, HeldCharge},
        window::Span,
    },
    time::timestamp::Timestamp,
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
    /// The end of the current window.
    pub(crate) end: Timestamp,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

/// A charge to one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingReceipt {
    end: Timestamp,
    hits: u64,
}

impl SlidingWindow {
    fn advanced(&self, counter: &SlidingCounter, now: Timestamp) -> SlidingCounter {
        // In the same window, and in a later one, nothing changes.
        if now < counter.end { *counter } else { counter.advanced(self.span, self.span.end(now)) }
    }

    /// The time from `now` to the end of its window, at most the whole window.
    fn ahead(&self, counter: &SlidingCounter, now: Timestamp) -> u64 {
        counter.end.nanos_since(now).min(self.length())
    }

    fn start(&self, counter: &SlidingCounter) -> Timestamp {
        counter.end.minus(self.length())
    }

    fn length(&self) -> u64 {
        self.span.nanos()
    }

    /// The end of the window after the one that ends at `end`.
    fn next(&self, end: Timestamp) -> Timestamp {
        end.plus(self.length())
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
        let (passes, counted) = self.excess.admitted(hits, left);
        counter.current = counter.current.saturating_add(counted);
        (passes, (hits <= left).then_some(SlidingReceipt { end: counter.end, hits }))
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

    /// An upper bound of the time after which `hits` pass, while the window ends after `end`, at most the limit and
    /// `debt` are counted in it, and no more are charged.
    pub(super) fn repeats_after(&self, hits: u64, debt: u64, end: Duration) -> Duration {
        let most = self.limit.saturating_add(debt);
        let room = self.limit.saturating_sub(hits);
        end.saturating_add(self.decayed_at(most, room, Timestamp::EPOCH).since(Timestamp::EPOCH))
    }

    /// The first instant at which `hits` would pass without further charges; `None` if they never pass.
    fn passes_at(&self, counter: &SlidingCounter, hits: u64) -> Option<Timestamp> {
        let room = self.limit.checked_sub(self.excess.needed(hits))?;
        Some(match room.checked_sub(counter.current) {
            Some(weight) => self.decayed_at(counter.previous, weight, self.start(counter)),
            None => self.decayed_at(counter.current, room, counter.end),
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
        if operation.changes(passes, || self.excess) {
            *counter = advanced;
        }
        let remaining = self.left(&advanced, now);
        Decision::new(passes, receipt, remaining, advanced.end.since(now), || {
            self.passes_at(&advanced, hits).map(|then| then.since(now))
        })
    }

    fn undo(&self, counter: &mut SlidingCounter, receipt: SlidingReceipt, _now: Timestamp) {
        if receipt.end == counter.end {
            counter.current = counter.current.saturating_sub(receipt.hits);
        } else if self.next(receipt.end) == counter.end {
            counter.previous = counter.previous.saturating_sub(receipt.hits);
        }
    }

    fn idle_at(&self, counter: &SlidingCounter) -> Timestamp {
        if counter.current == 0 {
            self.decayed_at(counter.previous, 0, self.start(counter))
        } else {
            self.decayed_at(counter.current, 0, counter.end)
        }
    }

    fn since(&self, counter: &SlidingCounter, base: &SlidingCounter, now: Timestamp) -> SlidingCounter {
        let end = self.span.end(now).max(counter.end).max(base.end);
        let counter = counter.advanced(self.span, end);
        let base = base.advanced(self.span, end);
        SlidingCounter {
            end,
            previous: counter.previous.saturating_sub(base.previous),
            current: counter.current.saturating_sub(base.current),
        }
    }

    fn absorb(&self, counter: &mut SlidingCounter, other: &SlidingCounter, now: Timestamp) {
        let current = self.span.end(now).max(counter.end);
        // The other clock may be ahead; at most one window of that is retained.
        let end = other.end.min(self.next(current)).max(current);
        let other = other.advanced(self.span, end);
        let advanced = counter.advanced(self.span, end);
        *counter = SlidingCounter {
            end,
            previous: advanced.previous.saturating_add(other.previous),
            current: advanced.current.saturating_add(other.current),
        };
    }

    fn clamp_ahead(&self, counter: &mut SlidingCounter, at: Timestamp, now: Timestamp) {
        if self.next(self.span.end(now)) < counter.end {
            counter.end = self.next(self.span.end(at));
        }
    }

    fn position(&self, counter: &SlidingCounter, _now: Timestamp) -> ChargePosition {
        ChargePosition::Window(counter.end)
    }

    fn weight(&self, counter: &SlidingCounter, position: ChargePosition, now: Timestamp) -> u128 {
        let mut advanced = self.advanced(counter, now);
        advanced.in_window(position, self.span).map_or(0, |hits| u128::from(*hits))
    }

    fn lighten(&self, counter: &mut SlidingCounter, held: &HeldCharge, units: u128, now: Timestamp) {
        *counter = self.advanced(counter, now);
        if let Some(hits) = counter.in_window(held.position, self.span) {
            *hits = hits.saturating_sub(u64::try_from(units).unwrap_or(u64::MAX));
        }
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn period(&self) -> Option<u64> {
        Some(self.length())
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::from_window(self.limit, self.period())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        (self.limit, self.excess) = (number(self.limit), excess(self.excess));
    }
}

impl SlidingCounter {
    /// The counter in the window that ends at `end`; a later window stays.
    fn advanced(&self, span: Span, end: Timestamp) -> Self {
        if end <= self.end {
            return *self;
        }
        let previous = if self.end.plus(span.nanos()) == end { self.current } else { 0 };
        Self { end, previous, current: 0 }
    }

    /// The hits of the window of `position`, if they still weigh anything.
    fn in_window(&mut self, position: ChargePosition, span: Span) -> Option<&mut u64> {
        match position {
            ChargePosition::Window(end) if end == self.end => Some(&mut self.current),
            ChargePosition::Window(end) if end.plus(span.nanos()) == self.end => Some(&mut self.previous),
            ChargePosition::Window(_) | ChargePosition::Sum | ChargePosition::Instant(_) => None,
        }
    }

    /// Removes `hits`, the newest first, or as many as there are.
    fn remove(&mut self, hits: u64) {
        let rest = hits.saturating_sub(self.current);
        self.current = self.current.saturating_sub(hits);
        self.previous = self.previous.saturating_sub(rest);
    }
}
