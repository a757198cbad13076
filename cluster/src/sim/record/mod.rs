//! What the callers were told, and which faults there were. [`bounds`] says what both allow to pass.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_counter::{
    algorithm::{Admission, Counter, Limit},
    time::SECOND,
};

mod bounds;

/// The largest difference of two clocks without `Step::Skew`.
pub(super) const SKEW_MAX: u64 = SECOND / 25;
/// Until a fault is noticed everywhere and the checks on their way are answered, charges may be repeated.
pub(super) const UNSURE_FOR: u64 = 2 * SECOND;
/// Copies of slots that are under way for longer are late: see [`Record::late_since`].
const USUAL_DELAY_MAX: u64 = SECOND / 20;
/// How long before a fault its effects begin: what was called then may be answered after it.
pub(super) const UNSURE_BEFORE: u64 = SECOND;

/// The faults of a script, which decide what may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    /// There are only planned changes.
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
    pub(super) fn passed(&self) -> u64 {
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
    /// Refunds from then on may be lost, and charges repeated, until the fault is noticed.
    pub(super) unsure_from: u64,
    /// What passed from then on may be forgotten, until the fault is noticed.
    pub(super) forgets: Option<(u64, u64)>,
    /// The keys that it concerns.
    pub(super) keys: BTreeSet<usize>,
}

/// A copy of a slot that was under way for long, from one replica to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateCopy {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) sent_at: u64,
    pub(super) arrived_at: u64,
}

/// A cut of the network.
#[derive(Clone, Debug)]
pub(super) struct NetworkCut {
    pub(super) at: u64,
    /// When it ended, or the end of time.
    pub(super) healed_at: u64,
    /// The keys that owners on the side without a majority decide, and until when these do so.
    pub(super) unnoticed_until: BTreeMap<usize, u64>,
}

/// Everything that was observed.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// By key, in the order of the answers.
    entries: BTreeMap<usize, Vec<Entry>>,
    /// The keys with hits that passed and whose limits were not compared since then.
    unchecked: BTreeSet<usize>,
    pub(super) faults: Vec<Fault>,
    /// The last cut.
    pub(super) cut: Option<NetworkCut>,
    /// By whose clock each key was decided: from each instant on, the offset of that clock. Only while clocks step.
    clocks: BTreeMap<usize, Vec<(u64, i64)>>,
    /// When clocks stepped.
    pub(super) clock_steps: Vec<u64>,
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
    /// By key, in the order of their arrival.
    late_copies: BTreeMap<usize, Vec<LateCopy>>,
}

impl Default for Record {
    /// Nothing, and undivided limits.
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            unchecked: BTreeSet::new(),
            faults: Vec::new(),
            cut: None,
            clocks: BTreeMap::new(),
            clock_steps: Vec::new(),
            leads: 0,
            divided_by: 1,
            is_mixed: false,
            has_holds: false,
            returning: BTreeMap::new(),
            late_copies: BTreeMap::new(),
        }
    }
}

impl Record {
    pub(super) fn note(&mut self, entry: Entry) {
        if entry.passed() > 0 {
            self.unchecked.insert(entry.key);
        }
        let entries = self.entries.entry(entry.key).or_default();
        // What expires is noted before it ends.
        let later = entries.partition_point(|other| other.answered_at <= entry.answered_at);
        entries.insert(later, entry);
    }

    /// The other side has claimed these keys, which owners on the side without a majority decide no longer than
    /// `until`.
    pub(super) fn notice(&mut self, keys: &[usize], until: u64) {
        for key in keys {
            if let Some(before) = self.cut.as_mut().and_then(|cut| cut.unnoticed_until.get_mut(key)) {
                *before = until.min(*before);
            }
        }
    }

    /// A copy of the slot of these keys has arrived.
    pub(super) fn arrived(&mut self, keys: impl Iterator<Item = usize>, copy: LateCopy) {
        if copy.arrived_at - copy.sent_at > USUAL_DELAY_MAX {
            keys.for_each(|key| self.late_copies.entry(key).or_default().push(copy));
        }
    }

    /// The most by which a reservation of this key that was made at `from` or later may expire later, because it moved
    /// with late copies. A copy has the time that is left when it is sent, so a copy of a copy is late by both.
    pub(super) fn late_since(&self, key: usize, from: u64) -> u64 {
        let copies = self.late_copies.get(&key).map(Vec::as_slice).unwrap_or_default();
        let mut late: Vec<(&LateCopy, u64)> = Vec::new();
        for copy in copies.iter().filter(|copy| from <= copy.sent_at) {
            let is_source =
                |(other, _): &&(&LateCopy, u64)| other.to == copy.from && other.arrived_at <= copy.sent_at;
            let before = late.iter().filter(is_source).map(|(_, late)| *late).max();
            late.push((copy, before.unwrap_or_default() + copy.arrived_at - copy.sent_at));
        }
        late.into_iter().map(|(_, late)| late).max().unwrap_or_default()
    }

    /// The cut has ended.
    pub(super) fn heal(&mut self, now: u64) {
        if let Some(cut) = &mut self.cut {
            cut.healed_at = now;
            cut.unnoticed_until.values_mut().for_each(|until| *until = now.min(*until));
        }
    }

    /// From now on, the key is decided by a clock with this offset.
    pub(super) fn note_clock(&mut self, key: usize, now: u64, skew: i64) {
        let clocks = self.clocks.entry(key).or_default();
        if clocks.last().is_none_or(|(_, last)| *last != skew) {
            clocks.push((now, skew));
        }
    }

