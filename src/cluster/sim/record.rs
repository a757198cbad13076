//! What the callers were told, which faults there were, and what both allow to pass.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    algorithm::{Limit, laws},
    cluster::sim::keys::{SHORT, TestKey},
    time::{SECOND, Timestamp},
};

/// The largest difference of two clocks without `Step::Skew`.
pub(super) const SKEW_MAX: u64 = SECOND / 25;
/// The most members of a simulated cluster.
const MEMBERS_MAX: u64 = 8;
/// Until a fault is noticed everywhere and the checks on their way are answered, charges may be repeated.
const UNSURE_FOR: u64 = 2 * SECOND;

/// The faults of a script, which decide what may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    /// Only planned changes.
    None,
    /// Clocks step, so a hit may come back too early or too late.
    Lead,
    Crashes,
    /// Messages and replicas that come too late for the callers.
    Late,
    /// One cut that separates `minority` of `members` members.
    Partition {
        minority: u64,
        members: u64,
    },
}

/// A charge or a refund of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) key: usize,
    pub(super) effect: Effect,
    pub(super) called_at: u64,
    pub(super) answered_at: u64,
    /// Whether it was decided without its owner.
    pub(super) degraded: bool,
}

/// What became of a charge or a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Passed(u64),
    Refused(u64),
    /// The charge passed at the owner, and was taken back because another check of the call was refused.
    TakenBack(u64),
    Refunded(u64),
    /// A reservation ended: `returned` hits came back, certainly or perhaps, and `used` ones stay charged.
    Ended {
        returned: u64,
        used: u64,
        is_certain: bool,
    },
    /// The caller got no answer, because its replica has died, or these hits were borrowed by it.
    Lost(u64),
}

impl Effect {
    fn hits(self) -> u64 {
        match self {
            Self::Passed(hits)
            | Self::Refused(hits)
            | Self::TakenBack(hits)
            | Self::Refunded(hits)
            | Self::Lost(hits)
            | Self::Ended { used: hits, .. } => hits,
        }
    }

    /// Hits that may have come back.
    fn returned(self) -> u64 {
        match self {
            Self::Refunded(hits) | Self::Lost(hits) | Self::Ended { returned: hits, .. } => hits,
            Self::Passed(_) | Self::Refused(_) | Self::TakenBack(_) => 0,
        }
    }

    /// Hits that have come back unless a fault is near.
    fn returned_certainly(self) -> u64 {
        match self {
            Self::Refunded(hits) | Self::Ended { returned: hits, is_certain: true, .. } => hits,
            Self::Ended { is_certain: false, .. }
            | Self::Passed(_)
            | Self::Refused(_)
            | Self::TakenBack(_)
            | Self::Lost(_) => 0,
        }
    }
}

impl Entry {
    fn passed(&self) -> u64 {
        if let Effect::Passed(hits) = self.effect { hits } else { 0 }
    }

    /// Hits that come back if the entry is forgotten. A forgotten end of a reservation opens it again.
    fn forgettable(&self) -> u64 {
        match self.effect {
            Effect::Passed(hits) | Effect::Ended { used: hits, .. } => hits,
            Effect::Refused(_) | Effect::TakenBack(_) | Effect::Refunded(_) | Effect::Lost(_) => 0,
        }
    }

    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.called_at <= to && from <= self.answered_at
    }
}

/// A fault, and what it may forget.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: u64,
    /// What passed from then on may be forgotten, until the fault is noticed.
    pub(super) forgets: Option<(u64, u64)>,
    /// The keys of which it may be forgotten.
    pub(super) keys: BTreeSet<usize>,
}

/// Everything that was observed.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// By key, in the order of the answers.
    entries: BTreeMap<usize, Vec<Entry>>,
    pub(super) faults: Vec<Fault>,
    /// When the network was cut.
    pub(super) cut_at: Option<u64>,
    /// How often a clock gave up a lead.
    pub(super) leads: u64,
    /// The largest number by which limits were divided.
    pub(super) divided_by: u32,
    /// Whether there were other operations than charges of single hits.
    pub(super) is_mixed: bool,
    /// Whether there were reservations.
    pub(super) has_holds: bool,
    /// Held hits of each key whose settlement is under way.
    pub(super) returning: BTreeMap<usize, u64>,
}

