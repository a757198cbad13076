//! The fixed window of envoyproxy/ratelimit: the algorithm of a rule without `algorithm`.
//!
//! Refused hits count, and a peek is over the limit only when the count exceeds the limit, as in that server.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Admission, Algorithm, ChargePosition, Decision, Excess, HeldCharge, HitRate, Operation, Verdict,
        Window, WindowCounter, WindowReceipt,
    },
    time::Timestamp,
};

/// At most `limit` hits in each window; refused hits are charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classic {
    /// Hits that pass in one window; 0 lets none pass.
    pub limit: u64,
    /// The window, aligned to the epoch.
    pub window: Window,
}

impl Algorithm for Classic {
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
        advanced.advance(&self.window, now, |_, _| 0);
        let (hits, is_countable, charged) = match operation {
            Operation::Peek => (1, true, None),
            // A count that exceeds the largest number exceeds every limit.
            Operation::Charge(hits) => {
                let is_countable = advanced.count.checked_add(hits).is_some();
                (hits, is_countable, Some(advanced.add(hits)))
            }
            Operation::Refund(hits) => {
                advanced.remove(hits);
                (0, true, None)
            }
        };
        if operation != Operation::Peek {
            *counter = advanced;
        }
        let reset_after = advanced.end.since(now);
        let remaining = self.limit.saturating_sub(advanced.count);
        let is_within = is_countable && advanced.count <= self.limit;
        if is_within || matches!(operation, Operation::Refund(_)) {
            return Decision { verdict: Verdict::Pass, remaining, reset_after, receipt: charged };
        }
        let retry_after = (hits <= self.limit).then_some(reset_after);
        Decision { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt: None }
    }

    fn undo(&self, counter: &mut WindowCounter, receipt: WindowReceipt, _now: Timestamp) {
        counter.undo(receipt);
    }

    fn idle_at(&self, counter: &WindowCounter) -> Timestamp {
        if counter.count == 0 { self.window.start(counter.end.minus(1)) } else { counter.end }
    }

    fn since(&self, counter: &WindowCounter, base: &WindowCounter, now: Timestamp) -> WindowCounter {
        counter.since(base, &self.window, now, |_, _| 0)
    }

    fn absorb(&self, counter: &mut WindowCounter, other: &WindowCounter, now: Timestamp) {
        counter.absorb(other, &self.window, now, |_, _| 0);
    }

    fn clamp_ahead(&self, counter: &mut WindowCounter, at: Timestamp, now: Timestamp) {
        counter.clamp_ahead(&self.window, at, now);
    }

    fn weight(&self, counter: &WindowCounter, _place: ChargePosition, now: Timestamp) -> u128 {
        let mut advanced = *counter;
        advanced.advance(&self.window, now, |_, _| 0);
        advanced.count.into()
    }

    fn lighten(&self, counter: &mut WindowCounter, _held: &HeldCharge, units: u128, now: Timestamp) {
        counter.advance(&self.window, now, |_, _| 0);
        counter.remove(u64::try_from(units).unwrap_or(u64::MAX));
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        Excess::Count
    }

    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::from_window(self.limit, self.period())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, _: impl Fn(Excess) -> Excess) {
        self.limit = number(self.limit);
    }
}
