//! Decides a single check: the common case of `apply`, without the steps that only several checks need.

use crate::{
    algorithm::Decision,
    store::{Check, NotLocal, memory::Memory, table::Table},
    time::Timestamp,
};

/// The decision of a single check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleDecision {
    /// The decision. It is never taken back.
    pub decision: Decision<()>,
    /// The hits that were charged; 0 if there was no memory for the counter.
    pub charged: u64,
}

impl Memory {
    /// The same as [`Memory::apply`] for one check. `None`, without any effect, if the slot has leases or pending
    /// usage: use [`Memory::apply`] then.
    // `inline(always)`: single hot caller.
    #[inline(always)]
    pub fn apply_single(
        &self,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<Option<SingleDecision>, NotLocal> {
        let Check { key, limit, operation, .. } = *check;
        let slot = self.slot(key);
        let restrictions = self.restrictions.flags();
        if restrictions.is_suspended() {
            return Err(NotLocal::Slot(slot));
        }
        let mut table = self.table(slot);
        let ownership = self.ownerships.as_ref().map(|ownerships| (ownerships, ownerships.lock(slot)));
        if let Some((_, ownership)) = &ownership {
            if !ownership.is_owned() {
                return Err(NotLocal::Slot(slot));
            }
            if ownership.side_data().is_some() {
                return Ok(None);
            }
        }
        let packed = if restrictions.are_clear() { table.get_mut(key) } else { None };
        let in_place = packed.and_then(|packed| packed.decide_in_place(limit, now, operation));
        let (decision, stored) = match in_place {
            Some(decision) => (decision, true),
            None => self.touch_single(&mut table, check, now),
        };
        let passes = decision.verdict.passes();
        if let Some((ownerships, mut ownership)) = ownership
            && limit.is_changed_by(operation, passes)
        {
            ownerships.record_change(slot, &mut ownership, key, table.len());
        }
        Ok(Some(SingleDecision {
            decision,
            charged: if stored { limit.charged(operation, passes) } else { 0 },
        }))
    }

    // `inline(never)`: new counters and new windows are rare and need a larger stack frame.
    #[inline(never)]
    fn touch_single(&self, table: &mut Table, check: &Check<'_>, now: Timestamp) -> (Decision<()>, bool) {
        let Check { key, limit, operation, .. } = *check;
        let (decision, stored) =
            self.touch(table, key, limit, now, |counter| limit.decide(counter, now, operation));
        (decision.without_receipt(), stored)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{Classic, Excess, FixedWindow, Limit, Operation, Window},
        store::{
            OnFull, OnRefusal, SlotData,
            memory::tests::{BYTES, NOW, bucket, key, window},
        },
        time::SECOND,
    };

    /// Two slots, of which the first is owned.
    fn memory(shared: bool) -> Memory {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2);
        if !shared {
            return memory;
        }
        let memory = memory.shared();
        memory.track_changes();
        memory.each_slot().take(1).for_each(|slot| memory.acquire(slot, SlotData::default(), NOW));
        memory
    }

    fn limits() -> [Limit; 4] {
        let turns = Window::of_nanos(2 * SECOND).unwrap();
        let debt = FixedWindow { limit: 5, window: turns.clone(), excess: Excess::Overdraft(3) };
        let classic = Classic { limit: 5, window: turns };
        [Limit::Classic(classic), window(5), Limit::FixedWindow(debt), bucket(5)]
    }

    /// The same check through `apply`.
    fn apply_as_set(memory: &Memory, check: Check<'_>, now: Timestamp) -> Result<SingleDecision, NotLocal> {
        let decisions = memory.apply(&[check], now, |_| false)?;
        Ok(SingleDecision { decision: decisions[0].without_receipt(), charged: decisions.charged()[0] })
    }

    fn any_operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            Just(Operation::Peek),
            (0..4_u64).prop_map(Operation::Charge),
            (0..4_u64).prop_map(Operation::Refund),
            Just(Operation::Charge(u64::from(u32::MAX) + 7)),
        ]
    }

    proptest! {
        #[test]
        fn single_check_equals_check_set_of_one(
            shared: bool,
            steps in prop::collection::vec((0..6_usize, 0..4_usize, any_operation(), 0..2 * SECOND, 0..12_u8), 1..60),
        ) {
            let (single, set, limits) = (memory(shared), memory(shared), limits());
            let mut now = NOW;
            for (name, limit, operation, pass, other) in steps {
                now = now.plus(pass);
                // All checks of a key use one kind of counter.
                let (key, limit) = (key(&format!("{name} {limit}")), &limits[limit]);
                for memory in [&single, &set] {
                    match other {
                        0 => assert!(memory.lend(key, limit, 1, now).is_none_or(|left| left.verdict.passes())),
                        1 => assert_eq!(memory.reclaim(key, 1), shared && memory.owns(memory.slot(key))),
                        _nothing => {}
                    }
                }
                let check = Check { key, limit, operation, on_refusal: OnRefusal::Keep };
                let answer = match single.apply_single(&check, now) {
                    Ok(Some(answer)) => Ok(answer),
                    Ok(None) => apply_as_set(&single, check, now),
                    Err(not_local) => Err(not_local),
                };
                prop_assert_eq!(answer, apply_as_set(&set, check, now));
            }
            prop_assert_eq!(single.stats(), set.stats());
            prop_assert_eq!(single.changed_slots(), set.changed_slots());
            for slot in single.each_slot() {
                prop_assert_eq!(single.version_seq(slot), set.version_seq(slot));
                prop_assert_eq!(single.whole(slot).data, set.whole(slot).data);
            }
        }
    }
}