impl Default for Record {
    /// Nothing, and undivided limits.
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            faults: Vec::new(),
            cut_at: None,
            leads: 0,
            divided_by: 1,
            is_mixed: false,
            has_holds: false,
            returning: BTreeMap::new(),
        }
    }
}

impl Record {
    pub(super) fn note(&mut self, entry: Entry) {
        self.entries.entry(entry.key).or_default().push(entry);
    }

    fn of(&self, key: usize) -> impl Iterator<Item = &Entry> {
        self.entries.get(&key).into_iter().flatten()
    }

    /// Hits of a key that passed, called and answered in this time.
    pub(super) fn passed_between(&self, key: usize, from: u64, to: u64) -> u64 {
        let between = |entry: &&Entry| from <= entry.called_at && entry.answered_at <= to;
        self.of(key).filter(between).map(Entry::passed).sum()
    }

    /// Hits of a key that passed.
    pub(super) fn passed(&self, key: usize) -> u64 {
        self.passed_between(key, 0, u64::MAX)
    }

    fn degraded(&self, key: usize) -> u64 {
        self.of(key).filter(|entry| entry.degraded).map(Entry::passed).sum()
    }

    /// Hits of a key that faults may have forgotten.
    fn forgotten(&self, key: usize) -> u64 {
        let lost = self.faults.iter().filter(|fault| fault.keys.contains(&key));
        let passed = |(from, to)| {
            let in_time = move |entry: &&Entry| entry.overlaps(from, to);
            self.of(key).filter(in_time).map(Entry::forgettable).sum::<u64>()
        };
        lost.filter_map(|fault| fault.forgets).map(passed).sum()
    }

    fn is_near_fault(&self, entry: &Entry) -> bool {
        let is_near = |fault: &Fault| {
            let recent = fault.at.saturating_sub(SECOND);
            let forgets = fault.forgets.filter(|_| fault.keys.contains(&entry.key));
            let from = forgets.map_or(recent, |(from, _)| from.min(recent));
            entry.overlaps(from, fault.at + UNSURE_FOR)
        };
        self.faults.iter().any(is_near)
    }

    /// Hits of a key that may be charged although no caller was admitted for them: charges that faults have repeated,
    /// whose reply was lost or came too late, or whose take-back was forgotten. In a queue, hits behind a place that is
    /// taken back were told their delays, so only the last place is given back. A refund takes the newest hits of a log:
    /// if they are those of a charge that is taken back after it, nothing is left to take back.
    fn wasted(&self, key: usize, limit: &Limit) -> u64 {
        let is_queue = matches!(limit, Limit::LeakyQueue(_));
        let is_log = matches!(limit, Limit::SlidingLog(_));
        let is_refunded = |charge: &Entry| {
            let overlaps = |entry: &Entry| entry.overlaps(charge.called_at, charge.answered_at);
            self.of(key).any(|entry| matches!(entry.effect, Effect::Refunded(_)) && overlaps(entry))
        };
        let is_wasted = |entry: &&Entry| {
            entry.degraded
                || match entry.effect {
                    Effect::Lost(_) => true,
                    Effect::TakenBack(_) => {
                        is_queue || is_log && is_refunded(entry) || self.is_near_fault(entry)
                    }
                    Effect::Passed(_) | Effect::Refused(_) | Effect::Refunded(_) | Effect::Ended { .. } => {
                        self.is_near_fault(entry)
                    }
                }
        };
        self.of(key).filter(is_wasted).map(|entry| entry.effect.hits()).sum()
    }

    /// Refunds that may have taken effect, and those that certainly have.
    fn refunded(&self, key: usize, from: u64, to: u64) -> (u64, u64) {
        let in_time = |entry: &&Entry| entry.overlaps(from, to);
        let all: u64 = self.of(key).filter(in_time).map(|entry| entry.effect.returned()).sum();
        let all = all + self.returning.get(&key).copied().unwrap_or_default();
        let is_certain = |entry: &&Entry| {
            entry.effect.returned_certainly() > 0 && !entry.degraded && !self.is_near_fault(entry)
        };
        let certain: u64 =
            self.of(key).filter(is_certain).map(|entry| entry.effect.returned_certainly()).sum();
        // Of a bucket, a hit that was charged under a smaller limit is worth several of the larger one.
        let worth = u64::from(self.divided_by.max(1));
        (all * worth, if worth > 1 { 0 } else { certain })
    }

