//! A counter with its side data, in every store.

use std::{borrow::Cow, sync::Arc};

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Operation},
    packed_counter::{DecodeError, Now, PackedCounter, put_tagged, tagged},
    time::Timestamp,
};

use crate::{
    OwnTerms,
    holds::{Expired, Holds},
    operation::CounterDetails,
    reservation::{HOLDS_MAX, HoldId, Settled},
    side_data::{SideData, codec::SIDE_DATA_MIN, own::OwnLimitState},
};

pub(crate) mod draft;
mod interpreter;

pub use draft::{Reserve, reserve};

/// A counter, if it is not idle, and its side data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldCounter {
    pub(super) packed: Option<PackedCounter>,
    // Invariant: not empty.
    pub(super) side_data: Option<Box<SideData>>,
}

/// The room for more side data.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The bytes that more side data may take.
    pub(crate) bytes: usize,
    /// The ids of requests that a counter may retain.
    pub(crate) request_ids: usize,
    /// The bytes that limits of their own may take.
    pub(crate) own_bytes: usize,
}

impl Room {
    /// The room in a store that sends the whole value of a counter with each change: no bound but that of each counter.
    pub const OF_VALUE: Self = Self { bytes: usize::MAX, request_ids: 4_096, own_bytes: usize::MAX };
    /// No room.
    pub(crate) const NONE: Self = Self { bytes: 0, request_ids: 0, own_bytes: 0 };
    /// The ids of requests that a counter in memory may retain. All of them are looked at for each backup.
    pub(super) const REQUEST_IDS_MAX: usize = 65_536;

    /// Whether `more` holds of a counter have room, which take so many bytes and have this id.
    fn has(self, holds: Option<&Holds>, id: &HoldId, more: usize, bytes: usize) -> bool {
        let request_ids =
            if id.is_of_request() { holds.map_or(0, |holds| holds.request_ids) + more } else { 0 };
        let is_in_bounds =
            holds.map_or(0, Holds::weighing) + more <= HOLDS_MAX && request_ids <= self.request_ids;
        more == 0 || (is_in_bounds && bytes <= self.bytes)
    }
}

impl HeldCounter {
    /// The holds.
    pub(super) fn holds(&self) -> Option<&Holds> {
        self.side_data.as_ref()?.holds.as_deref()
    }

    fn side_data(&self) -> Option<&SideData> {
        self.side_data.as_deref()
    }

    /// The limit of its own that decides at `now`.
    pub fn own_terms(&self, now: Timestamp) -> Option<&OwnTerms> {
        self.side_data()?.own_terms(now)
    }

    /// The limit of its own as it applies at `now`; `None` if there is none and none was removed lately.
    pub(super) fn own_limit_state(&self, now: Timestamp) -> Option<OwnLimitState> {
        self.side_data()?.own.as_ref().map(|own| own.state(now))
    }

    /// What a peek does not tell of this counter, which is unpacked to `counter`.
    pub(super) fn details(&self, limit: &Limit, counter: &Counter, now: Timestamp) -> CounterDetails {
        CounterDetails {
            holds: Arc::new(self.holds().map(|holds| holds.list(now)).unwrap_or_default()),
            penalty: limit.penalty_state(counter, now),
            subscribers: None,
            own_limit: self.own_limit_state(now),
        }
    }

    /// The hits that are leased to other replicas.
    pub(super) fn leased(&self) -> u64 {
        self.side_data().map_or(0, |side_data| side_data.leased)
    }

    /// Drops what the counter has counted.
    fn reset(&mut self) {
        self.packed = None;
        if let Some(side_data) = &mut self.side_data {
            side_data.reset();
        }
        self.side_data.take_if(|side_data| side_data.is_empty());
    }

    /// Takes the holds until [`HeldCounter::put_holds`].
    fn take_holds(&mut self) -> Option<Box<Holds>> {
        self.side_data.as_mut()?.holds.take()
    }

