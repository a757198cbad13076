//! Held charges of any limit: see [`HeldCharge`].

use std::any::Any;

use crate::{
    algorithm::{
        Algorithm, Decision, Operation,
        counter::{Counter, Variant, own},
        each_algorithm,
        held::{ChargePosition, HeldCharge},
        limit::Limit,
    },
    time::timestamp::Timestamp,
};

impl Limit {
    /// The charge of `hits` that has made `after` of `before` at `now`.
    pub fn held(&self, before: &Counter, after: &Counter, hits: u64, now: Timestamp) -> HeldCharge {
        let position = self.position(after, now);
        let floor = self.weight(after, position, now);
        // A debt may be cut to less than the charge, and an earlier charge may be in another position.
        let taken = floor.saturating_sub(self.weight(before, position, now)).min(self.units(hits));
        HeldCharge { position, taken, floor }
    }

    /// Records what `counter` weighs now. Call this before and after each change of the counter.
    pub fn observe(&self, held: &mut HeldCharge, counter: &Counter, now: Timestamp) {
        held.floor = held.floor.min(self.weight(counter, held.position, now));
    }

    /// Takes back all but `retained` hits of a held charge, as far as they still count. Returns the units taken back.
    pub fn lighten(
        &self,
        counter: &mut Counter,
        held: &mut HeldCharge,
        retained: u64,
        now: Timestamp,
    ) -> u128 {
        self.observe(held, counter, now);
        let units = held.taken.saturating_sub(self.units(retained)).min(held.floor);
        if units > 0 {
            self.lighten_by(counter, held, units, now);
        }
        units
    }

    /// Lowers the weight of what is in the position of `held` by `units`, at most its floor.
    pub(super) fn lighten_by(&self, counter: &mut Counter, held: &HeldCharge, units: u128, now: Timestamp) {
        each_algorithm!(self, limit => limit.lighten(own(counter), held, units, now));
    }

    /// Where a charge at `now` is in `counter`, to which it has just been charged.
    pub(super) fn position(&self, counter: &Counter, now: Timestamp) -> ChargePosition {
        each_algorithm!(self, limit => Variant::from_enum(counter)
            .map_or(ChargePosition::Sum, |counter| limit.position(counter, now)))
    }

    /// What everything in `position` weighs at `now`, in units.
    pub(super) fn weight(&self, counter: &Counter, position: ChargePosition, now: Timestamp) -> u128 {
        each_algorithm!(self, limit => Variant::from_enum(counter)
            .map_or(0, |counter| limit.weight(counter, position, now)))
    }

    /// The weight of `hits`, in units.
    pub(super) fn units(&self, hits: u64) -> u128 {
        each_algorithm!(self, limit => limit.units(hits))
    }

    /// Refunds `hits`: those of calls before those that are `held`.
    pub fn refund_beside(
        &self,
        counter: &mut Counter,
        held: &[HeldCharge],
        hits: u64,
        now: Timestamp,
    ) -> Decision {
        each_algorithm!(self, limit => {
            limit.refund_with_held(own(counter), held, hits, now).keep_receipt(|receipt| Some(receipt.into_enum()))
        })
    }

    /// Converts a held charge of the same counter under another limit.
    pub fn convert(&self, held: &mut HeldCharge, before: &Self) {
        let limit = self.plain();
        let before = before.plain();
        held.taken = limit.converted(held.taken, before);
        held.floor = limit.converted(held.floor, before);
    }

    /// `units` that were charged under the limit `before`, under this one.
    pub(super) fn converted(&self, units: u128, before: &Self) -> u128 {
        let before: &dyn Any = each_algorithm!(before, limit => limit);
        // Limits of different algorithms that share a counter count in hits.
        each_algorithm!(self, limit => {
            before.downcast_ref().map_or(units, |before| limit.converted(units, before))
        })
    }

    /// Charges `hits` that were used already: as a debt if the limit allows one, otherwise as far as the limit goes.
    /// A penalty neither prevents it nor counts it. Returns the hits that were charged, and the decision on them.
    pub fn charge_used(&self, counter: &mut Counter, hits: u64, now: Timestamp) -> (u64, Decision) {
        let limit = self.plain();
        let mut charged = counter.clone();
        let decision = limit.decide(&mut charged, now, Operation::Charge(hits));
        if decision.verdict.passes() {
            *counter = charged;
            return (hits, decision);
        }
        let left = limit.decide(counter, now, Operation::Peek).remaining.min(hits);
        let decision = limit.decide(counter, now, Operation::Charge(left));
        (left, decision)
    }
}
