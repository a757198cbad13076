//! Holds: the reservations of one counter. A hold is a charge with an id and an expiry.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use changes::{HoldChanges, Uncompared};
use hold::{EndedHold, Hold, HoldAnswer, HoldState};
use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{ChargePosition, Counter, Decision, HeldCharge, Limit, Operation, Verdict},
    time::Timestamp,
};

use crate::reservation::{
    HOLD_TTL_MAX, HoldId, HoldTerms, LISTED_HOLDS_MAX, OnExpiry, OpenHold, OpenHolds, SettleOutcome, Settled,
};

mod changes;
pub(crate) mod codec;
pub(crate) mod copies;
mod hold;

pub use hold::RETENTION;

/// The ids of reservations that a counter retains, those of open holds included, before it forgets those that have
/// ended: the oldest of the settled ones first.
pub(super) const IDS_MAX: usize = 4_096;

/// So many ended holds are forgotten at once, so that one more costs little.
const FORGOTTEN_AT_ONCE: usize = 256;
/// With more than [`FORGOTTEN_AT_ONCE`] ended holds, expired ones are forgotten only so often: each has to be looked
/// at.
const FORGET_PAUSE: Duration = Duration::from_secs(1);

/// How many holds have expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Holds whose hits were given back.
    pub released: usize,
    /// Holds whose hits stay charged.
    pub charged: usize,
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
    #[serde(with = "hold::oldest_first")]
    ended: BTreeMap<HoldId, EndedHold>,
    // Invariant: no open hold expires earlier.
    #[serde(skip)]
    next_expiry: Timestamp,
    // Invariant: no ended hold is forgotten earlier.
    #[serde(skip)]
    next_forgotten: Uncompared<Timestamp>,
    // The bytes of all ids.
    #[serde(skip)]
    id_bytes: usize,
    // The ended holds with ids of requests. They are not forgotten early.
    #[serde(skip)]
    pub(super) request_ids: usize,
    #[serde(skip)]
    changes: HoldChanges,
    // Ended holds that were forgotten because there were too many.
    #[serde(skip)]
    forgotten_early: Uncompared<usize>,
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
            request_ids: 0,
            changes: HoldChanges::default(),
            forgotten_early: Uncompared(0),
        }
    }

    /// The limit by which they were observed last.
    pub(super) fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether nothing is held or retained.
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty() && self.ended.is_empty()
    }

    fn each_open(&self) -> impl Iterator<Item = &Hold> {
        self.each.iter().filter(|hold| hold.state == HoldState::Open)
    }

    /// The number of open holds.
    pub(super) fn open(&self) -> usize {
        self.each_open().count()
    }

    /// The open holds as of `now`.
    pub(super) fn list(&self, now: Timestamp) -> OpenHolds {
        let mut open: Vec<&Hold> = self.each_open().collect();
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

    /// The number of holds that still weigh something.
    pub(super) fn weighing(&self) -> usize {
        self.each.len()
    }

    /// The instant from which none is retained.
    pub(super) fn forgotten_at(&self) -> Timestamp {
        let each = self.each.iter().map(Hold::forgotten_at);
        let ended = self.ended.values().map(|ended| ended.forgotten_at);
        each.chain(ended).max().unwrap_or(Timestamp::EPOCH)
    }

    /// Whether a hold has expired.
    #[inline]
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next_expiry <= now
    }

    /// The answer to the reservation of this id, if it is known.
    pub(super) fn answer(&self, id: &HoldId) -> Option<Decision> {
        let held = self.each.iter().find(|hold| hold.id == *id).map(|hold| hold.answer);
        held.or_else(|| self.ended.get(id).map(|ended| ended.answer)).map(HoldAnswer::decision)
    }

    /// Whether the hold of this id is open: neither settled nor expired.
    pub(super) fn is_open(&self, id: &HoldId) -> bool {
        self.each_open().any(|hold| hold.id == *id)
    }

    /// The limit of the counter alone, without the places that open holds keep.
    pub(super) fn limit_without_holds<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        let retained = self.each.iter().filter(|hold| hold.keeps_places(limit)).map(|hold| hold.hits);
        match retained.fold(0, u64::saturating_add) {
            0 => Cow::Borrowed(limit),
            retained => Cow::Owned(limit.less(retained)),
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
        let open = self.each_open().filter(|hold| !hold.keeps_places(limit));
        let held: Vec<HeldCharge> = open.map(|hold| hold.held).collect();
        self.limit_without_holds(limit).refund_beside(counter, &held, hits, now)
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
        held: HeldCharge,
        decision: &Decision,
        now: Timestamp,
    ) {
        // Another replica may have sent the terms.
        let ttl = terms.ttl.min(HOLD_TTL_MAX);
        let expires_at = now.after(ttl);
        self.id_bytes += id.bytes.len();
        self.next_expiry = self.next_expiry.min(expires_at);
        let attempt = terms.attempt;
        let on_expiry = terms.on_expiry;
        let answer = HoldAnswer::from_decision(decision);
        let state = HoldState::Open;
        let copied = Uncompared(0);
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
                    let forgotten_at = hold.forgotten_at();
                    self.remember(hold.id, hold.answer, None, forgotten_at);
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
        if let Some(EndedHold { settled: Some(settled), .. }) = self.ended.get(id) {
            return *settled;
        }
        self.observe(limit, counter, now);
        let hold = self.each.iter().position(|hold| hold.id == *id);
        let hold = hold.map(|index| self.take_back(index, counter, actual, now).0);
        let reserved = hold.as_ref().map_or(0, |hold| hold.hits);
        let missing = actual.saturating_sub(reserved);
        let limit = self.limit_without_holds(limit);
        let (charged, _) = limit.charge_used(counter, missing, now);
        let left = limit.decide(counter, now, Operation::Peek);
        let outcome = match &hold {
            Some(hold) if hold.state == HoldState::Open => SettleOutcome::Open,
            Some(_) => SettleOutcome::Charged,
            None if self.ended.contains_key(id) => SettleOutcome::Released,
            None => SettleOutcome::Unknown,
        };
        let remaining = left.remaining;
        let reset_after = left.reset_after;
        let settled = Settled { outcome, reserved, uncharged: missing - charged, remaining, reset_after };
        match hold {
            Some(hold) => {
                let forgotten_at = hold.forgotten_at();
                self.remember(hold.id, hold.answer, Some(settled), forgotten_at);
            }
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
            if let ChargePosition::Instant(instant) = &mut hold.held.position
                && now < *instant
            {
                (*instant, has_moved) = (at, true);
            }
        }
        let latest = now.after(HOLD_TTL_MAX).after(RETENTION);
        for ended in self.ended.values_mut() {
            ended.forgotten_at = ended.forgotten_at.min(latest);
        }
        self.set_next_forgotten();
        self.set_next_expiry();
        has_moved
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

    /// The holds with other instants, and other ends of their windows.
    fn moved(
        mut self,
        instant: impl Fn(Timestamp) -> Timestamp,
        window_end: impl Fn(Timestamp) -> Timestamp,
    ) -> Self {
        for hold in &mut self.each {
            hold.expires_at = instant(hold.expires_at);
            match &mut hold.held.position {
                ChargePosition::Sum => {}
                ChargePosition::Window(end) => *end = window_end(*end),
                ChargePosition::Instant(at) => *at = instant(*at),
            }
        }
        for ended in self.ended.values_mut() {
            ended.forgotten_at = instant(ended.forgotten_at);
        }
        self.set_next_expiry();
        self.set_next_forgotten();
        self
    }

    /// Removes the hold at `index` and takes back all but `retained` of its hits. Places that it has retained are
    /// charged then. Also returns the units taken back.
    fn take_back(
        &mut self,
        index: usize,
        counter: &mut Counter,
        retained: u64,
        now: Timestamp,
    ) -> (Hold, u128) {
        let mut hold = self.each.remove(index);
        self.changes.remove(&hold.id);
        if hold.keeps_places(&self.limit) {
            hold.charge_places(&self.limit, counter, retained.min(hold.hits), now);
            return (hold, 0);
        }
        let units = self.limit.lighten(counter, &mut hold.held, retained, now);
        if units > 0 {
            let (earlier, later) = self.each.split_at_mut(index);
            earlier.iter_mut().for_each(|other| other.held.before_later(&hold.held, units));
            later.iter_mut().for_each(|other| other.held.after_earlier(&hold.held, units));
        }
        (hold, units)
    }

    fn set_next_expiry(&mut self) {
        let next = self.each_open().map(|hold| hold.expires_at).min();
        self.next_expiry = next.unwrap_or(Timestamp::MAX);
    }

    /// Forgets holds whose retention has ended.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let charged = self.each.iter().filter(|hold| hold.state == HoldState::Charged);
        let next = charged.map(Hold::forgotten_at).fold(self.next_forgotten.0, Timestamp::min);
        if now < next {
            return;
        }
        let id_bytes = &mut self.id_bytes;
        let request_ids = &mut self.request_ids;
        let changes = &mut self.changes;
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
            if !stays {
                *id_bytes -= id.bytes.len();
                *request_ids -= usize::from(id.is_of_request());
            }
            stays
        });
        self.set_next_forgotten();
        if self.ended.len() > FORGOTTEN_AT_ONCE {
            self.next_forgotten.0 = self.next_forgotten.0.max(now.after(FORGET_PAUSE));
        }
    }

    /// Forgets the oldest of the reservations that have ended, if there are too many. Those that are settled go first.
    /// Ids of requests are retained for their time, so that no repeated one is charged again.
    fn forget_oldest(&mut self) {
        let reservations = self.ended.len() - self.request_ids;
        let excess = (self.each.len() + reservations).saturating_sub(IDS_MAX).min(reservations);
        if excess < FORGOTTEN_AT_ONCE {
            return;
        }
        let age = |(id, ended): (&HoldId, &EndedHold)| (ended.settled.is_none(), ended.change.0, id.clone());
        let of_reservations = self.ended.iter().filter(|(id, _)| !id.is_of_request());
        let mut ended: Vec<_> = of_reservations.map(age).collect();
        ended.select_nth_unstable(excess - 1);
        ended[..excess].iter().for_each(|(_, _, id)| self.forget_ended(id));
        self.forgotten_early.0 += excess;
    }

    /// How many ended holds were forgotten because there were too many, since the last call.
    pub(super) fn take_forgotten_early(&mut self) -> usize {
        std::mem::take(&mut self.forgotten_early.0)
    }

    /// Retains a hold that has ended, and how it was settled. Its id counts already.
    fn remember(
        &mut self,
        id: HoldId,
        answer: HoldAnswer,
        settled: Option<Settled>,
        forgotten_at: Timestamp,
    ) {
        let change = self.changes.next();
        self.next_forgotten.0 = self.next_forgotten.0.min(forgotten_at);
        let of_request = usize::from(id.is_of_request());
        if self.ended.insert(id, EndedHold { answer, settled, forgotten_at, change }).is_none() {
            self.request_ids += of_request;
        }
        self.forget_oldest();
    }

    /// Forgets a hold that has ended.
    pub(super) fn forget_ended(&mut self, id: &HoldId) {
        if self.ended.remove(id).is_some() {
            self.id_bytes -= id.bytes.len();
            self.request_ids -= usize::from(id.is_of_request());
        }
    }

    /// Retains the settlement of an id that is unknown, or whose hold was released.
    fn end_unknown(&mut self, id: &HoldId, settled: Settled, now: Timestamp) {
        if let Some(ended) = self.ended.get_mut(id) {
            (ended.settled, ended.change) = (Some(settled), self.changes.next());
            return;
        }
        let Settled { remaining, reset_after, .. } = settled;
        let answer = HoldAnswer { verdict: Verdict::Pass, remaining, reset_after };
        self.id_bytes += id.bytes.len();
        self.remember(id.clone(), answer, Some(settled), now.after(RETENTION));
    }

    /// Retains a refund, as long as a charge of the same terms. The id must be unknown.
    pub(super) fn remember_refund(&mut self, terms: &HoldTerms, decision: &Decision, now: Timestamp) {
        let Decision { remaining, reset_after, .. } = *decision;
        let outcome = SettleOutcome::Open;
        let settled = Settled { outcome, reserved: 0, uncharged: 0, remaining, reset_after };
        let forgotten_at = now.after(terms.ttl.min(HOLD_TTL_MAX)).after(RETENTION);
        self.id_bytes += terms.id.bytes.len();
        self.remember(terms.id.clone(), HoldAnswer::from_decision(decision), Some(settled), forgotten_at);
    }

    fn set_next_forgotten(&mut self) {
        let ended = self.ended.values().map(|ended| ended.forgotten_at);
        self.next_forgotten.0 = ended.min().unwrap_or(Timestamp::MAX);
    }
}