    /// The most hits of a key with a long period that may have passed.
    pub(super) fn most(&self, key: usize, limit: &Limit, faults: Faults) -> u64 {
        let limit = limit.allowance();
        let more = self.refunded(key, 0, u64::MAX).0 + self.forgotten(key);
        more + match faults {
            Faults::None => limit,
            // Hits come back while a clock is ahead.
            Faults::Lead => limit + 1 + self.leads,
            Faults::Crashes | Faults::Late => limit + self.degraded(key),
            Faults::Partition { minority, members, .. } => {
                let (before, unnoticed) = self.around_cut(key);
                before + limit + (limit * minority).div_ceil(members) + MEMBERS_MAX + unnoticed
            }
        }
    }

    /// Hits that passed before the network was cut, and until both sides have noticed it.
    fn around_cut(&self, key: usize) -> (u64, u64) {
        let Some(cut_at) = self.cut_at else { return (0, 0) };
        let in_time = |from, to| {
            let in_time = move |entry: &&Entry| (from..to).contains(&entry.answered_at);
            self.of(key).filter(in_time).map(Entry::passed).sum()
        };
        (in_time(0, cut_at), in_time(cut_at, cut_at + 2 * SECOND))
    }

    /// The least hits of a key with a long period that must have passed once everything was spent.
    pub(super) fn least(&self, key: usize, limit: &Limit, faults: Faults) -> u64 {
        // A classic limit counts hits that it refuses.
        if limit.is_classic() && (self.is_mixed || self.has_holds) {
            return 0;
        }
        let smallest = limit.share(self.divided_by.max(1)).allowance();
        let lead = match faults {
            // A debt may be too large by a lead that was given up.
            Faults::Lead => 1 + self.leads,
            // A debt does not shrink while it is on its way.
            Faults::Late => 1,
            Faults::None | Faults::Crashes | Faults::Partition { .. } => 0,
        };
        let changed = u64::from(self.divided_by > 1);
        let certain = self.refunded(key, 0, u64::MAX).1;
        (smallest + certain).saturating_sub(self.wasted(key, limit) + lead + changed)
    }

    /// The first key with a short period whose limit did not hold in the time before `now`, while these hits of each key
    /// are `refunding`.
    pub(super) fn broken_short_limit(
        &self,
        keys: &[TestKey],
        refunding: &[u64],
        faults: Faults,
        now: u64,
    ) -> Option<String> {
        // Windows turn earlier and later there.
        if faults == Faults::Lead {
            return None;
        }
        let short = keys.iter().enumerate().filter(|(_, key)| key.is_short);
        short
            .flat_map(|(number, key)| [SHORT / 2, SHORT, 5 * SHORT / 2].map(|span| (number, key, span)))
            .find_map(|(number, TestKey { limit, .. }, span)| {
                let from = now.saturating_sub(span);
                let passed = self.passed_between(number, from, now);
                let most = self.most_between(number, limit, faults, from, now) + refunding[number];
                (passed > most).then(|| {
                    format!("{passed} hits passed in {} ms, the most is {most}: {limit:?}", span / 1_000_000)
                })
            })
    }

    fn most_between(&self, key: usize, limit: &Limit, faults: Faults, from: u64, to: u64) -> u64 {
        let [first, last] = [from - SKEW_MAX, to + SKEW_MAX].map(Timestamp::from_nanos);
        let bound = u64::try_from(laws::bound(limit, first, last)).unwrap_or(u64::MAX);
        let refused = self.of(key).filter(|entry| {
            entry.overlaps(from, to) && matches!(entry.effect, Effect::Refused(_) | Effect::TakenBack(_))
        });
        // A step that a charge opened stays open if the charge is taken back.
        let reopened = if matches!(limit, Limit::SteppedBucket(_)) { refused.count() as u64 } else { 0 };
        let more = self.refunded(key, from, to).0 + self.forgotten(key) + reopened;
        more + match faults {
            Faults::None | Faults::Lead => bound,
            Faults::Crashes | Faults::Late => bound + self.degraded(key),
            Faults::Partition { .. } => {
                let (_, unnoticed) = self.around_cut(key);
                2 * bound + MEMBERS_MAX + unnoticed
            }
        }
    }
}
