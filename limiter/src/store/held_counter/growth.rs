//! What an operation has added to the memory of a counter is taken back if there is no room for it.

use crate::{
    algorithm::{Counter, Decision, Limit},
    store::{held_counter::HeldCounter, held_counter::peek, packed_counter::Now},
};

/// What is taken back of an operation without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum TakenBack {
    /// Nothing: the counter cannot do without what it has grown by.
    Nothing,
    /// The record of a refusal, which the decision no longer depends on.
    Record,
    /// The hits of a charge.
    Charge,
}

impl HeldCounter {
    /// Takes back what `decision` of `limit` has added to the memory of the counter, and decides as without it.
    pub(in crate::store) fn take_growth_back(
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