#[cfg(test)]
mod tests;

/// The approximate memory of an entry of a tree without key and value, in bytes.
const TREE_ENTRY_BYTES: usize = 16;

impl Holds {
    /// The bytes that the first hold of a counter takes in addition to [`Holds::bytes_of_one`]: a vector begins with
    /// four places.
    pub(crate) const BYTES_OF_FIRST: usize = size_of::<Self>() + 2 * size_of::<Hold>();

    /// The approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let ended = size_of::<(HoldId, EndedHold)>() + TREE_ENTRY_BYTES;
        size_of::<Self>()
            + self.each.capacity() * size_of::<Hold>()
            + self.ended.len() * ended
            + self.id_bytes
            + self.changes.bytes()
    }

    /// The bytes that one more hold of this id takes.
    pub(crate) fn bytes_of_one(id: &HoldId) -> usize {
        // A vector grows to twice its length.
        2 * size_of::<Hold>() + size_of::<(HoldId, EndedHold)>() + TREE_ENTRY_BYTES + id.bytes.len()
    }

    fn with_bytes_of_ids(self) -> Self {
        let ids = self.each.iter().map(|hold| &hold.id).chain(self.ended.keys());
        let id_bytes = ids.map(|id| id.bytes.len()).sum();
        let request_ids = self.ended.keys().filter(|id| id.is_of_request()).count();
        Self { id_bytes, request_ids, ..self }
    }
}

/// The bytes that one more hold of this id takes.
pub fn id_bytes(id: &HoldId) -> usize {
    Holds::bytes_of_one(id)
}
