//! The shares that the subscribers of a rate should have.

use tollgate_counter::time::Timestamp;

use crate::divider::{
    assignment::HEADROOM,
    max_min::{SubscriberClaim, divide, whole},
    shares::{SHARE_MAX, Shares, Turns, subscriber::ShareSubscriber},
};

/// The part of the rate that subscribers get at least, together, if they request it: one of so many.
const FLOOR_DIVISOR: f64 = 20.0;

impl Shares {
    /// The shares that these subscribers should have. While a part of the burst is missing, half of what is not
    /// requested brings it back.
    pub(super) fn targets(&mut self, active: &[usize], lacks_burst: bool, now: Timestamp) -> Vec<u64> {
        let rate = self.rate.per_second as f64;
        let floor = self.floor(active.len());
        let callers = self.callers.per_second();
        let needed: f64 =
            callers * HEADROOM + active.iter().map(|index| self.each.states()[*index].needs()).sum::<f64>();
        let idle = active.iter().filter(|index| self.each.states()[**index].is_idle()).count();
        let claim = |subscriber: &ShareSubscriber| {
            let demand = subscriber.demand;
            let granted = subscriber.granted.per_second as f64;
            match demand.is_measured() {
                true if demand.per_second() > 0.0 => (HEADROOM * demand.per_second()).max(floor),
                // All that ask for nothing have a tenth of the rate at most.
                true => floor.min(rate / 10.0 / idle as f64),
                false if granted > 0.0 => granted,
                false => floor.max((rate - needed) / 2.0),
            }
        };
        // Weights divide what is left after one hit a second for each with demand, or after half of the rate.
        let asking = active.len() - idle + usize::from(callers > 0.0);
        let least = (rate / 2.0 / asking.max(1) as f64).min(1.0);
        let mut claims: Vec<SubscriberClaim> = active
            .iter()
            .map(|index| {
                let subscriber = &self.each.states()[*index];
                let own = subscriber.floor();
                let least = if subscriber.is_idle() { 0.0 } else { least };
                let weight = f64::from(subscriber.terms.weight.get());
                SubscriberClaim { hits: claim(subscriber).max(own), weight, floor: own.max(least) }
            })
            .collect();
        if callers > 0.0 {
            claims.push(SubscriberClaim { hits: HEADROOM * callers, weight: 1.0, floor: least });
        }
        let mut parts = divide(rate, &claims);
        // What remains is for more of the same.
        let rest = (rate - parts.iter().sum::<f64>()).max(0.0);
        let rest = if lacks_burst { rest / 2.0 } else { rest };
        let requested = |index: &usize| self.each.states()[*index].demand.per_second();
        let all = callers + active.iter().map(requested).sum::<f64>();
        if all > 0.0 {
            for (index, (part, claim)) in active.iter().zip(parts.iter_mut().zip(&mut claims)) {
                let more = rest * requested(index) / all;
                *part += more;
                claim.hits += more;
            }
        }
        let mut targets = whole(self.rate.per_second, &parts, &claims, &self.order(active, &parts, now));
        let of_callers = targets.get(active.len()).is_some_and(|target| *target > 0);
        if of_callers != self.callers_turn.has_share {
            self.callers_turn = Turns { has_share: of_callers, since: now };
        }
        targets.truncate(active.len());
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

    /// The order in which what is left over of fractions is granted: first to those that would have nothing, by turns.
    /// The part after those of `active` is that of callers.
    fn order(&self, active: &[usize], parts: &[f64], now: Timestamp) -> Vec<usize> {
        let turns = |index: usize| {
            let subscriber = active.get(index).map(|index| &self.each.states()[*index]);
            subscriber.map_or((false, self.callers_turn), |each| (each.is_idle(), each.turns()))
        };
        let ranks: Vec<_> = (0..parts.len())
            .map(|index| {
                let (is_idle, turns) = turns(index);
                (parts[index] >= 1.0, is_idle, turns.rank(now))
            })
            .collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|one, other| {
            let fraction = |index: &usize| parts[*index].fract();
            ranks[*one].cmp(&ranks[*other]).then(fraction(other).total_cmp(&fraction(one)))
        });
        order
    }

    /// What a subscriber that requests it gets at least.
    fn floor(&self, number: usize) -> f64 {
        (self.rate.per_second as f64 / FLOOR_DIVISOR / number.max(1) as f64).max(1.0)
    }
}
