//! The fixed window: that of `algorithm: fixed_window`, which keeps every law, and the classic one of
//! envoyproxy/ratelimit, the algorithm of a rule without `algorithm`.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation,
        granted::HitRate,
        held::{ChargePosition, HeldCharge},
        window::{Window, WindowCounter, WindowReceipt},
    },
    time::timestamp::Timestamp,
};

/// At most `limit` hits in each window, so at most twice that in any span as long as a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedWindow<E = Excess> {
    /// Hits that pass in one window; 0 lets none pass.
    pub limit: u64,
    /// The window.
    pub window: Window,
    /// What happens to a charge larger than what is left. A debt is paid from the windows that follow.
    pub excess: E,
}

/// What envoyproxy/ratelimit does: refused hits count, and a counter that is used up refuses neither a peek nor a charge
/// of no hits, as in that server.
pub type Classic = FixedWindow<Counted>;

/// What happens to a charge that a classic limit refuses: it counts. It is encoded as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted;

/// What happens to a charge that is larger than what is left of a window. A classic window keeps its own.
pub trait WindowExcess: Copy + Into<Excess> + From<Excess> {
    /// Whether the window is a classic one.
    const IS_CLASSIC: bool;
}

impl WindowExcess for Excess {
    const IS_CLASSIC: bool = false;
}

impl WindowExcess for Counted {
    const IS_CLASSIC: bool = true;
}

impl From<Counted> for Excess {
    fn from(Counted: Counted) -> Self {
        Self::Count
    }
}

impl From<Excess> for Counted {
    fn from(_: Excess) -> Self {
        Self
    }
}

impl Classic {
    /// At most `limit` hits in each window.
    pub fn new(limit: u64, window: Window) -> Self {
        Self { limit, window, excess: Counted }
    }
}

impl<E: WindowExcess> FixedWindow<E> {
    /// The part of `count` that still counts `windows` windows later: a debt, less what each window has paid.
    fn carry_over(&self, count: u64, windows: u64) -> u64 {
        match self.excess() {
            Excess::Refuse | Excess::Count => 0,
            Excess::Overdraft(_) => count.saturating_sub(self.limit.saturating_mul(windows)),
        }
    }

    /// The counter in the window of `now`. A window that is already later stays: time that goes back frees nothing.
    #[inline(always)]
    fn advanced(&self, counter: &WindowCounter, now: Timestamp) -> WindowCounter {
        // Until the end of its window, a decision needs no division.
        if now < counter.end { *counter } else { self.advanced_to(counter, self.window.end(now)) }
    }

    /// The counter in the window that ends at `end`, or in a later one.
    fn advanced_to(&self, counter: &WindowCounter, end: Timestamp) -> WindowCounter {
        if end <= counter.end {
            return *counter;
        }
        let carry_over = |count| self.carry_over(count, self.window.windows_between(counter.end, end));
        WindowCounter { end, count: if counter.count > 0 { carry_over(counter.count) } else { 0 } }
    }

    /// The number of windows until `hits` would pass; `None` if they never pass.
    fn windows_until(&self, hits: u64, count: u64) -> Option<u64> {
        match self.excess() {
            Excess::Refuse | Excess::Count => (hits <= self.limit).then_some(1),
            Excess::Overdraft(_) => count.checked_div(self.limit),
        }
    }

    #[inline(always)]
    fn charge(&self, counter: &mut WindowCounter, hits: u64) -> (bool, Option<WindowReceipt>) {
        let left = self.limit.saturating_sub(counter.count);
        let is_beyond = E::IS_CLASSIC && counter.count > self.limit;
        let (fits, counted) = self.excess().admitted(hits, left);
        counter.count = counter.count.saturating_add(counted);
        let receipt = WindowReceipt { end: counter.end, hits };
        (fits && !is_beyond, (hits <= left && !is_beyond).then_some(receipt))
    }
}

impl<E: WindowExcess> Algorithm for FixedWindow<E> {
    type Counter = WindowCounter;
    type Receipt = WindowReceipt;

    // `inline(always)`: part of every decision.
    #[inline(always)]
    fn decide(
        &self,
        counter: &mut WindowCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<WindowReceipt> {
        let mut advanced = self.advanced(counter, now);
        let (hits, passes, receipt) = match operation {
            Operation::Peek if E::IS_CLASSIC => (1, advanced.count <= self.limit, None),
            Operation::Peek => (1, advanced.count < self.limit, None),
            Operation::Charge(hits) => {
                let (passes, receipt) = self.charge(&mut advanced, hits);
                (hits, passes, receipt)
            }
            Operation::Refund(hits) => {
                advanced.count = advanced.count.saturating_sub(hits);
                (0, true, None)
            }
        };
        if operation.changes(passes, || self.excess()) {
            *counter = advanced;
        }
        let remaining = self.limit.saturating_sub(advanced.count);
        Decision::new(passes, receipt, remaining, advanced.end.since(now), || {
            // Whole windows pay a debt: the first of them ends with this one.
            let windows = self.windows_until(hits, advanced.count)?;
            Some(self.window.end_after(advanced.end, windows.saturating_sub(1)).since(now))
        })
    }

    fn undo(&self, counter: &mut WindowCounter, receipt: WindowReceipt, _now: Timestamp) {
        if receipt.end == counter.end {
            counter.count = counter.count.saturating_sub(receipt.hits);
        }
    }

    fn idle_at(&self, counter: &WindowCounter) -> Timestamp {
        if counter.count == 0 {
            return self.window.start(counter.end.minus(1));
        }
        let windows = match (self.excess(), self.limit) {
            // With a limit of 0 the debt is never paid, and evicting the counter admits nothing.
            (Excess::Refuse | Excess::Count, _) | (Excess::Overdraft(_), 0) => 1,
            (Excess::Overdraft(_), limit) => counter.count.div_ceil(limit),
        };
        self.window.end_after(counter.end, windows - 1)
    }

    fn since(&self, counter: &WindowCounter, base: &WindowCounter, now: Timestamp) -> WindowCounter {
        let end = self.window.end(now).max(counter.end).max(base.end);
        let base = self.advanced_to(base, end);
        let counter = self.advanced_to(counter, end);
        WindowCounter { end, count: counter.count.saturating_sub(base.count) }
    }

    fn absorb(&self, counter: &mut WindowCounter, other: &WindowCounter, now: Timestamp) {
        let current = self.window.end(now).max(counter.end);
        // The other clock may be ahead; at most one window of that is retained.
        let end = other.end.min(self.window.end_after(current, 1)).max(current);
        let other = self.advanced_to(other, end);
        *counter = self.advanced_to(counter, end);
        counter.count = counter.count.saturating_add(other.count);
    }

    fn clamp_ahead(&self, counter: &mut WindowCounter, at: Timestamp, now: Timestamp) {
        if self.window.end_after(self.window.end(now), 1) < counter.end {
            counter.end = self.window.end_after(self.window.end(at), 1);
        }
    }

    fn weight(&self, counter: &WindowCounter, _place: ChargePosition, now: Timestamp) -> u128 {
        self.advanced(counter, now).count.into()
    }

    fn lighten(&self, counter: &mut WindowCounter, _held: &HeldCharge, units: u128, now: Timestamp) {
        *counter = self.advanced(counter, now);
        counter.count = counter.count.saturating_sub(u64::try_from(units).unwrap_or(u64::MAX));
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    // `inline(always)`: part of every decision.
    #[inline(always)]
    fn excess(&self) -> Excess {
        self.excess.into()
    }

    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::from_window(self.limit, self.period())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        (self.limit, self.excess) = (number(self.limit), excess(self.excess()).into());
    }
}
