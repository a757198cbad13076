//! One check by itself, the usual call: the straight line through what `apply` does to several.

use crate::{
    algorithm::Decision,
    store::{Check, Elsewhere, memory::Memory, table::Table},
    time::Timestamp,
};

/// The answer to a check that was alone in its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alone {
    /// What was decided. Nobody takes it back.
    pub decision: Decision<()>,
    /// The hits that were charged to its counter; 0 where there was no memory for it.
    pub charged: u64,
}

impl Memory {
    /// What [`Memory::apply`] answers to one check. `None` where something of its slot is lent or waits to be absorbed:
    /// then nothing has happened, and it is for [`Memory::apply`].
    // Always: there is one caller that counts, and what it knows of the check need not be looked at again.
    #[inline(always)]
    pub fn apply_alone(&self, check: &Check<'_>, now: Timestamp) -> Result<Option<Alone>, Elsewhere> {
        let Check { key, limit, ask, .. } = *check;
        let slot = self.slot(key);
        let caution = self.caution.flags();
        if caution.distrust() {
            return Err(Elsewhere::Slot(slot));
        }
        let mut table = self.table(slot);
        let tenure = self.tenures.as_ref().map(|tenures| (tenures, tenures.lock(slot)));
        if let Some((_, tenure)) = &tenure {
            if !tenure.is_held() {
                return Err(Elsewhere::Slot(slot));
            }
            if tenure.beside().is_some() {
                return Ok(None);
            }
        }
        let cell = if caution.are_clear() { table.get_mut(key) } else { None };
        let in_place = cell.and_then(|cell| cell.ask(limit, now, ask));
        let (decision, kept) = match in_place {
            Some(decision) => (decision, true),
            None => self.touch_alone(&mut table, check, now),
        };
        let passes = decision.verdict.passes();
        if let Some((tenures, mut tenure)) = tenure
            && limit.is_changed_by(ask, passes)
        {
            tenures.note(slot, &mut tenure, key, table.len());
        }
        Ok(Some(Alone { decision, charged: if kept { limit.charged(ask, passes) } else { 0 } }))
    }

    // Never: a new counter, or one whose window has turned, is the rarer case, and needs much more room.
    #[inline(never)]
    fn touch_alone(&self, table: &mut Table, check: &Check<'_>, now: Timestamp) -> (Decision<()>, bool) {
        let Check { key, limit, ask, .. } = *check;
        let (decision, kept) = self.touch(table, key, limit, now, |counter| limit.decide(counter, now, ask));
        (decision.without_receipt(), kept)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{Ask, Classic, Excess, FixedWindow, Limit, Window},
        store::{
            Contents, OnFull, OnRefusal,
            memory::tests::{BYTES, NOW, bucket, key, window},
        },
        time::SECOND,
    };

    /// Two slots, of which one is held.
    fn memory(shared: bool) -> Memory {
        let memory = Memory::new(BYTES, OnFull::Deny).with_slots(2);
        if !shared {
            return memory;
        }
        let memory = memory.shared();
        memory.track_changes();
        memory.each_slot().take(1).for_each(|slot| memory.hold(slot, Contents::default(), NOW));
        memory
    }

    fn limits() -> [Limit; 4] {
        let turns = Window::of_nanos(2 * SECOND).unwrap();
        let debt = FixedWindow { limit: 5, window: turns.clone(), excess: Excess::Overdraft(3) };
        let classic = Classic { limit: 5, window: turns };
        [Limit::Classic(classic), window(5), Limit::FixedWindow(debt), bucket(5)]
    }

    /// The same by the other path.
    fn among_others(memory: &Memory, check: Check<'_>, now: Timestamp) -> Result<Alone, Elsewhere> {
        let decisions = memory.apply(&[check], now, |_| false)?;
        Ok(Alone { decision: decisions[0].without_receipt(), charged: decisions.charged()[0] })
    }

    fn any_ask() -> impl Strategy<Value = Ask> {
        prop_oneof![
            Just(Ask::Look),
            (0..4_u64).prop_map(Ask::Charge),
            (0..4_u64).prop_map(Ask::Refund),
            Just(Ask::Charge(u64::from(u32::MAX) + 7)),
        ]
    }

    proptest! {
        #[test]
        fn a_check_by_itself_is_answered_and_leaves_what_it_would_among_others(
            shared: bool,
            steps in prop::collection::vec((0..6_usize, 0..4_usize, any_ask(), 0..2 * SECOND, 0..12_u8), 1..60),
        ) {
            let (alone, together, limits) = (memory(shared), memory(shared), limits());
            let mut now = NOW;
            for (name, limit, ask, pass, other) in steps {
                now = now.plus(pass);
                // A key has one kind of counter.
                let (key, limit) = (key(&format!("{name} {limit}")), &limits[limit]);
                for memory in [&alone, &together] {
                    match other {
                        0 => assert!(memory.lend(key, limit, 1, now).is_none_or(|left| left.verdict.passes())),
                        1 => assert_eq!(memory.unlend(key, 1), shared && memory.holds(memory.slot(key))),
                        _nothing => {}
                    }
                }
                let check = Check { key, limit, ask, on_refusal: OnRefusal::Keep };
                let answer = match alone.apply_alone(&check, now) {
                    Ok(Some(answer)) => Ok(answer),
                    Ok(None) => among_others(&alone, check, now),
                    Err(elsewhere) => Err(elsewhere),
                };
                prop_assert_eq!(answer, among_others(&together, check, now));
            }
            prop_assert_eq!(alone.figures(), together.figures());
            prop_assert_eq!(alone.changed_slots(), together.changed_slots());
            for slot in alone.each_slot() {
                prop_assert_eq!(alone.version_seq(slot), together.version_seq(slot));
                prop_assert_eq!(alone.whole(slot).contents, together.whole(slot).contents);
            }
        }
    }
}
