//! Changes to one owned counter on behalf of another replica.

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt},
    descriptor::Key,
    store::memory::{Memory, admin::charged_counter},
    time::Timestamp,
};

impl Memory {
    /// Takes back what still counts of one charge, then peeks.
    pub fn undo(&self, key: Key, limit: &Limit, receipt: Receipt, now: Timestamp) -> Decision {
        self.edit(key, limit, now, |counter| limit.undo(counter, receipt, now))
    }

    /// Replaces the count by `hits` charged now, above the limit if the algorithm can hold a debt, then peeks. Drops
    /// the holds.
    pub fn set(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Decision {
        self.table(self.slot(key)).drop_holds(key, &self.resources);
        self.edit(key, limit, now, |counter| *counter = charged_counter(limit, hits, now))
    }

    fn edit(&self, key: Key, limit: &Limit, now: Timestamp, action: impl FnOnce(&mut Counter)) -> Decision {
        let mut peek = None;
        self.with_counter(key, limit, now, |counter| {
            action(counter);
            peek = Some(limit.decide(counter, now, Operation::Peek));
        });
        peek.unwrap_or_else(|| limit.decide(&mut limit.fresh(), now, Operation::Peek))
    }
}
