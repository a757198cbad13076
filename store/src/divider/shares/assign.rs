//! Assigns shares as they should be, as far as the rate and the burst are free.

use std::time::Duration;

use tollgate_counter::{
    algorithm::HitRate,
    time::{SECOND, Timestamp},
};

use crate::divider::shares::{
    SHARE_MAX, Shares,
    subscriber::{HYSTERESIS_DIVISOR, SETTLE, ShareSubscriber},
};

/// The most of what is claimed that stays unused: one of so many parts.
const UNUSED_DIVISOR: u64 = 50;
/// A share waits for so much of its burst, if that is not there: what its rate brings in a second, divided by this.
pub(super) const BEGIN_DIVISOR: u64 = 10;
/// A burst grows by more than this part of what it is to be: one of so many.
const GROWTH_DIVISOR: u64 = 10;

/// What has become of shares that should change.
#[derive(Clone, Copy)]
pub(super) struct AssignedShares {
    // Whether a subscriber has another share.
    pub(super) has_changed: bool,
    // Whether all shares are as they should be.
    pub(super) is_complete: bool,
}

impl Shares {
    /// Applies smaller shares at once, and larger ones as far as the rate and the burst are free.
    pub(super) fn assign(
        &mut self,
        active: &[usize],
        targets: &[u64],
        free: &mut u64,
        now: Timestamp,
    ) -> AssignedShares {
        let (rate, paid_until_now) = (self.rate, self.paid.hits);
        let granted =
            |shares: &Self, index: usize| shares.each.states()[active[index]].next_share().per_second;
        let next = self.next_shares(active, targets);
        let mut has_changed = false;
        let mut is_complete = true;
        let is_less = |shares: &Self, index: usize| next[index] < granted(shares, index);
        let (mut order, mut more): (Vec<usize>, Vec<usize>) =
            (0..active.len()).partition(|index| is_less(self, *index));
        more.sort_by_key(|index| granted(self, *index));
        order.extend(more);
        let mut held = self.held();
        for index in order {
            let subscriber = &mut self.each.states_mut()[active[index]];
            let before = subscriber.held;
            let others = HitRate {
                per_second: held.per_second.saturating_sub(before.per_second),
                burst: held.burst.saturating_sub(before.burst),
            };
            // What an earlier divider may have granted is no room for others.
            let room = rate.burst.saturating_sub(others.burst).saturating_sub(self.unknown);
            let share = next[index].min(rate.per_second.saturating_sub(others.per_second));
            is_complete &= share == next[index];
            if subscriber.pending.is_some_and(|pending| share < pending.share.per_second) {
                subscriber.cancel(now);
            }
            let granted = subscriber.granted;
            if subscriber.pending.is_some() {
                is_complete = false;
            } else if share < granted.per_second {
                let burst = burst_of(share, rate).max(1).min(granted.burst);
                let burst = if share == 0 { 0 } else { burst };
                subscriber.grant(HitRate { per_second: share, burst }, paid_until_now, now);
                has_changed = true;
            } else if share > granted.per_second {
                if granted.per_second == 0 {
                    // What it had before may have been used, and the bucket begins full.
                    self.spent = self.spent.saturating_add(std::mem::take(&mut subscriber.held.burst));
                }
                let least = least_burst(share, rate, room);
                let most = burst_of(share, rate).min(room).max(least);
                let wanted = if subscriber.is_refusing && granted.burst > 0 { least } else { most };
                // What it had a moment ago is still its own.
                let paid = subscriber.held.burst;
                let burst = if subscriber.may_be_another(now) {
                    granted.burst
                } else {
                    wanted.min(paid.saturating_add(*free)).max(least).max(granted.burst)
                };
                let larger = HitRate { per_second: share, burst };
                let growth = burst.saturating_sub(paid);
                let missing = growth.saturating_sub(*free);
                *free -= growth - missing;
                if missing == 0 {
                    subscriber.grant(larger, paid_until_now, now);
                    has_changed = true;
                } else {
                    // The share brings what is missing, which is then no debt of the counter.
                    self.returned = self.returned.saturating_add(missing);
                    subscriber.keep(larger, now.after(time_for(missing, share - granted.per_second)));
                    is_complete = false;
                }
            } else {
                let growth = growth(subscriber, rate, room, *free);
                let missing = growth.saturating_sub(*free);
                *free -= growth - missing;
                let larger = HitRate { burst: granted.burst + growth, ..granted };
                subscriber.held.burst += growth;
                if missing > 0 {
                    // A smaller share for a moment brings what is missing.
                    let part = (share / BEGIN_DIVISOR).max(1);
                    let smaller = HitRate { per_second: share - part, ..granted };
                    self.returned = self.returned.saturating_add(missing);
                    subscriber.grant(smaller, paid_until_now, now);
                    subscriber.keep(larger, now.after(SETTLE + time_for(missing, part)));
                    is_complete = false;
                } else if growth > 0 {
                    subscriber.grant(larger, paid_until_now, now);
                }
                has_changed |= growth > 0;
            }
            held = others.plus(subscriber.held);
        }
        AssignedShares { has_changed, is_complete }
    }