    /// The keys with hits that passed since the last call.
    pub(super) fn take_unchecked(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.unchecked)
    }

    /// All charges and refunds of a key, in the order of the answers.
    pub(super) fn of(&self, key: usize) -> &[Entry] {
        self.entries.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The entries of a key that were answered at this instant or later.
    fn since(&self, key: usize, from: u64) -> &[Entry] {
        let entries = self.of(key);
        &entries[entries.partition_point(|entry| entry.answered_at < from)..]
    }

    /// The sum over the entries of a key whose time overlaps this one.
    fn sum_over(&self, key: usize, (from, to): (u64, u64), hits: impl Fn(&Entry) -> u64) -> u64 {
        self.since(key, from).iter().filter(|entry| entry.overlaps(from, to)).map(hits).sum()
    }

    /// Hits of a key that passed, called and answered in this time.
    pub(super) fn passed_between(&self, key: usize, from: u64, to: u64) -> u64 {
        let between = |entry: &&Entry| from <= entry.called_at && entry.answered_at <= to;
        self.since(key, from).iter().filter(between).map(Entry::passed).sum()
    }

    /// Hits of a key that passed.
    pub(super) fn passed(&self, key: usize) -> u64 {
        self.passed_between(key, 0, u64::MAX)
    }

    /// Hits of a key that passed in this time without their owner.
    fn degraded(&self, key: usize, times: (u64, u64)) -> u64 {
        self.sum_over(key, times, |entry| if entry.degraded { entry.passed() } else { 0 })
    }

    /// Hits of a key, charged in this time, that faults may have forgotten. What was charged earlier was missing at the
    /// beginning of this time, or came back in it: either way, no more than the limit was left then.
    fn forgotten(&self, key: usize, times: (u64, u64)) -> u64 {
        let lost = self.faults.iter().filter(|fault| fault.keys.contains(&key));
        let passed = |(from, to)| {
            let forgettable = |entry: &Entry| if entry.overlaps(from, to) { entry.forgettable() } else { 0 };
            self.sum_over(key, times, forgettable)
        };
        lost.filter_map(|fault| fault.forgets).map(passed).sum()
    }

    fn is_near_fault(&self, entry: &Entry) -> bool {
        let is_near = |fault: &Fault| {
            let from = fault.forgets.map_or(fault.unsure_from, |(from, _)| from.min(fault.unsure_from));
            fault.keys.contains(&entry.key) && entry.overlaps(from, fault.at + UNSURE_FOR)
        };
        self.faults.iter().any(is_near)
    }

    /// Hits of a key that may be charged although no caller was admitted for them: charges that faults have repeated,
    /// whose reply was lost or came too late, or whose take-back was forgotten. In a queue, hits behind a place that is
    /// taken back were told their delays, so only the last place is given back. A refund takes the newest hits of a
    /// log: if they are those of a charge that is taken back after it, nothing is left to take back.
    fn wasted(&self, key: usize, limit: &Limit) -> u64 {
        let is_queue = limit.admission() == Admission::Delayed;
        let is_log = matches!(limit.fresh(), Counter::Log(_));
        let is_refunded = |charge: &Entry| {
            let overlaps = |entry: &Entry| entry.overlaps(charge.called_at, charge.answered_at);
            self.of(key).iter().any(|entry| matches!(entry.effect, Effect::Refunded(_)) && overlaps(entry))
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
        self.of(key).iter().filter(is_wasted).map(|entry| entry.effect.hits()).sum()
    }

    /// Hits of a key that may have come back in this time.
    fn refunded(&self, key: usize, times: (u64, u64)) -> u64 {
        let all = self.sum_over(key, times, |entry| entry.effect.returned());
        // Of a bucket, a hit that was charged under a smaller limit is worth several of the larger one.
        (all + self.returning.get(&key).copied().unwrap_or_default()) * u64::from(self.divided_by.max(1))
    }

    /// Hits of a key that have certainly come back.
    fn certainly_refunded(&self, key: usize) -> u64 {
        if self.divided_by > 1 {
            return 0;
        }
        let is_certain = |entry: &&Entry| {
            entry.effect.returned_certainly() > 0 && !entry.degraded && !self.is_near_fault(entry)
        };
        self.of(key).iter().filter(is_certain).map(|entry| entry.effect.returned_certainly()).sum()
    }

    /// Whether a fault may change the answer about a reservation of these keys: it may have forgotten one of the calls
    /// at these times, or a clock stepped between them.
    pub(super) fn may_change_holds(&self, keys: &[usize], calls: &[(u64, u64)]) -> bool {
        let forgets = |fault: &Fault| {
            let is_among = calls.iter().any(|(called_at, answered_at)| {
                fault.forgets.is_some_and(|(from, to)| *called_at <= to && from <= *answered_at)
            });
            is_among && keys.iter().any(|key| fault.keys.contains(key))
        };
        let (from, to) =
            calls.iter().fold((u64::MAX, 0), |(from, to), call| (from.min(call.0), to.max(call.1)));
        let steps = self.clock_steps.iter().any(|at| (from..=to).contains(at));
        let is_cut = |cut: &NetworkCut| {
            let is_apart = keys.iter().any(|key| cut.unnoticed_until.contains_key(key));
            is_apart
                && cut.at.saturating_sub(SECOND) <= to
                && from <= cut.healed_at.saturating_add(UNSURE_FOR)
        };
        steps || self.faults.iter().any(forgets) || self.cut.as_ref().is_some_and(is_cut)
    }
}
