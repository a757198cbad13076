//! Deeds to one counter that is held here, beside asking it: what another replica's caller wants done.

use crate::{
    algorithm::{Ask, Counter, Decision, Limit, Receipt},
    descriptor::Key,
    store::memory::{Memory, by_hand::filled},
    time::Timestamp,
};

impl Memory {
    /// Takes back what still counts of one charge, and looks.
    pub fn undo(&self, key: Key, limit: &Limit, receipt: Receipt, now: Timestamp) -> Decision {
        self.done_to(key, limit, now, |counter| limit.undo(counter, receipt, now))
    }

    /// Puts `hits` that are charged now in place of what was counted, beyond the limit too where it can hold a debt,
    /// and looks.
    pub fn set(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Decision {
        self.done_to(key, limit, now, |counter| *counter = filled(limit, hits, now))
    }

    fn done_to(&self, key: Key, limit: &Limit, now: Timestamp, deed: impl FnOnce(&mut Counter)) -> Decision {
        let mut look = None;
        self.with_counter(key, limit, now, |counter| {
            deed(counter);
            look = Some(limit.decide(counter, now, Ask::Look));
        });
        look.unwrap_or_else(|| limit.decide(&mut limit.fresh(), now, Ask::Look))
    }
}
