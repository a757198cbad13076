//! What may pass, and what must, with the faults that there were.

use tollgate_counter::{
    algorithm::{Limit, laws},
    time::Timestamp,
};

use crate::sim::{
    keys::{SHORT, TestKey},
    record::{Effect, Entry, Faults, NetworkCut, Record, SKEW_MAX, UNSURE_FOR},
};

/// Every instant.
const ALWAYS: (u64, u64) = (0, u64::MAX);

impl Record {
    /// The most hits of a key with a long period that may have passed.
    pub(in crate::sim) fn most(&self, key: usize, limit: &Limit, faults: Faults) -> u64 {
        let limit = limit.allowance();
        let more = self.refunded(key, ALWAYS) + self.forgotten(key, ALWAYS);
        more + match faults {
            Faults::None => limit,
            // Hits come back while a clock is ahead.
            Faults::Lead => limit + 1,
            Faults::Crashes | Faults::Late => limit + self.degraded(key, ALWAYS),
            Faults::Partition { minority, members } => {
                let (before, unnoticed) = self.around_cut(key, ALWAYS);
                before + limit + limit * minority / members + members + unnoticed
            }
        }
    }

    /// Hits of a key that passed in this time before the network was cut, and those that owners on the side without a
    /// majority let pass until they noticed the cut.
    fn around_cut(&self, key: usize, (from, to): (u64, u64)) -> (u64, u64) {
        let Some(NetworkCut { at, unnoticed_until, .. }) = &self.cut else { return (0, 0) };
        let before = self.passed_between(key, from, to.min(at.saturating_sub(1)));
        let until = unnoticed_until.get(&key).copied().unwrap_or_default().min(to);
        let unnoticed = |entry: &&Entry| {
            from <= entry.called_at && (*at..=until).contains(&entry.answered_at) && !entry.degraded
        };
        (before, self.since(key, *at).iter().filter(unnoticed).map(Entry::passed).sum())
    }

    /// The least hits of a key with a long period that must have passed once everything was spent.
    pub(in crate::sim) fn least(&self, key: usize, limit: &Limit, faults: Faults) -> u64 {
        // A classic limit counts hits that it refuses.
        if limit.is_classic() && (self.is_mixed || self.has_holds) {
            return 0;
        }
        let smallest = limit.share(self.divided_by.max(1)).allowance();
        let lead = match faults {
            // A debt may be too large by a hit for each lead that was given up.
            Faults::Lead => 1 + self.leads,
            // A debt does not shrink while it is on its way.
            Faults::Late => 1,
            Faults::None | Faults::Crashes | Faults::Partition { .. } => 0,
        };
        let changed = u64::from(self.divided_by > 1);
        (smallest + self.certainly_refunded(key)).saturating_sub(self.wasted(key, limit) + lead + changed)
    }

    /// How the limit of a key does not hold in the time until `now`, while these hits of it are `refunding`, if it does
    /// not.
    pub(in crate::sim) fn broken_limit(
        &self,
        key: usize,
        TestKey { limit, is_short, .. }: &TestKey,
        refunding: u64,
        faults: Faults,
        now: u64,
    ) -> Option<String> {
        if !is_short {
            let passed = self.passed(key);
            let most = self.most(key, limit, faults) + refunding;
            return (passed > most).then(|| format!("{passed} hits passed, the most is {most}: {limit:?}"));
        }
        [SHORT / 2, SHORT, 5 * SHORT / 2].into_iter().find_map(|span| {
            let times = (now.saturating_sub(span), now);
            let passed = self.passed_between(key, times.0, times.1);
            let most = self.most_between(key, limit, faults, times) + refunding;
            (passed > most).then(|| {
                format!("{passed} hits passed in {} ms, the most is {most}: {limit:?}", span / 1_000_000)
            })
        })
    }

    /// The most hits of a key with a short period that may have passed in this time.
    fn most_between(&self, key: usize, limit: &Limit, faults: Faults, times: (u64, u64)) -> u64 {
        let is_refused =
            |entry: &Entry| matches!(entry.effect, Effect::Refused(_) | Effect::TakenBack(_)).into();
        // A step that a charge opened stays open if the charge is taken back.
        let reopened = if laws::early(limit) > 0 { self.sum_over(key, times, is_refused) } else { 0 };
        let more = self.refunded(key, times) + self.forgotten(key, times) + reopened;
        more + match faults {
            Faults::None => bound(limit, times, 0),
            Faults::Lead => self.bound_of_clocks(key, limit, times),
            Faults::Crashes | Faults::Late => bound(limit, times, 0) + self.degraded(key, times),
            Faults::Partition { minority, members } => {
                self.bound_of_cut(key, limit, (minority, members), times)
            }
        }
    }

    /// Each time a key is decided by a clock that shows another time, because the clock steps or the owner changes, its
    /// window may turn and its bucket may refill.
    fn bound_of_clocks(&self, key: usize, limit: &Limit, (from, to): (u64, u64)) -> u64 {
        let Some(clocks) = self.clocks.get(&key) else { return bound(limit, (from, to), 0) };
        let first = clocks.partition_point(|(since, _)| *since <= from).saturating_sub(1);
        let ends = clocks.iter().skip(first + 1).map(|(since, _)| *since).chain([to]);
        let each = clocks[first..].iter().zip(ends).take_while(|((since, _), _)| *since <= to);
        each.map(|((since, skew), end)| bound(limit, ((*since).max(from), end.min(to)), *skew)).sum()
    }

    /// After a cut, the side with a majority lets the limit pass, and each other replica its share.
    fn bound_of_cut(
        &self,
        key: usize,
        limit: &Limit,
        (minority, members): (u64, u64),
        (from, to): (u64, u64),
    ) -> u64 {
        let Some(cut) = &self.cut else { return bound(limit, (from, to), 0) };
        if to < cut.at || cut.healed_at.saturating_add(UNSURE_FOR) < from {
            return bound(limit, (from, to), 0);
        }
        let (before, unnoticed) = self.around_cut(key, (from, to));
        let after = (from.max(cut.at), to);
        let share = limit.share(u32::try_from(members).unwrap_or(u32::MAX));
        before + unnoticed + bound(limit, after, 0) + minority * bound(&share, after, 0) + members
    }
}

/// The most hits that may pass in this time by a clock with an offset of `skew`, more or less.
fn bound(limit: &Limit, (from, to): (u64, u64), skew: i64) -> u64 {
    let [first, last] = [from - SKEW_MAX, to + SKEW_MAX];
    let [first, last] = [first, last].map(|instant| Timestamp::from_nanos(instant.wrapping_add_signed(skew)));
    u64::try_from(laws::bound(limit, first, last)).unwrap_or(u64::MAX)
}
