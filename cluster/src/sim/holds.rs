//! Reservations of the simulation, as their callers know them.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng};
use tollgate_counter::{
    algorithm::{Admission, Counter, Excess, Limit},
    time::SECOND,
};
use tollgate_store::{HoldId, HoldTerms, OnExpiry, SettleOutcome, Settled};

use crate::sim::record::{Effect, Entry, Record};

/// The most that an expiry is earlier or later than its caller expects, by clocks that differ and late messages.
const SLACK: u64 = SECOND / 2;
/// The shortest and the longest time until the expiry, in milliseconds.
const TTL_MILLIS: std::ops::RangeInclusive<u64> = 200..=3_000;

/// Every reservation that was held.
#[derive(Default)]
pub(super) struct Reservations {
    each: Vec<Reservation>,
    asked: u64,
    /// The first answer that is wrong although no fault explains it.
    pub(super) wrong: Option<String>,
}

/// One reservation.
pub(super) struct Reservation {
    pub(super) terms: HoldTerms,
    pub(super) parts: Vec<Part>,
    called_at: u64,
    answered_at: u64,
    state: HoldState,
}

/// What a reservation holds of one key.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The number of the key.
    pub(super) key: usize,
    pub(super) limit: Limit,
    pub(super) hits: u64,
    /// What was left after it.
    pub(super) remaining: u64,
}

/// What its caller knows of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HoldState {
    Open,
    /// A settlement of an open one is under way.
    Settling,
    /// The time of its expiry has passed, or will soon.
    Expired,
    /// A settlement of an expired one is under way.
    SettlingLate,
    Settled {
        first: Vec<Settled>,
        /// When it was called and answered.
        times: (u64, u64),
    },
    /// A settlement has no answer.
    Unsure,
}

impl Reservation {
    /// Whether a fault may have changed what these later calls with its id are answered.
    fn may_differ(&self, calls: &[(u64, u64)], record: &Record) -> bool {
        let keys: Vec<usize> = self.parts.iter().map(|part| part.key).collect();
        let calls = [&[(self.called_at, self.answered_at)], calls].concat();
        record.may_change_holds(&keys, &calls)
    }

    fn ttl(&self) -> u64 {
        self.terms.ttl().as_nanos() as u64
    }

    /// The instants before and after which it certainly has not and has expired.
    fn expiry(&self, record: &Record) -> (u64, u64) {
        let late = self.parts.iter().map(|part| record.late_since(part.key, self.called_at)).max();
        let latest = self.answered_at + self.ttl() + SLACK + late.unwrap_or_default();
        ((self.called_at + self.ttl()).saturating_sub(SLACK), latest)
    }

    fn can_be_settled(&self, now: u64, record: &Record) -> bool {
        let expiry = || self.expiry(record);
        match self.state {
            HoldState::Open => now < expiry().0,
            HoldState::Expired => expiry().1 < now,
            HoldState::Settling | HoldState::SettlingLate | HoldState::Settled { .. } | HoldState::Unsure => {
                false
            }
        }
    }
}

impl Reservations {
    /// Terms with an id of their own.
    pub(super) fn terms(&mut self, rng: &mut StdRng) -> HoldTerms {
        self.asked += 1;
        let id = HoldId::new(&self.asked.to_be_bytes()).expect("eight bytes");
        let on_expiry = if rng.random_bool(0.3) { OnExpiry::Charge } else { OnExpiry::Release };
        let terms = HoldTerms::new(id, Duration::from_millis(rng.random_range(TTL_MILLIS)), on_expiry);
        terms.expect("the time is within its bounds").with_attempt(rng.random())
    }

