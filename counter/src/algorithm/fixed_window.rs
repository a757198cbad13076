//! The fixed window that keeps every law: a refused hit changes nothing.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Admission, Algorithm, ChargePosition, Decision, Excess, HeldCharge, HitRate, Operation, Verdict,
        Window, WindowCounter, WindowReceipt,
    },
    time::Timestamp,
};

/// At most `limit` hits in each window, so at most twice that in any span as long as a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedWindow {
    /// Hits that pass in one window; 0 lets none pass.
    pub limit: u64,
    /// The window.
    pub window: Window,
    /// What happens to a charge larger than what is left. A debt is paid from the windows that follow.
    pub excess: Excess,
}

impl FixedWindow {
    /// The part of `count` that still counts `windows` windows later: a debt, less what each window has paid.
    fn carry_over(&self, count: u64, windows: u64) -> u64 {
        match self.excess {
            Excess::Refuse | Excess::Count => 0,
            Excess::Overdraft(_) => count.saturating_sub(self.limit.saturating_mul(windows)),
        }
    }

    /// The number of windows until `hits` would pass; `None` if they never pass.
    fn windows_until(&self, hits: u64, count: u64) -> Option<u64> {
        match self.excess {
            Excess::Refuse | Excess::Count => (hits <= self.limit).then_some(1),
            Excess::Overdraft(_) => count.checked_div(self.limit),
        }
    }

    fn charge(&self, counter: &mut WindowCounter, hits: u64) -> (bool, Option<WindowReceipt>) {
        let left = self.limit.saturating_sub(counter.count);
        if hits <= left {
            return (true, Some(counter.add(hits)));
        }
        match self.excess {
            Excess::Overdraft(debt) if left > 0 => {
                counter.add(hits);
                counter.count = counter.count.min(self.limit.saturating_add(debt));
                (true, None)
            }
            Excess::Count => {
                counter.add(hits);
                (false, None)
            }
            Excess::Refuse | Excess::Overdraft(_) => (false, None),
        }
    }
}

impl Algorithm for FixedWindow {
    type Counter = WindowCounter;
    type Receipt = WindowReceipt;
    const ADMISSION: Admission = Admission::AtOnce;
    const LEASABLE: bool = true;

    // `inline(always)`: part of every decision.
    #[inline(always)]
    fn decide(
        &self,
        counter: &mut WindowCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<WindowReceipt> {
        let mut advanced = *counter;
        advanced.advance(&self.window, now, |count, windows_between| self.carry_over(count, windows_between));
        let (hits, passes, receipt) = match operation {
            Operation::Peek => (1, advanced.count < self.limit, None),
            Operation::Charge(hits) => {
                let (passes, receipt) = self.charge(&mut advanced, hits);
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
        let window_ends = advanced.end.since(now);
        let (verdict, reset_after) = if passes {
            (Verdict::Pass, window_ends)
        } else {
            // Whole windows pay a debt: the first of them ends with this one.
            let windows = self.windows_until(hits, advanced.count);
            let retry_after = windows
                .map(|windows| self.window.end_after(advanced.end, windows.saturating_sub(1)).since(now));
            (Verdict::Refuse { retry_after }, retry_after.unwrap_or(window_ends))
        };
        Decision { verdict, remaining: self.limit.saturating_sub(advanced.count), reset_after, receipt }
    }

    fn undo(&self, counter: &mut WindowCounter, receipt: WindowReceipt, _now: Timestamp) {
        counter.undo(receipt);
    }

    fn idle_at(&self, counter: &WindowCounter) -> Timestamp {
        if counter.count == 0 {
            return self.window.start(counter.end.minus(1));
        }
        let windows = match (self.excess, self.limit) {
            // With a limit of 0 the debt is never paid, and evicting the counter admits nothing.
            (Excess::Refuse | Excess::Count, _) | (Excess::Overdraft(_), 0) => 1,
            (Excess::Overdraft(_), limit) => counter.count.div_ceil(limit),
        };
        self.window.end_after(counter.end, windows - 1)
    }

    fn since(&self, counter: &WindowCounter, base: &WindowCounter, now: Timestamp) -> WindowCounter {
        counter
            .since(base, &self.window, now, |count, windows_between| self.carry_over(count, windows_between))
    }

    fn absorb(&self, counter: &mut WindowCounter, other: &WindowCounter, now: Timestamp) {
        counter.absorb(other, &self.window, now, |count, windows_between| {
            self.carry_over(count, windows_between)
        });
    }

    fn clamp_ahead(&self, counter: &mut WindowCounter, at: Timestamp, now: Timestamp) {
        counter.clamp_ahead(&self.window, at, now);
    }

    fn weight(&self, counter: &WindowCounter, _place: ChargePosition, now: Timestamp) -> u128 {
        let mut advanced = *counter;
        advanced.advance(&self.window, now, |count, windows| self.carry_over(count, windows));
        advanced.count.into()
    }

    fn lighten(&self, counter: &mut WindowCounter, _held: &HeldCharge, units: u128, now: Timestamp) {
        counter.advance(&self.window, now, |count, windows| self.carry_over(count, windows));
        counter.remove(u64::try_from(units).unwrap_or(u64::MAX));
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::from_window(self.limit, self.period())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        (self.limit, self.excess) = (number(self.limit), excess(self.excess));
    }
}
