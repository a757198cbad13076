//! What an operation has added to the memory of a counter is taken back if there is no room for it.

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit},
    packed_counter::Now,
};

use crate::held_counter::{HeldCounter, peek};

/// What is taken back of an operation without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    /// Nothing: the counter cannot do without what it has grown by.
    Nothing,
    /// The record of a refusal, which the decision no longer depends on.
    Record,
    /// The hits of a charge.
    Charge,
}

impl HeldCounter {
    /// Takes back what `decision` of `limit` has added to the memory of the counter, and decides as without it.
    pub(crate) fn take_growth_back(
        &mut self,
        limit: &Limit,
        now: Now,
        decision: &mut Decision,
        had_record: bool,
        decide: impl Fn(&Limit, &mut Counter) -> Decision,
    ) -> TakenBack {
        if !had_record && self.has_record() {
            self.packed = self.packed.take().map(|packed| packed.without_record());
            let limit = self.limit_without_holds(limit).plain().clone();
            *decision = Decision { receipt: None, ..decide(&limit, &mut self.counter(&limit, now)) };
            return TakenBack::Record;
        }
        let Some(receipt) = decision.receipt.take() else { return TakenBack::Nothing };
        self.update(limit, now, |limit, counter| {
            limit.undo(counter, receipt, now.now);
            peek(limit, counter, now)
        });
        if let Some(packed) = &mut self.packed {
            packed.release_spare();
        }
        TakenBack::Charge
    }
}
