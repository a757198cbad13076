//! Holds: the reservations of one counter. A hold is a charge with an id and an expiry.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Admission, Counter, Decision, Held, Limit, Operation, Place, Verdict},
    store::reservation::{
        HOLD_TTL_MAX, HoldId, HoldTerms, LISTED_HOLDS_MAX, OnExpiry, OpenHold, OpenHolds, SettleOutcome,
        Settled,
    },
    time::Timestamp,
};

mod changes;
mod codec;
mod copies;
mod ended;
mod merge;

use changes::{Changes, Uncompared};
pub(super) use codec::DecodedHolds;
pub(super) use copies::CounterCopy;
use ended::{Ended, HoldAnswer};

/// The ids that a counter remembers, those of open holds included, before it forgets those that have ended: the oldest of
/// the settled ones first.
pub(super) const IDS_MAX: usize = 4_096;
/// That many are forgotten at once, so that one more costs little.
const FORGOTTEN_AT_ONCE: usize = 256;
/// The bytes that one more hold of this id takes.
pub(crate) fn id_bytes(id: &HoldId) -> usize {
    Holds::bytes_of_one(id)
}

/// A hold is remembered for this long after its expiry.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);
/// The approximate memory of an entry of a tree besides key and value, in bytes.
const TREE_ENTRY_BYTES: usize = 16;

/// One hold that still weighs something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    id: HoldId,
    attempt: u64,
    hits: u64,
    answer: HoldAnswer,
    ttl: Duration,
    expires_at: Timestamp,
    on_expiry: OnExpiry,
    state: HoldState,
    held: Held,
    // What tells whether it has changed since the last copy of changes.
    #[serde(skip)]
    copied: Uncompared<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum HoldState {
    Open,
    /// The expiry has charged it. It can be adjusted until it is forgotten.
    Charged,
}

/// The answer to the reservation of a known id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownAnswer {
    pub(super) decision: Decision,
    /// Whether the hold is open: neither settled nor expired.
    pub(super) is_open: bool,
}

/// What the holds of one counter take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldSize {
    pub(super) open: usize,
    pub(super) bytes: usize,
}

/// How many holds have expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expired {
    pub(crate) released: usize,
    pub(crate) charged: usize,
}

impl std::ops::AddAssign for Expired {
    fn add_assign(&mut self, other: Self) {
        self.released += other.released;
        self.charged += other.charged;
    }
}

/// The holds of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holds {
    // The limit by which they were observed last.
    limit: Limit,
    // Those that still weigh something, in the order of their charges. At most `HOLDS_MAX`.
    each: Vec<Hold>,
    #[serde(with = "ended::oldest_first")]
    ended: BTreeMap<HoldId, Ended>,
    // Invariant: no open hold expires earlier.
    #[serde(skip)]
    next_expiry: Timestamp,
    // Invariant: no ended hold is forgotten earlier.
    #[serde(skip)]
    next_forgotten: Uncompared<Timestamp>,
    // The bytes of all ids.
    #[serde(skip)]
    id_bytes: usize,
    #[serde(skip)]
    changes: Changes,
    // Ended holds that were forgotten because there were too many.
    #[serde(skip)]
    forgotten_early: Uncompared<usize>,
}

impl Hold {
    /// Whether it keeps places of a limit on what is in flight. They are not in the counter, which frees a place after a
    /// time.
    fn keeps_places(&self, limit: &Limit) -> bool {
        self.state == HoldState::Open && limit.admission() == Admission::InFlight
    }

    /// Charges places that it has kept, as of the reservation.
    fn charge_places(&self, limit: &Limit, counter: &mut Counter, places: u64, now: Timestamp) {
        if let Place::Instant(at) = self.held.place {
            limit.charge_at(counter, places, at.min(now), now);
        }
    }

    fn forgotten_at(&self) -> Timestamp {
        self.expires_at.after(REMEMBERED)
    }
}

