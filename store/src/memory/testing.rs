//! Operations on several counters, for tests.

use smallvec::SmallVec;
use tollgate_counter::time::Timestamp;

use crate::{
    check::Checks,
    memory::{Memory, NotLocal, holds::each_hold_id},
    operation::{CounterOperation, HoldOutcome, UnknownId},
    reservation::{HoldId, Settled},
};

impl Memory {
    /// What `read` returns for the side data of `key`, if there is any.
    #[cfg(test)]
    pub(crate) fn with_side_data<R>(
        &self,
        slot: crate::Slot,
        key: tollgate_counter::descriptor::Key,
        read: impl FnOnce(Option<&crate::side_data::SideData>) -> R,
    ) -> R {
        read(self.tables.lock(slot).side_data(key))
    }

    /// Settles the holds of all checks, each at the hits of its charge.
    pub fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        unknown: UnknownId,
        now: Timestamp,
    ) -> Result<SmallVec<[Settled; 2]>, NotLocal> {
        let mut each = SmallVec::new();
        for (check, id) in checks.iter().zip(each_hold_id(checks, id)) {
            let settle = CounterOperation::Settle { id, actual: check.hits(), unknown };
            if let HoldOutcome::Settled(settled) = self.operate(check.key, check.limit, &settle, now)?.hold {
                each.push(*settled);
            }
        }
        Ok(each)
    }

    /// Takes back the holds of all checks that one attempt has made, and forgets them.
    pub fn withdraw(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        attempt: u64,
        now: Timestamp,
    ) -> Result<(), NotLocal> {
        checks.iter().zip(each_hold_id(checks, id)).try_for_each(|(check, id)| {
            let withdraw = CounterOperation::Withdraw { id, attempt };
            self.operate(check.key, check.limit, &withdraw, now).map(drop)
        })
    }
}