    fn put_holds(&mut self, holds: Box<Holds>) {
        if !holds.is_empty() {
            self.side_data.get_or_insert_default().holds = Some(holds);
        }
        self.side_data.take_if(|side_data| side_data.is_empty());
    }

    /// Whether an absent counter would answer differently.
    pub(super) fn is_in_use(&self, now: Timestamp) -> bool {
        self.packed.as_ref().is_some_and(|packed| now < packed.idle_at())
    }

    /// The penalties in the record.
    pub fn penalties(&self) -> u32 {
        self.packed.as_ref().map_or(0, PackedCounter::penalties)
    }

    /// Whether there is a record of refusals.
    pub(super) fn has_record(&self) -> bool {
        self.packed.as_ref().is_some_and(PackedCounter::has_record)
    }

    /// The bytes that the counter takes on the heap, without its side data.
    pub(super) fn packed_heap_bytes(&self) -> usize {
        self.packed.as_ref().map_or(0, PackedCounter::heap_bytes)
    }

    /// The bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.packed_heap_bytes() + self.side_data.as_ref().map_or(0, |side_data| side_data.size().bytes)
    }

    /// A copy of the counter, corrected if it is ahead of the clock.
    pub(super) fn counter(&self, limit: &Limit, now: Now) -> Counter {
        self.packed.as_ref().map_or_else(|| limit.fresh(), |packed| packed.corrected(limit, now))
    }

    /// Merges pending usage, and ends holds that have expired. Returns whether that changed the counter.
    pub fn catch_up(&mut self, limit: &Limit, now: Now) -> (bool, Expired) {
        let mut expired = Expired::default();
        let has_pending = self.absorb_pending(limit, now);
        let Self { packed, side_data } = self;
        let Some(holds) = side_data.as_mut().and_then(|side_data| side_data.holds.as_mut()) else {
            return (has_pending, expired);
        };
        let has_moved = correct(holds, now);
        let is_changed = has_moved || holds.is_due(now.now);
        if is_changed {
            change(packed, limit, now, |counter| {
                expired = holds.expire(limit, counter, now.now);
                peek(limit, counter, now)
            });
        }
        (has_pending || is_changed, expired)
    }

    fn absorb_pending(&mut self, limit: &Limit, now: Now) -> bool {
        let pending = self.side_data.as_mut().map(|side_data| std::mem::take(&mut side_data.pending));
        let pending = pending.filter(|pending| !pending.is_empty());
        self.side_data.take_if(|side_data| side_data.is_empty());
        let Some(pending) = pending else { return false };
        self.update(limit, now, |limit, counter| {
            for usage in pending.iter().filter(|usage| !usage.is_idle(now.now)) {
                let consumed = usage.packed.counter(limit);
                let base = usage.base.as_ref().map_or_else(|| limit.fresh(), |base| base.counter(limit));
                limit.absorb(counter, &limit.since(&consumed, &base, now.now), now.now);
            }
            peek(limit, counter, now)
        });
        true
    }

    /// Forgets side data that no longer changes an answer.
    pub(super) fn forget_side_data(&mut self, now: Timestamp) {
        if let Some(side_data) = &mut self.side_data {
            side_data.forget(now);
        }
        self.side_data.take_if(|side_data| side_data.is_empty());
    }

    /// The limit of the counter alone, without the places that its holds keep.
    pub(super) fn limit_without_holds<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        self.holds().map_or(Cow::Borrowed(limit), |holds| holds.limit_without_holds(limit))
    }

    /// Applies `decide` to the counter and its limit. The holds observe the change.
    pub fn update(
        &mut self,
        limit: &Limit,
        now: Now,
        decide: impl FnOnce(&Limit, &mut Counter) -> Decision,
    ) -> Decision {
        match self.take_holds() {
            None => change(&mut self.packed, limit, now, |counter| decide(limit, counter)),
            Some(holds) => {
                let decide = |holds: &mut Holds, counter: &mut Counter| {
                    (decide(&holds.limit_without_holds(limit), counter), ())
                };
                self.change_both(holds, limit, now, decide).0
            }
        }
    }

    /// Refunds hits: those of calls before those that are held.
    pub(super) fn refund(&mut self, limit: &Limit, hits: u64, now: Now) -> Decision {
        let Some(holds) = self.take_holds() else {
            return change(&mut self.packed, limit, now, |counter| {
                limit.decide(counter, now.now, Operation::Refund(hits))
            });
        };
        let refund =
            |holds: &mut Holds, counter: &mut Counter| (holds.refund(limit, counter, hits, now.now), ());
        self.change_both(holds, limit, now, refund).0
    }

    /// Settles the hold of this id at `actual` hits. If the id is unknown, the hits are charged, and the settlement is
    /// retained if there is room.
    pub(super) fn settle(
        &mut self,
        limit: &Limit,
        id: &HoldId,
        actual: u64,
        now: Now,
        room: Room,
    ) -> Settled {
        let bytes = Holds::bytes_of_one(id);
        self.forget_side_data(now.now);
        let has_room = room.has(self.holds(), id, 1, bytes);
        let is_known = self.holds().is_some_and(|holds| holds.answer(id).is_some());
        let holds = self.take_holds().unwrap_or_else(|| Box::new(Holds::new(limit)));
        let (_, settled) = self.change_both(holds, limit, now, |holds, counter| {
            let settled = holds.settle(limit, counter, id, actual, now.now);
            (peek(&holds.limit_without_holds(limit), counter, now), settled)
        });
        if !is_known
            && !has_room
            && let Some(mut holds) = self.take_holds()
        {
            holds.forget_ended(id);
            self.put_holds(holds);
        }
        settled
    }

    /// Takes back what one attempt holds with this id, and forgets it. Returns whether there was such a hold.
    pub(super) fn withdraw(&mut self, limit: &Limit, id: &HoldId, attempt: u64, now: Now) -> bool {
        let Some(holds) = self.take_holds() else { return false };
        let withdraw = |holds: &mut Holds, counter: &mut Counter| {
            let was_held = holds.withdraw(counter, id, attempt, now.now);
            (peek(&holds.limit_without_holds(limit), counter, now), was_held)
        };
        self.change_both(holds, limit, now, withdraw).1
    }

    /// Adds what another replica has made of `base`, an earlier state of this counter, until `there`. Without `room`,
    /// what is added stays charged, and its holds are unknown.
    pub(super) fn absorb(&mut self, there: Self, base: Self, now: Now, room: Room) {
        let holds = self.take_holds();
        let known = holds.as_deref().or(there.holds()).or(base.holds());
        let Some(limit) = known.map(|holds| holds.limit().clone()) else { return };
        let has_room = there.holds().is_none_or(|holds| holds.bytes() <= room.bytes);
        let there = there.unpacked(&limit);
        let base = base.unpacked(&limit);
        let holds = holds.unwrap_or_else(|| Box::new(Holds::new(&limit)));
        self.change_both(holds, &limit, now, |holds, counter| {
            holds.absorb(counter, there, base, has_room, now.now);
            (peek(&limit, counter, now), ())
        });
    }

    fn unpacked(mut self, limit: &Limit) -> (Counter, Holds) {
        let holds = self.take_holds().map_or_else(|| Holds::new(limit), |holds| *holds);
        (self.packed.map_or_else(|| limit.fresh(), |packed| packed.counter(limit)), holds)
    }

    /// Applies `change` to the counter and its `holds`, both corrected if they are ahead of the clock. The holds observe
    /// the counter before and after it.
    fn change_both<R>(
        &mut self,
        mut holds: Box<Holds>,
        limit: &Limit,
        now: Now,
        change_both: impl FnOnce(&mut Holds, &mut Counter) -> (Decision, R),
    ) -> (Decision, R) {
        correct(&mut holds, now);
        let mut result = None;
        let decision = change(&mut self.packed, limit, now, |counter| {
            holds.observe(limit, counter, now.now);
            let (decision, more) = change_both(&mut holds, counter);
            holds.observe(limit, counter, now.now);
            result = Some(more);
            decision
        });
        self.put_holds(holds);
        (decision, result.expect("`change` calls the closure"))
    }
}