impl Holds {
    /// No holds of a counter of `limit`.
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.clone(),
            each: Vec::new(),
            ended: BTreeMap::new(),
            next_expiry: Timestamp::MAX,
            next_forgotten: Uncompared(Timestamp::MAX),
            id_bytes: 0,
            changes: Changes::default(),
            forgotten_early: Uncompared(0),
        }
    }

    /// The limit by which they were observed last.
    pub(super) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether nothing is held or remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty() && self.ended.is_empty()
    }

    /// The number of open holds.
    pub(super) fn open(&self) -> usize {
        self.each.iter().filter(|hold| hold.state == HoldState::Open).count()
    }

    /// The open holds as of `now`.
    pub(super) fn list(&self, now: Timestamp) -> OpenHolds {
        let mut open: Vec<&Hold> = self.each.iter().filter(|hold| hold.state == HoldState::Open).collect();
        open.sort_by_key(|hold| hold.expires_at);
        let first = open.iter().take(LISTED_HOLDS_MAX).map(|hold| OpenHold {
            id: hold.id.clone(),
            hits: hold.hits,
            expires_after: hold.expires_at.since(now),
            on_expiry: hold.on_expiry,
        });
        let hits = open.iter().map(|hold| hold.hits).fold(0, u64::saturating_add);
        OpenHolds { count: open.len() as u64, hits, first: first.collect() }
    }

    /// What they take.
    pub(super) fn size(&self) -> HoldSize {
        HoldSize { open: self.open(), bytes: self.bytes() }
    }

    /// The number of holds that still weigh something.
    pub(super) fn weighing(&self) -> usize {
        self.each.len()
    }

    /// The instant from which none is remembered.
    #[cfg(feature = "redis")]
    pub(super) fn forgotten_at(&self) -> Timestamp {
        let each = self.each.iter().map(Hold::forgotten_at);
        let ended = self.ended.values().map(|ended| ended.forgotten_at);
        each.chain(ended).max().unwrap_or(Timestamp::EPOCH)
    }

    /// The approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let ended = size_of::<(HoldId, Ended)>() + TREE_ENTRY_BYTES;
        size_of::<Self>()
            + self.each.capacity() * size_of::<Hold>()
            + self.ended.len() * ended
            + self.id_bytes
            + self.changes.bytes()
    }

    /// The bytes that the first hold of a counter takes beside [`Holds::bytes_of_one`]: a vector begins with four places.
    pub(super) const BYTES_OF_FIRST: usize = size_of::<Self>() + 2 * size_of::<Hold>();

    /// The bytes that one more hold of this id takes.
    pub(super) fn bytes_of_one(id: &HoldId) -> usize {
        // A vector grows to twice its length.
        2 * size_of::<Hold>() + size_of::<(HoldId, Ended)>() + TREE_ENTRY_BYTES + id.bytes.len()
    }

    /// Whether a hold has expired.
    #[inline]
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next_expiry <= now
    }

    /// The answer to the reservation of this id, if it is known.
    pub(super) fn answer(&self, id: &HoldId) -> Option<KnownAnswer> {
        let known = |answer: HoldAnswer, is_open| KnownAnswer { decision: answer.decision(), is_open };
        let held = self.each.iter().find(|hold| hold.id == *id);
        held.map(|hold| known(hold.answer, hold.state == HoldState::Open))
            .or_else(|| self.ended.get(id).map(|ended| known(ended.answer, false)))
    }

    /// The limit of the counter alone, without the places that open holds keep.
    pub(super) fn beside<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        let kept = self.each.iter().filter(|hold| hold.keeps_places(limit)).map(|hold| hold.hits);
        match kept.fold(0, u64::saturating_add) {
            0 => Cow::Borrowed(limit),
            kept => Cow::Owned(limit.less(kept)),
        }
    }

    /// Refunds `hits` of calls, and then those that are held.
    pub(super) fn refund(
        &mut self,
        limit: &Limit,
        counter: &mut Counter,
        hits: u64,
        now: Timestamp,
    ) -> Decision {
        let open = self.each.iter().filter(|hold| hold.state == HoldState::Open && !hold.keeps_places(limit));
        let held: Vec<Held> = open.map(|hold| hold.held).collect();
        self.beside(limit).refund_beside(counter, &held, hits, now)
    }

    /// Records what `counter` weighs. Call this before and after each change of the counter.
    pub(super) fn observe(&mut self, limit: &Limit, counter: &Counter, now: Timestamp) {
        self.adopt(limit);
        for hold in self.each.iter_mut().filter(|hold| !hold.keeps_places(limit)) {
            limit.observe(&mut hold.held, counter, now);
        }
    }

    /// Adds a hold of `hits`, whose charge was decided by `decision`. The id must be unknown.
    pub(super) fn add(
        &mut self,
        id: HoldId,
        terms: &HoldTerms,
        hits: u64,
        held: Held,
        decision: &Decision,
        now: Timestamp,
    ) {
        // Another replica may have sent the terms.
        let ttl = terms.ttl.min(HOLD_TTL_MAX);
        let expires_at = now.after(ttl);
        self.id_bytes += id.bytes.len();
        self.next_expiry = self.next_expiry.min(expires_at);
        let (attempt, on_expiry, answer) = (terms.attempt, terms.on_expiry, HoldAnswer::of(decision));
        let (state, copied) = (HoldState::Open, Uncompared(0));
        self.each.push(Hold { id, attempt, hits, answer, ttl, expires_at, on_expiry, state, held, copied });
    }

    /// Ends holds that have expired, each at the instant of its expiry, the earliest first.
    pub(super) fn expire(&mut self, limit: &Limit, counter: &mut Counter, now: Timestamp) -> Expired {
        self.adopt(limit);
        let mut expired = Expired::default();
        while let Some(index) = self.first_due(now) {
            let at = self.each[index].expires_at;
            match self.each[index].on_expiry {
                OnExpiry::Release => {
                    expired.released += 1;
                    let (hold, _) = self.take_back(index, counter, 0, at);
                    self.end(hold, None);
                }
                OnExpiry::Charge => {
                    expired.charged += 1;
                    let hold = &mut self.each[index];
                    if hold.keeps_places(limit) {
                        hold.charge_places(limit, counter, hold.hits, at);
                    }
                    hold.state = HoldState::Charged;
                }
            }
        }
        self.set_next_expiry();
        expired
    }

    /// The index of the open hold that expires first, if that is not after `now`.
    fn first_due(&self, now: Timestamp) -> Option<usize> {
        let open = self.each.iter().enumerate().filter(|(_, hold)| hold.state == HoldState::Open);
        let (index, hold) = open.min_by_key(|(_, hold)| hold.expires_at)?;
        (hold.expires_at <= now).then_some(index)
    }

    /// Forgets holds whose time to be remembered has passed.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let charged = self.each.iter().filter(|hold| hold.state == HoldState::Charged);
        let next = charged.map(Hold::forgotten_at).fold(self.next_forgotten.0, Timestamp::min);
        if now < next {
            return;
        }
        let (id_bytes, changes) = (&mut self.id_bytes, &mut self.changes);
        self.each.retain(|hold| {
            let stays = hold.state == HoldState::Open || now < hold.forgotten_at();
            if !stays {
                *id_bytes -= hold.id.bytes.len();
                changes.remove(&hold.id);
            }
            stays
        });
        self.ended.retain(|id, ended| {
            let stays = now < ended.forgotten_at;
            *id_bytes -= if stays { 0 } else { id.bytes.len() };
            stays
        });
        self.set_next_forgotten();
    }

    /// Forgets the oldest of the holds that have ended, if there are too many.
    /// Those that are settled go first.
    fn forget_oldest(&mut self) {
        let excess = (self.each.len() + self.ended.len()).saturating_sub(IDS_MAX).min(self.ended.len());
        if excess < FORGOTTEN_AT_ONCE {
            return;
        }
        let age = |(id, ended): (&HoldId, &Ended)| (ended.settled.is_none(), ended.change.0, id.clone());
        let mut ended: Vec<_> = self.ended.iter().map(age).collect();
        ended.select_nth_unstable(excess - 1);
        ended[..excess].iter().for_each(|(_, _, id)| self.forget_ended(id));
        self.forgotten_early.0 += excess;
    }

    /// How many ended holds were forgotten because there were too many, since the last call.
    pub(super) fn take_forgotten_early(&mut self) -> usize {
        std::mem::take(&mut self.forgotten_early.0)
    }

    fn with_bytes_of_ids(self) -> Self {
        let ids = self.each.iter().map(|hold| &hold.id).chain(self.ended.keys());
        let id_bytes = ids.map(|id| id.bytes.len()).sum();
        Self { id_bytes, ..self }
    }

    /// Remembers a hold that has ended.
    fn remember(&mut self, id: HoldId, ended: Ended) {
        let change = self.changes.next();
        self.next_forgotten.0 = self.next_forgotten.0.min(ended.forgotten_at);
        self.ended.insert(id, Ended { change, ..ended });
        self.forget_oldest();
    }

    /// The hits that settling `actual` hits of this id will charge now.
    pub(super) fn charges(&self, id: &HoldId, actual: u64) -> u64 {
        if self.ended.get(id).is_some_and(|ended| ended.settled.is_some()) {
            return 0;
        }
        let hold = self.each.iter().find(|hold| hold.id == *id);
        actual.saturating_sub(hold.map_or(0, |hold| hold.hits))
    }

    /// Settles a hold at `actual` hits: takes the rest of the held hits back, or charges what is missing. Answers as
    /// the first time if it was settled before.
    pub(super) fn settle(
        &mut self,
        limit: &Limit,
        counter: &mut Counter,
        id: &HoldId,
        actual: u64,
        now: Timestamp,
    ) -> Settled {
        if let Some(Ended { settled: Some(settled), .. }) = self.ended.get(id) {
            return *settled;
        }
        self.observe(limit, counter, now);
        let hold = self.each.iter().position(|hold| hold.id == *id);
        let hold = hold.map(|index| self.take_back(index, counter, actual, now).0);
        let reserved = hold.as_ref().map_or(0, |hold| hold.hits);
        let missing = actual.saturating_sub(reserved);
        let limit = self.beside(limit);
        let (charged, _) = limit.charge_used(counter, missing, now);
        let left = limit.decide(counter, now, Operation::Peek);
        let outcome = match &hold {
            Some(hold) if hold.state == HoldState::Open => SettleOutcome::Open,
            Some(_) => SettleOutcome::Charged,
            None if self.ended.contains_key(id) => SettleOutcome::Released,
            None => SettleOutcome::Unknown,
        };
        let (remaining, reset_after) = (left.remaining, left.reset_after);
        let settled = Settled { outcome, reserved, uncharged: missing - charged, remaining, reset_after };
        match hold {
            Some(hold) => self.end(hold, Some(settled)),
            None => self.end_unknown(id, settled, now),
        }
        self.set_next_expiry();
        settled
    }

    /// Takes back an open hold of this attempt and forgets it. Returns whether there was one.
    pub(super) fn withdraw(
        &mut self,
        counter: &mut Counter,
        id: &HoldId,
        attempt: u64,
        now: Timestamp,
    ) -> bool {
        let index = self.each.iter().position(|hold| hold.id == *id && hold.attempt == attempt);
        let Some(index) = index else { return false };
        let (hold, _) = self.take_back(index, counter, 0, now);
        self.id_bytes -= hold.id.bytes.len();
        self.set_next_expiry();
        true
    }

    /// Clamps instants after a clock gave up a lead at `at`, not after `now`: a hold that was made ahead of `now`
    /// expires as if it had been made at `at`. Returns whether charges have moved: those of the counter must move, too.
    pub(super) fn clamp_ahead(&mut self, at: Timestamp, now: Timestamp) -> bool {
        let mut has_moved = false;
        for hold in &mut self.each {
            if now.after(hold.ttl) < hold.expires_at {
                hold.expires_at = at.after(hold.ttl);
            }
            if let Place::Instant(instant) = &mut hold.held.place
                && now < *instant
            {
                (*instant, has_moved) = (at, true);
            }
        }
        let latest = now.after(HOLD_TTL_MAX).after(REMEMBERED);
        for ended in self.ended.values_mut() {
            ended.forgotten_at = ended.forgotten_at.min(latest);
        }
        self.set_next_forgotten();
        self.set_next_expiry();
        has_moved
    }

    /// Forgets a hold that has ended.
    pub(super) fn forget_ended(&mut self, id: &HoldId) {
        if self.ended.remove(id).is_some() {
            self.id_bytes -= id.bytes.len();
        }
    }

    /// Converts the held charges to `limit`.
    fn adopt(&mut self, limit: &Limit) {
        if self.limit != *limit {
            for hold in &mut self.each {
                limit.convert(&mut hold.held, &self.limit);
            }
            self.limit = limit.clone();
        }
    }

    /// The same with all instants `back` nanoseconds earlier.
    pub(super) fn shifted_back(self, back: u64) -> Self {
        self.moved(|instant| instant.minus(back), |place| place.shifted_back(back))
    }

    /// The same with other instants.
    fn moved(mut self, instant: impl Fn(Timestamp) -> Timestamp, place: impl Fn(Place) -> Place) -> Self {
        for hold in &mut self.each {
            (hold.expires_at, hold.held.place) = (instant(hold.expires_at), place(hold.held.place));
        }
        for ended in self.ended.values_mut() {
            ended.forgotten_at = instant(ended.forgotten_at);
        }
        self.set_next_expiry();
        self.set_next_forgotten();
        self
    }

    /// Removes the hold at `index` and takes back all but `kept` of its hits. Places that it has kept are charged then.
    /// Also returns the units taken back.
    fn take_back(&mut self, index: usize, counter: &mut Counter, kept: u64, now: Timestamp) -> (Hold, u128) {
        let mut hold = self.each.remove(index);
        self.changes.remove(&hold.id);
        if hold.keeps_places(&self.limit) {
            hold.charge_places(&self.limit, counter, kept.min(hold.hits), now);
            return (hold, 0);
        }
        let units = self.limit.lighten(counter, &mut hold.held, kept, now);
        if units > 0 {
            let (earlier, later) = self.each.split_at_mut(index);
            earlier.iter_mut().for_each(|other| other.held.before_later(&hold.held, units));
            later.iter_mut().for_each(|other| other.held.after_earlier(&hold.held, units));
        }
        (hold, units)
    }

    fn end(&mut self, hold: Hold, settled: Option<Settled>) {
        let forgotten_at = hold.forgotten_at();
        self.remember(hold.id, Ended { answer: hold.answer, settled, forgotten_at, change: Uncompared(0) });
    }

    /// Remembers the settlement of an id that is unknown, or whose hold was released.
    fn end_unknown(&mut self, id: &HoldId, settled: Settled, now: Timestamp) {
        if let Some(ended) = self.ended.get_mut(id) {
            (ended.settled, ended.change) = (Some(settled), self.changes.next());
            return;
        }
        let Settled { remaining, reset_after, .. } = settled;
        let answer = HoldAnswer { verdict: Verdict::Pass, remaining, reset_after };
        self.id_bytes += id.bytes.len();
        let (settled, forgotten_at) = (Some(settled), now.after(REMEMBERED));
        self.remember(id.clone(), Ended { answer, settled, forgotten_at, change: Uncompared(0) });
    }

    /// Remembers a refund, as long as a charge of the same terms. The id must be unknown.
    pub(super) fn remember_refund(&mut self, terms: &HoldTerms, decision: &Decision, now: Timestamp) {
        let Decision { remaining, reset_after, .. } = *decision;
        let (outcome, reserved, uncharged) = (SettleOutcome::Open, 0, 0);
        let settled = Some(Settled { outcome, reserved, uncharged, remaining, reset_after });
        let forgotten_at = now.after(terms.ttl.min(HOLD_TTL_MAX)).after(REMEMBERED);
        self.id_bytes += terms.id.bytes.len();
        let answer = HoldAnswer::of(decision);
        self.remember(terms.id.clone(), Ended { answer, settled, forgotten_at, change: Uncompared(0) });
    }

    fn set_next_forgotten(&mut self) {
        let ended = self.ended.values().map(|ended| ended.forgotten_at);
        self.next_forgotten.0 = ended.min().unwrap_or(Timestamp::MAX);
    }

    fn set_next_expiry(&mut self) {
        let open = self.each.iter().filter(|hold| hold.state == HoldState::Open);
        self.next_expiry = open.map(|hold| hold.expires_at).min().unwrap_or(Timestamp::MAX);
    }
}

#[cfg(test)]
mod tests;