    /// The targets, without changes that are too small.
    fn next_shares(&self, active: &[usize], targets: &[u64]) -> Vec<u64> {
        let is_close = |subscriber: &ShareSubscriber, target: u64| {
            let granted = subscriber.next_share().per_second;
            let floor = subscriber.terms.floor.min(target);
            granted > 0 && granted >= floor && granted.abs_diff(target) <= granted / HYSTERESIS_DIVISOR
        };
        let retained: Vec<u64> = active
            .iter()
            .zip(targets)
            .map(|(index, target)| {
                let subscriber = &self.each.states()[*index];
                if is_close(subscriber, *target) { subscriber.next_share().per_second } else { *target }
            })
            .collect();
        // A share that is a little too large is retained only where that takes nothing from others, and one that is a
        // little too small only where little stays unused.
        let sum = |shares: &[u64]| shares.iter().fold(0_u64, |sum, share| sum.saturating_add(*share));
        let all = sum(&retained);
        let claimed = sum(targets);
        if all > self.rate.per_second {
            retained.iter().zip(targets).map(|(retained, target)| *retained.min(target)).collect()
        } else if all < claimed - claimed / UNUSED_DIVISOR {
            retained.iter().zip(targets).map(|(retained, target)| *retained.max(target)).collect()
        } else {
            retained
        }
    }
}

/// The hits by which the burst of a share grows without a change of its rate. The bucket of a client that refuses hits is
/// empty and gains nothing by more than the least burst, with which it uses its rate. So much it gets even if it is not
/// free.
pub(super) fn growth(subscriber: &ShareSubscriber, rate: HitRate, room: u64, free: u64) -> u64 {
    let granted = subscriber.granted;
    let held = subscriber.held.burst;
    if granted.per_second == 0 || subscriber.pending.is_some() {
        return 0;
    }
    if subscriber.is_refusing {
        // What it has held before may be that of another client.
        return least_burst(granted.per_second, rate, room)
            .saturating_sub(granted.burst)
            .min(room.saturating_sub(held));
    }
    if granted.burst < held {
        return 0;
    }
    let wanted = burst_of(granted.per_second, rate).min(room);
    let growth = wanted.saturating_sub(held).min(free);
    if growth > wanted / GROWTH_DIVISOR { growth } else { 0 }
}

/// The time in which a rate of so many hits a second brings `hits`.
fn time_for(hits: u64, per_second: u64) -> Duration {
    let nanos = (u128::from(hits) * u128::from(SECOND)).div_ceil(u128::from(per_second.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The burst with which a client uses its share. Of a smaller bucket, a part of the rate is lost between two requests.
fn least_burst(share: u64, rate: HitRate, room: u64) -> u64 {
    (share / BEGIN_DIVISOR).clamp(1, burst_of(share, rate).min(room).max(1))
}

/// The part of the burst for a share of the rate.
fn burst_of(share: u64, rate: HitRate) -> u64 {
    let part = u128::from(rate.burst) * u128::from(share) / u128::from(rate.per_second.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(SHARE_MAX)
}
