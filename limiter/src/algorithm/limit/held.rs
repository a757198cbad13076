//! Held charges of any limit: see [`Held`].

use std::any::Any;

use crate::{
    algorithm::{Algorithm, Counter, Decision, Held, Limit, Operation, Place, Variant, each_algorithm, own},
    time::Timestamp,
};

impl Limit {
    /// The charge of `hits` that has made `after` of `before` at `now`.
    pub(crate) fn held(&self, before: &Counter, after: &Counter, hits: u64, now: Timestamp) -> Held {
        each_algorithm!(self, limit => {
            let (before, after) = (Variant::of(before), Variant::of(after));
            let place = after.map_or(Place::Sum, |after| limit.place(after, now));
            let weight = |counter: Option<&_>| counter.map_or(0, |counter| limit.weight(counter, place, now));
            let floor = weight(after);
            // A debt may be cut to less than the charge, and an earlier charge may be in another place.
            let taken = floor.saturating_sub(weight(before)).min(limit.units(hits));
            Held { place, taken, floor }
        })
    }

    /// Records what `counter` weighs now. Call this before and after each change of the counter.
    pub(crate) fn observe(&self, held: &mut Held, counter: &Counter, now: Timestamp) {
        let weight = each_algorithm!(self, limit => {
            Variant::of(counter).map_or(0, |counter| limit.weight(counter, held.place, now))
        });
        held.floor = held.floor.min(weight);
    }

    /// Takes back all but `kept` hits of a held charge, as far as they still count. Returns the units taken back.
    pub(crate) fn lighten(&self, counter: &mut Counter, held: &mut Held, kept: u64, now: Timestamp) -> u128 {
        self.observe(held, counter, now);
        each_algorithm!(self, limit => {
            let units = held.taken.saturating_sub(limit.units(kept)).min(held.floor);
            if units > 0 {
                limit.lighten(own(counter), held, units, now);
            }
            units
        })
    }

    /// Refunds `hits`: those of calls before those that are `held`.
    pub(crate) fn refund_beside(
        &self,
        counter: &mut Counter,
        held: &[Held],
        hits: u64,
        now: Timestamp,
    ) -> Decision {
        each_algorithm!(self, limit => {
            limit.refund_beside(own(counter), held, hits, now).keep_receipt(|receipt| Some(receipt.into()))
        })
    }

    /// Converts a held charge of the same counter under another limit.
    pub(crate) fn convert(&self, held: &mut Held, before: &Self) {
        let before: &dyn Any = each_algorithm!(before, limit => limit);
        each_algorithm!(self, limit => {
            // Limits of different algorithms that share a counter count in hits.
            if let Some(before) = before.downcast_ref() {
                held.taken = limit.converted(held.taken, before);
                held.floor = limit.converted(held.floor, before);
            }
        });
    }

    /// Charges `hits` that were used already: as a debt if the limit allows one, otherwise as far as the limit goes.
    /// Returns the hits that were charged, and the decision on them.
    pub(crate) fn charge_used(&self, counter: &mut Counter, hits: u64, now: Timestamp) -> (u64, Decision) {
        let mut charged = counter.clone();
        let decision = self.decide(&mut charged, now, Operation::Charge(hits));
        if decision.verdict.passes() {
            *counter = charged;
            return (hits, decision);
        }
        let left = self.decide(counter, now, Operation::Peek).remaining.min(hits);
        let decision = self.decide(counter, now, Operation::Charge(left));
        (left, decision)
    }
}
