//! A limit with a penalty: a key that was refused too often in a row is refused for a time, longer each time.
//!
//! The penalty wraps the counter of its limit, as long as it has a record of refusals; a counter without one is that of
//! the limit alone. All of them are of the kind of that limit, so a penalty can be added and removed by a reload.

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation, Verdict,
        counter::{Counter, Receipt},
        forward,
        held::{ChargePosition, HeldCharge},
        limit::{Limit, LimitAndPenalty, Penalized},
        penalty::{Penalty, PenaltyRecord},
        window::Window,
    },
    time::timestamp::Timestamp,
};

impl Penalized {
    /// A limit with a penalty; it replaces one that the limit has.
    pub fn new(limit: Limit, penalty: Penalty) -> Self {
        let limit = match limit {
            Limit::Penalized(penalized) => penalized.both.limit,
            other => other,
        };
        Self { both: Box::new(LimitAndPenalty { limit, penalty }) }
    }

    /// The limit without its penalty.
    pub fn limit(&self) -> &Limit {
        &self.both.limit
    }

    /// The penalty.
    pub fn penalty(&self) -> &Penalty {
        &self.both.penalty
    }

    /// Decides a charge outside of a penalty.
    fn charge(&self, counter: &mut Counter, now: Timestamp, charge: Operation) -> Decision {
        let decision = self.limit().decide(counter, now, charge);
        if decision.verdict.passes() {
            counter.end_row();
            return decision;
        }
        let mut record = counter.record().copied().unwrap_or(PenaltyRecord::NONE);
        let until = record.add_refusal(self.penalty(), now);
        counter.set_record(Some(record));
        if now < until { during_penalty(decision, until, now) } else { decision }
    }

    /// Refuses a charge during a penalty that ends at `until`.
    fn refuse(&self, counter: &mut Counter, until: Timestamp, now: Timestamp, charge: Operation) -> Decision {
        if let Some(record) = counter.record().copied() {
            counter.set_record(Some(record.after_refusal(self.penalty(), now)));
        }
        let limit = self.limit();
        let decision = match limit.excess() {
            Excess::Count => {
                limit.decide(counter, now, charge);
                // The charge counts already, so this is about the next one of its size.
                limit.without_refused_charges().decide(&mut counter.clone(), now, charge)
            }
            Excess::Refuse | Excess::Overdraft(_) => {
                let peek = limit.decide(counter, now, Operation::Peek);
                let predicted = limit.predict(charge, &peek);
                // A refusal changes nothing, and names the instant at which the limit lets the charge pass.
                if predicted.verdict.passes() { predicted } else { limit.decide(counter, now, charge) }
            }
        };
        during_penalty(Decision { receipt: None, ..decision }, until, now)
    }
}

/// A decision during a penalty that ends at `until`: nothing passes before.
fn during_penalty(decision: Decision, until: Timestamp, now: Timestamp) -> Decision {
    let left = until.since(now);
    let (retry_after, reset_after) = match decision.verdict {
        Verdict::Pass | Verdict::Delay(_) => (Some(left), left),
        Verdict::Refuse { retry_after: Some(wait) } => (Some(wait.max(left)), wait.max(left)),
        Verdict::Refuse { retry_after: None } => (None, decision.reset_after.max(left)),
    };
    Decision { verdict: Verdict::Refuse { retry_after }, remaining: 0, reset_after, ..decision }
}

impl Algorithm for Penalized {
    type Counter = Counter;
    type Receipt = Receipt;

    fn decide(&self, counter: &mut Counter, now: Timestamp, operation: Operation) -> Decision {
        let until = counter.record().map_or(Timestamp::EPOCH, |record| record.until);
        let is_penalized = now < until;
        match operation {
            Operation::Charge(_) if is_penalized => self.refuse(counter, until, now, operation),
            Operation::Charge(_) => {
                if counter.record().is_some_and(|record| record.forgotten_at <= now) {
                    counter.set_record(None);
                }
                self.charge(counter, now, operation)
            }
            Operation::Peek => {
                let peek = self.limit().decide(counter, now, operation);
                if is_penalized { during_penalty(peek, until, now) } else { peek }
            }
            Operation::Refund(_) => {
                let decision = self.limit().decide(counter, now, operation);
                if is_penalized { Decision { remaining: 0, ..decision } } else { decision }
            }
        }
    }

    fn undo(&self, counter: &mut Counter, receipt: Receipt, now: Timestamp) {
        self.limit().undo(counter, receipt, now);
        counter.resume_row();
    }

    fn idle_at(&self, counter: &Counter) -> Timestamp {
        let remembered = counter.record().map_or(Timestamp::EPOCH, |record| record.forgotten_at);
        self.limit().idle_at(counter).max(remembered)
    }

    fn since(&self, counter: &Counter, base: &Counter, now: Timestamp) -> Counter {
        let mut since = self.limit().since(counter.plain(), base.plain(), now);
        since.set_record(counter.record().copied().filter(|record| Some(record) != base.record()));
        since
    }

    /// The stricter record stays: what both have in common would count twice otherwise.
    fn absorb(&self, counter: &mut Counter, other: &Counter, now: Timestamp) {
        self.limit().absorb(counter, other.plain(), now);
        if let Some(other) = other.record().filter(|record| now < record.forgotten_at) {
            let record = counter.record().map_or(*other, |record| record.and(other));
            counter.set_record(Some(record));
        }
    }

    fn clamp_ahead(&self, counter: &mut Counter, at: Timestamp, now: Timestamp) {
        self.limit().clamp_ahead(counter, at, now);
        if let Some(record) = counter.record().copied() {
            counter.set_record(Some(record.clamped(self.penalty(), at, now)));
        }
    }

    fn lighten(&self, counter: &mut Counter, held: &HeldCharge, units: u128, now: Timestamp) {
        self.limit().lighten_by(counter, held, units, now);
    }

    fn converted(&self, units: u128, before: &Self) -> u128 {
        self.limit().converted(units, before.limit())
    }

    fn period(&self) -> Option<u64> {
        self.limit().period_nanos()
    }

    forward! {
        limit:
        fn charge_at(counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp);
        fn position(counter: &Counter, now: Timestamp) -> ChargePosition;
        fn weight(counter: &Counter, position: ChargePosition, now: Timestamp) -> u128;
        fn units(hits: u64) -> u128;
        fn allowance() -> u64;
        fn excess() -> Excess;
        fn window() -> Option<&Window>;
        fn hits_per_period() -> u64;
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        self.both.limit.change(&number, &excess);
    }

    fn refund_with_held(
        &self,
        counter: &mut Counter,
        held: &[HeldCharge],
        hits: u64,
        now: Timestamp,
    ) -> Decision {
        let decision = self.limit().refund_beside(counter, held, hits, now);
        let is_penalized = counter.record().is_some_and(|record| now < record.until);
        if is_penalized { Decision { remaining: 0, ..decision } } else { decision }
    }
}
