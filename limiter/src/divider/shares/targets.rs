//! The shares that the subscribers of a rate should have.

use crate::{
    divider::{
        assignment::HEADROOM,
        max_min::{Claim, divide, whole},
        shares::{ROTATION, SHARE_MAX, Shares, subscriber::Subscriber},
    },
    time::Timestamp,
};

/// The part of the rate that subscribers get at least, together, if they ask for it: one of so many.
const FLOOR_DIVISOR: f64 = 20.0;

impl Shares {
    /// The shares that these subscribers should have.
    pub(super) fn targets(&self, active: &[usize], now: Timestamp) -> Vec<u64> {
        let (rate, floor) = (self.rate.per_second as f64, self.floor(active.len()));
        let callers = self.callers.per_second();
        let needed: f64 =
            callers * HEADROOM + active.iter().map(|index| self.each.states()[*index].needs()).sum::<f64>();
        let idle = active.iter().filter(|index| self.each.states()[**index].is_idle()).count();
        let claim = |subscriber: &Subscriber| {
            let (demand, given) = (subscriber.demand, subscriber.given.per_second as f64);
            match demand.is_measured() {
                true if demand.per_second() > 0.0 => (HEADROOM * demand.per_second()).max(floor),
                // All that ask for nothing have a tenth of the rate at most.
                true => floor.min(rate / 10.0 / idle as f64),
                false if given > 0.0 => given,
                false => floor.max((rate - needed) / 2.0),
            }
        };
        // Weights divide what is left after one hit a second for each that asks, or after half of the rate.
        let asking = active.len() - idle + usize::from(callers > 0.0);
        let least = (rate / 2.0 / asking.max(1) as f64).min(1.0);
        let mut claims: Vec<Claim> = active
            .iter()
            .map(|index| {
                let subscriber = &self.each.states()[*index];
                let (own, least) = (subscriber.floor(), if subscriber.is_idle() { 0.0 } else { least });
                let weight = f64::from(subscriber.terms.weight.get());
                Claim { hits: claim(subscriber).max(own), weight, floor: own.max(least) }
            })
            .collect();
        if callers > 0.0 {
            claims.push(Claim { hits: HEADROOM * callers, weight: 1.0, floor: least });
        }
        let mut parts = divide(rate, &claims);
        // What remains is for more of the same.
        let rest = (rate - parts.iter().sum::<f64>()).max(0.0);
        let asked = |index: &usize| self.each.states()[*index].demand.per_second();
        let all = callers + active.iter().map(asked).sum::<f64>();
        if all > 0.0 {
            for (index, (part, claim)) in active.iter().zip(parts.iter_mut().zip(&mut claims)) {
                let more = rest * asked(index) / all;
                *part += more;
                claim.hits += more;
            }
        }
        if callers > 0.0 {
            parts.pop();
            claims.pop();
        }
        let mut targets = whole(self.rate.per_second, &parts, &claims, &self.order(active, &parts, now));
        targets.iter_mut().for_each(|target| *target = (*target).min(SHARE_MAX));
        targets
    }

    /// Confirms the rates that pass already, and adds at most the floor to each.
    pub(super) fn learn(&self, active: &[usize], targets: &mut [u64]) {
        let floor = self.floor(active.len());
        for (index, target) in active.iter().zip(targets) {
            let subscriber = &self.each.states()[*index];
            let confirmed = subscriber.allowed.per_second().max(floor).ceil() as u64;
            *target = if subscriber.demand.is_measured() { (*target).min(confirmed) } else { 0 };
        }
    }

    /// The order in which what is left over of fractions is given: first to those that would have nothing, by turns.
    fn order(&self, active: &[usize], parts: &[f64], now: Timestamp) -> Vec<usize> {
        let rank = |(index, part): (&usize, &f64)| {
            let subscriber = &self.each.states()[*index];
            let keeps = subscriber.given.per_second > 0 && now < subscriber.since.after(ROTATION);
            ((*part >= 1.0, subscriber.is_idle(), !keeps, subscriber.since), part.fract())
        };
        let ranks: Vec<_> = active.iter().zip(parts).map(rank).collect();
        let mut order: Vec<usize> = (0..active.len()).collect();
        order.sort_by(|one, other| {
            let ((one, fraction), (other, other_fraction)) = (&ranks[*one], &ranks[*other]);
            one.cmp(other).then(other_fraction.total_cmp(fraction))
        });
        order
    }

    /// What a subscriber that asks for it gets at least.
    fn floor(&self, number: usize) -> f64 {
        (self.rate.per_second as f64 / FLOOR_DIVISOR / number.max(1) as f64).max(1.0)
    }
}