/// Methods for a store that keeps the counter and its side data as one value.
impl HeldCounter {
    /// Decodes what [`HeldCounter::write`] has written.
    pub fn read(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut counter = Self::default();
        let mut side_data = SideData::default();
        while !bytes.is_empty() {
            let (tag, fields, rest) = tagged(bytes).ok_or(DecodeError::Malformed)?;
            bytes = rest;
            // Ages since the epoch are absolute instants.
            let clock = Timestamp::EPOCH.into();
            match tag {
                SIDE_DATA_MIN.. => side_data.read(tag, fields, clock)?,
                _ => counter.packed = Some(PackedCounter::read(tag, fields, clock)?),
            }
        }
        counter.side_data = side_data.boxed();
        Ok(counter)
    }

    /// Encodes the counter and its side data. Nothing if there is neither.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(packed) = &self.packed {
            let mut fields = Vec::new();
            let tag = packed.write(Timestamp::EPOCH, &mut fields);
            put_tagged(&mut bytes, tag, &fields);
        }
        if let Some(side_data) = &self.side_data {
            side_data.write(Timestamp::EPOCH, |tag, fields| put_tagged(&mut bytes, tag, fields));
        }
        bytes
    }

    /// How many ids of ended holds were forgotten because there were too many, since the last call.
    pub fn take_ids_forgotten(&mut self) -> usize {
        let holds = self.side_data.as_mut().and_then(|side_data| side_data.holds.as_mut());
        holds.map_or(0, |holds| holds.take_forgotten_early())
    }

    /// Whether there is neither a counter nor side data.
    pub fn is_absent(&self) -> bool {
        self.packed.is_none() && self.side_data.is_none()
    }

    /// The instant from which an absent counter gives the answers of this one.
    pub fn idle_at(&self) -> Timestamp {
        let counter = self.packed.as_ref().map(PackedCounter::idle_at);
        let side_data = self.side_data.as_ref().and_then(|side_data| side_data.forgotten_at());
        counter.max(side_data).unwrap_or(Timestamp::EPOCH)
    }

    /// Drops what answers the same when it is absent.
    pub fn forget_idle(&mut self, now: Timestamp) {
        self.packed.take_if(|packed| packed.idle_at() <= now);
        self.forget_side_data(now);
    }

    /// Whether a hold has expired and still weighs.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.holds().is_some_and(|holds| holds.is_due(now))
    }
}

/// Applies `decide` to a counter, after it is corrected if it is ahead of the clock. A fresh one that stays idle is not
/// stored.
fn change(
    packed: &mut Option<PackedCounter>,
    limit: &Limit,
    now: Now,
    decide: impl FnOnce(&mut Counter) -> Decision,
) -> Decision {
    match packed {
        Some(packed) => packed.change(limit, now, decide),
        None => {
            let (decision, new) = PackedCounter::first(limit, now.now, decide);
            *packed = new;
            decision
        }
    }
}

/// Corrects holds that are ahead of the clock. Returns whether their counter has to be corrected.
fn correct(holds: &mut Holds, Now { now, given_up }: Now) -> bool {
    given_up.is_some_and(|at| holds.clamp_ahead(at, now))
}

fn peek(limit: &Limit, counter: &mut Counter, now: Now) -> Decision {
    limit.decide(counter, now.now, Operation::Peek)
}

/// What is taken back of an operation without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    /// Nothing: the counter cannot do without what it has grown by.
    Nothing,
    /// The record of a refusal, which the decision no longer depends on.
    Record,
    /// The hits of a charge.
    Charge,
}
