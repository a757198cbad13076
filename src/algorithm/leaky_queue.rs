//! The leaky bucket as a queue: a hit is let through at its turn, one each interval, and turned away where the
//! queue is full.
//!
//! No queue is kept. The debt of a [`PaceCounter`] is how long those before are still leaving, so it is the
//! delay of the next one; whoever is let in waits for that long outside.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Algorithm, Ask, Decision, Pace, PaceCounter, PaceReceipt, Verdict},
    time::Timestamp,
};

/// Hits leave at `pace` and no faster. The first leaves at once, `burst` more may wait behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakyQueue {
    /// How fast hits leave.
    pub pace: Pace,
    /// How many wait behind the one that leaves; `None` lets nothing pass.
    pub burst: Option<u64>,
    /// The longest that one waits; a turn after that is refused.
    pub max_delay: Option<Duration>,
    /// The longest that the caller at hand waits. Its turn after that is refused, and `retry_after` is then the
    /// wait that it would have needed. No rule has it.
    pub patience: Option<Duration>,
}

impl LeakyQueue {
    /// The longest time until nobody leaves any more, in nanoseconds, at which a hit is still let in.
    pub(crate) fn refused_from(&self) -> u64 {
        self.pace.nanos_in(self.room(1).unwrap_or_default())
    }

    /// What may be owed before `hits` so that they are let in, in units; `None` where they never are.
    fn room(&self, hits: u64) -> Option<u128> {
        let places = self.pace.cost(self.burst?).saturating_add(self.pace.cost(1));
        let room = places.checked_sub(self.pace.cost(hits))?;
        Some(self.max_delay.map_or(room, |longest| room.min(self.pace.paid_in(longest))))
    }

    /// Whether the caller at hand waits until `debt` is paid.
    fn waits(&self, debt: u128) -> bool {
        self.patience.is_none_or(|longest| self.pace.time_for(debt) <= longest)
    }

    /// Hits that would be let in now, to leave at their turn.
    fn left(&self, debt: u128) -> u64 {
        match (self.burst, self.room(1)) {
            (Some(burst), Some(room)) if debt <= room && self.waits(debt) => {
                let places = self.pace.cost(burst).saturating_add(self.pace.cost(1));
                self.pace.hits_in(places - debt)
            }
            (Some(_) | None, Some(_) | None) => 0,
        }
    }
}

impl Algorithm for LeakyQueue {
    type Counter = PaceCounter;
    type Receipt = PaceReceipt;

    fn decide(&self, counter: &mut PaceCounter, now: Timestamp, ask: Ask) -> Decision<PaceReceipt> {
        let before = counter.debt(self.pace, now);
        let (hits, debt) = match ask {
            Ask::Look => (1, before),
            Ask::Charge(hits) => (hits, before.saturating_add(self.pace.cost(hits))),
            Ask::Refund(hits) => (0, before.saturating_sub(self.pace.cost(hits))),
        };
        let room = self.room(hits);
        let passes = hits == 0 || room.is_some_and(|room| before <= room && self.waits(before));
        if !passes {
            let retry_after = room.map(|room| match before.checked_sub(room) {
                None | Some(0) => self.pace.time_for(before),
                Some(excess) => self.pace.time_for(excess),
            });
            let reset_after = retry_after.unwrap_or_else(|| self.pace.time_for(before));
            let remaining = self.left(before);
            return Decision {
                verdict: Verdict::Refuse { retry_after },
                remaining,
                reset_after,
                receipt: None,
            };
        }
        if debt != before {
            counter.owe(self.pace, now, debt);
        }
        let (verdict, receipt) = match ask {
            Ask::Charge(hits) => {
                let turn = self.pace.time_for(before);
                let verdict = if turn.is_zero() { Verdict::Pass } else { Verdict::Delay(turn) };
                (verdict, Some(counter.receipt(now, hits)))
            }
            Ask::Look | Ask::Refund(_) => (Verdict::Pass, None),
        };
        Decision { verdict, remaining: self.left(debt), reset_after: self.pace.time_for(debt), receipt }
    }

    fn undo(&self, counter: &mut PaceCounter, receipt: PaceReceipt, now: Timestamp) {
        // Those who came later were told their turns: only the last place can be given away again.
        if counter.is_as_after(receipt) {
            counter.undo(self.pace, receipt, now);
        }
    }

    fn idle_at(&self, counter: &PaceCounter) -> Timestamp {
        counter.idle_at()
    }

    fn since(&self, counter: &PaceCounter, base: &PaceCounter, now: Timestamp) -> PaceCounter {
        counter.since(base, self.pace, now)
    }

    fn absorb(&self, counter: &mut PaceCounter, other: &PaceCounter, now: Timestamp) {
        counter.absorb(other, self.pace, now);
    }

    fn cut_ahead(&self, counter: &mut PaceCounter, at: Timestamp, now: Timestamp) {
        let places = self.burst.map_or(0, |burst| burst.saturating_add(1));
        counter.cut_ahead(self.pace, self.pace.cost(places), at, now);
    }
}
