//! Deeds to one counter that is held here, beside asking it: what another replica's caller wants done.

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt},
    descriptor::Key,
    store::memory::{Memory, admin::charged_counter},
    time::Timestamp,
};

impl Memory {
    /// Takes back what still counts of one charge, and looks.
    pub fn undo(&self, key: Key, limit: &Limit, receipt: Receipt, now: Timestamp) -> Decision {
        self.edit(key, limit, now, |counter| limit.undo(counter, receipt, now))
    }

    /// Puts `hits` that are charged now in place of what was counted, beyond the limit too where it can hold a debt,
    /// and looks.
    pub fn set(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Decision {
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
