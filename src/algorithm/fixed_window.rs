//! The fixed window that keeps every law: a refused hit changes nothing.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Algorithm, Ask, Decision, Excess, Verdict, Window, WindowCounter, WindowReceipt},
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
    /// Hits of `count` that still count `turns` windows later: a debt, less what each window has paid.
    fn carried(&self, count: u64, turns: u64) -> u64 {
        match self.excess {
            Excess::Refuse | Excess::Count => 0,
            Excess::Overdraft(_) => count.saturating_sub(self.limit.saturating_mul(turns)),
        }
    }

    /// How many windows must turn until `hits` would pass; `None` where they never would.
    fn turns_until(&self, hits: u64, count: u64) -> Option<u64> {
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
            Excess::Overdraft(debt) if 0 < left => {
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

    /// Answers `ask`, given the counter in the window of `now` or a later one, which ends at `end`.
    #[inline]
    pub(crate) fn decide_in_window(
        &self,
        counter: &mut WindowCounter,
        mut turned: WindowCounter,
        end: Timestamp,
        now: Timestamp,
        ask: Ask,
    ) -> Decision<WindowReceipt> {
        let (hits, passes, receipt) = match ask {
            Ask::Look => (1, turned.count < self.limit, None),
            Ask::Charge(hits) => {
                let (passes, receipt) = self.charge(&mut turned, hits);
                (hits, passes, receipt)
            }
            Ask::Refund(hits) => {
                turned.remove(hits);
                (0, true, None)
            }
        };
        if ask.changes(passes, self.excess) {
            *counter = turned;
        }
        let (verdict, reset_after) = if passes {
            (Verdict::Pass, end.since(now))
        } else {
            // A debt is paid by whole windows: the first of them ends with this one.
            let turns = self.turns_until(hits, turned.count);
            let retry_after = turns.map(|turns| self.window.end(turned.start, turns.max(1) - 1).since(now));
            (Verdict::Refuse { retry_after }, retry_after.unwrap_or(end.since(now)))
        };
        Decision { verdict, remaining: self.limit.saturating_sub(turned.count), reset_after, receipt }
    }
}

impl Algorithm for FixedWindow {
    type Counter = WindowCounter;
    type Receipt = WindowReceipt;

    fn decide(&self, counter: &mut WindowCounter, now: Timestamp, ask: Ask) -> Decision<WindowReceipt> {
        let mut turned = *counter;
        turned.turn(&self.window, self.window.start(now), |count, turns| self.carried(count, turns));
        let end = self.window.end(turned.start, 0);
        self.decide_in_window(counter, turned, end, now, ask)
    }

    fn undo(&self, counter: &mut WindowCounter, receipt: WindowReceipt, _now: Timestamp) {
        counter.undo(receipt);
    }

    fn idle_at(&self, counter: &WindowCounter) -> Timestamp {
        if counter.count == 0 {
            return counter.start;
        }
        let windows = match (self.excess, self.limit) {
            // A debt to a limit that lets nothing pass is never paid, and keeps nobody out who is not kept out.
            (Excess::Refuse | Excess::Count, _) | (Excess::Overdraft(_), 0) => 1,
            (Excess::Overdraft(_), limit) => counter.count.div_ceil(limit),
        };
        self.window.end(counter.start, windows - 1)
    }

    fn since(&self, counter: &WindowCounter, base: &WindowCounter, now: Timestamp) -> WindowCounter {
        counter.since(base, &self.window, now, |count, turns| self.carried(count, turns))
    }

    fn absorb(&self, counter: &mut WindowCounter, other: &WindowCounter, now: Timestamp) {
        counter.absorb(other, &self.window, now, |count, turns| self.carried(count, turns));
    }

    fn cut_ahead(&self, counter: &mut WindowCounter, at: Timestamp, now: Timestamp) {
        counter.cut_ahead(&self.window, at, now);
    }
}