    /// Adds one that is held, and returns its number.
    pub(super) fn held(
        &mut self,
        terms: HoldTerms,
        parts: Vec<Part>,
        called_at: u64,
        answered_at: u64,
    ) -> usize {
        self.each.push(Reservation { terms, parts, called_at, answered_at, state: HoldState::Open });
        self.each.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> &Reservation {
        &self.each[number]
    }

    /// The ids of the open ones that hold hits of a key.
    pub(super) fn open_ids(&self, key: usize) -> Vec<HoldId> {
        let holds = |hold: &&Reservation| {
            hold.state == HoldState::Open && hold.parts.iter().any(|part| part.key == key)
        };
        self.each.iter().filter(holds).map(|hold| hold.terms.id.clone()).collect()
    }

    /// A repeated reservation has another answer than the first.
    pub(super) fn held_otherwise(
        &mut self,
        number: usize,
        times: (u64, u64),
        record: &Record,
        problem: String,
    ) {
        if !self.each[number].may_differ(&[times], record) {
            self.wrong.get_or_insert(problem);
        }
    }

    /// The number of one that can be settled at random, if there is one.
    pub(super) fn any_to_settle(&self, now: u64, record: &Record, rng: &mut StdRng) -> Option<usize> {
        let able: Vec<usize> =
            (0..self.each.len()).filter(|number| self.each[*number].can_be_settled(now, record)).collect();
        (!able.is_empty()).then(|| able[rng.random_range(0..able.len())])
    }

    /// Records what expires: from the earliest instant on, its hits may be free again.
    pub(super) fn expire(&mut self, now: u64, record: &mut Record) {
        self.expire_from(now, |earliest| earliest <= now, true, record);
    }

    /// A clock has stepped, so any of them may have expired.
    pub(super) fn expire_any(&mut self, now: u64, record: &mut Record) {
        self.expire_from(now, |_| true, false, record);
    }

    /// Records that open reservations expire, certainly or perhaps, whose earliest expiry `is_due`.
    fn expire_from(&mut self, now: u64, is_due: impl Fn(u64) -> bool, is_certain: bool, record: &mut Record) {
        for hold in &mut self.each {
            if hold.state != HoldState::Open {
                continue;
            }
            let (earliest, answered_at) = hold.expiry(record);
            if !is_due(earliest) {
                continue;
            }
            let called_at = earliest.min(now);
            hold.state = HoldState::Expired;
            if hold.terms.on_expiry() == OnExpiry::Release {
                for Part { key, limit, hits, .. } in &hold.parts {
                    let is_certain = is_certain && gives_all_back(limit, record);
                    let effect = Effect::Ended { returned: *hits, used: 0, is_certain };
                    record.note(Entry { key: *key, effect, called_at, answered_at, degraded: false });
                }
            }
        }
    }

    /// A settlement begins: until it is answered, all held hits may be free.
    pub(super) fn begin_settling(&mut self, number: usize, record: &mut Record) {
        let hold = &mut self.each[number];
        hold.state =
            if hold.state == HoldState::Open { HoldState::Settling } else { HoldState::SettlingLate };
        for Part { key, hits, .. } in &hold.parts {
            *record.returning.entry(*key).or_default() += hits;
        }
    }

    /// The settlement at the `actual` hits of each part has its answer, or none.
    pub(super) fn settled(
        &mut self,
        number: usize,
        actual: &[u64],
        answer: Option<&[Settled]>,
        (called_at, now): (u64, u64),
        record: &mut Record,
    ) {
        let hold = &mut self.each[number];
        for Part { key, hits, .. } in &hold.parts {
            *record.returning.entry(*key).or_default() -= hits;
        }
        let Some(answer) = answer else {
            hold.state = HoldState::Unsure;
            return self.unsure(number, actual, called_at, now, record);
        };
        let is_late = hold.state == HoldState::SettlingLate;
        hold.state = HoldState::Settled { first: answer.to_vec(), times: (called_at, now) };
        let (_, latest) = hold.expiry(record);
        let may_differ = hold.may_differ(&[(called_at, now)], record) || is_late && called_at <= latest;
        let parts = hold.parts.clone().into_iter().zip(actual).zip(answer);
        for ((Part { key, limit, hits, .. }, actual), settled) in parts {
            let expected = match (is_late, hold.terms.on_expiry()) {
                (false, _) => SettleOutcome::Open,
                (true, OnExpiry::Charge) => SettleOutcome::Charged,
                (true, OnExpiry::Release) => SettleOutcome::Released,
            };
            // The release of a late one was recorded when it was due.
            let is_found = match settled.outcome {
                SettleOutcome::Open => expected != SettleOutcome::Released,
                SettleOutcome::Charged => true,
                SettleOutcome::Released | SettleOutcome::Unknown => false,
            };
            let is_wrong = settled.outcome != expected || is_found && settled.reserved != hits;
            if is_wrong && !may_differ {
                self.wrong
                    .get_or_insert(format!("{hits} hits were settled as {settled:?}, not {expected:?}"));
            }
            // An expiry that has charged the hits is forgotten early by a clock that is ahead.
            let may_be_charged =
                settled.outcome == SettleOutcome::Unknown && hold.terms.on_expiry() == OnExpiry::Charge;
            let is_certain = gives_all_back(&limit, record) && !may_be_charged;
            let mut note = |effect| {
                record.note(Entry { key, effect, called_at, answered_at: now, degraded: false });
            };
            let charged = if is_found { actual.saturating_sub(hits) } else { *actual };
            note(Effect::Passed(charged - settled.uncharged));
            // What an expiry gives back was recorded when it was due.
            let returned = if is_found {
                hits.saturating_sub(*actual)
            } else if is_late {
                0
            } else {
                hits
            };
            note(Effect::Ended { returned, used: (*actual).min(hits), is_certain });
        }
    }

    /// A repeated settlement has its answer, which is the first one, or none.
    pub(super) fn settled_again(
        &mut self,
        number: usize,
        actual: &[u64],
        answer: Option<&[Settled]>,
        (called_at, now): (u64, u64),
        record: &mut Record,
    ) {
        let hold = &self.each[number];
        let HoldState::Settled { first, times } = &hold.state else { unreachable!("it was settled before") };
        if answer != Some(first) {
            // A caller that gets no answer in time repeats its call.
            if answer.is_some() && !hold.may_differ(&[*times, (called_at, now)], record) {
                self.wrong.get_or_insert(format!("a repeated settlement answers {answer:?}, not {first:?}"));
            }
            self.unsure(number, actual, called_at, now, record);
        }
    }

    /// Records that a settlement may have taken effect, now or never, and the expiry otherwise.
    fn unsure(&self, number: usize, actual: &[u64], called_at: u64, now: u64, record: &mut Record) {
        let hold = &self.each[number];
        let answered_at = now.max(hold.expiry(record).1);
        for (Part { key, hits, .. }, actual) in hold.parts.iter().zip(actual) {
            let effect = Effect::Ended { returned: *hits, used: *actual, is_certain: false };
            record.note(Entry { key: *key, effect, called_at, answered_at, degraded: true });
        }
    }
}

/// Whether ended reservations leave the counter as if only the used hits had been charged, whatever else is called
/// here. A queue gives only its last place back, a log less if a clock gave up a lead and the hits were moved to
/// one instant, a refund may have taken the held hits, and counted refusals may have been refused because of them.
fn gives_all_back(limit: &Limit, record: &Record) -> bool {
    let is_queue = limit.admission() == Admission::Delayed;
    let is_log = matches!(limit.fresh(), Counter::Log(_));
    let may_be_moved = is_log && record.leads > 0;
    !record.is_mixed && !is_queue && !may_be_moved && limit.excess() == Excess::Refuse
}
