//! A counter with its holds, in every store, and the interpreter of the operations on both.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use crate::store::{holds::DecodedHolds, packed_counter::Decoded};
use crate::{
    algorithm::{Admission, Counter, Decision, Held, Limit, Operation},
    store::{
        Decisions, HOLDS_MAX, HoldId, HoldTerms, Reserved, Settled, UnknownId,
        holds::{Expired, Holds},
        leased_decision::decide_leased,
        operation::{CounterOperation, HoldOutcome, Outcome, Shown},
        packed_counter::{Now, PackedCounter},
    },
    time::Timestamp,
};

/// A counter, if it is not idle, and its holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldCounter {
    packed: Option<PackedCounter>,
    // Invariant: not empty.
    holds: Option<Box<Holds>>,
}

/// The result of decoding a counter with its holds.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) enum DecodedHeldCounter {
    Counter(HeldCounter),
    /// A part of it is unknown to this version.
    Unknown,
    Malformed,
}

/// The room for more holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The bytes that they may take.
    pub(crate) bytes: usize,
}

/// A counter has too many holds, or all holds take too much memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exhausted;

/// What one check of a call reserves.
#[derive(Debug)]
pub(crate) struct Reserve<'a> {
    /// The index of its counter.
    pub(crate) counter: usize,
    pub(crate) limit: &'a Limit,
    /// The id in it distinguishes the checks of one counter.
    pub(crate) terms: HoldTerms,
    pub(crate) hits: u64,
    /// Hits of the counter that other replicas have borrowed.
    pub(crate) leased: u64,
}

/// The decisions on the reservation of a call, before anything is held.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(super) decisions: SmallVec<[Decision; 2]>,
    // For each counter, what it was and what it would be; `None` if nothing new is charged.
    counters: SmallVec<[Option<(Counter, Counter)>; 2]>,
    new: Vec<NewHold>,
    // Whether a hold of the id has ended.
    has_ended: bool,
}

/// A hold that is added if the call passes.
#[derive(Debug)]
struct NewHold {
    // The index of its check.
    check: usize,
    hits: u64,
    held: Held,
}

impl Room {
    /// No bound but that of each counter.
    pub(crate) const UNBOUNDED: Self = Self { bytes: usize::MAX };
    /// No room.
    pub(crate) const NONE: Self = Self { bytes: 0 };

    fn has(self, holds: Option<&Holds>, more: usize, bytes: usize) -> bool {
        holds.map_or(0, Holds::weighing) + more <= HOLDS_MAX && bytes <= self.bytes
    }
}

impl HeldCounter {
    /// A counter and its holds.
    pub(super) fn new(packed: Option<PackedCounter>, holds: Option<Box<Holds>>) -> Self {
        Self { packed, holds }
    }

    /// The counter and its holds.
    pub(super) fn into_parts(self) -> (Option<PackedCounter>, Option<Box<Holds>>) {
        (self.packed, self.holds)
    }

    /// The holds.
    pub(super) fn holds(&self) -> Option<&Holds> {
        self.holds.as_deref()
    }

    /// Whether an absent counter would answer differently.
    pub(super) fn is_in_use(&self, now: Timestamp) -> bool {
        self.packed.as_ref().is_some_and(|packed| now < packed.idle_at())
    }

    /// The penalties that are remembered.
    pub(crate) fn penalties(&self) -> u32 {
        self.packed.as_ref().map_or(0, PackedCounter::penalties)
    }

    /// The bytes that the counter takes on the heap, without its holds.
    pub(super) fn packed_heap_bytes(&self) -> usize {
        self.packed.as_ref().map_or(0, PackedCounter::heap_bytes)
    }

    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.packed_heap_bytes() + self.holds().map_or(0, Holds::bytes)
    }

    /// A copy of the counter, corrected if it is ahead of the clock.
    pub(super) fn counter(&self, limit: &Limit, now: Now) -> Counter {
        self.packed.as_ref().map_or_else(|| limit.fresh(), |packed| packed.corrected(limit, now))
    }

    /// Ends holds that have expired, and returns whether that changed the counter.
    pub(crate) fn expire(&mut self, limit: &Limit, now: Now) -> (bool, Expired) {
        let (Self { packed, holds: Some(holds) }, mut expired) = (self, Expired::default()) else {
            return Default::default();
        };
        let has_moved = correct(holds, now);
        let is_changed = has_moved || holds.is_due(now.now);
        if is_changed {
            change(packed, limit, now, |counter| {
                expired = holds.expire(limit, counter, now.now);
                peek(limit, counter, now)
            });
        }
        (is_changed, expired)
    }

    /// Forgets holds whose time to be remembered has passed.
    pub(super) fn forget_holds(&mut self, now: Timestamp) {
        if let Some(holds) = &mut self.holds {
            holds.forget(now);
        }
        self.holds.take_if(|holds| holds.is_empty());
    }

    /// The limit of the counter alone, without what its holds keep beside it.
    pub(super) fn beside<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        self.holds().map_or(Cow::Borrowed(limit), |holds| holds.beside(limit))
    }

    /// Applies `decide` to the counter and its limit. The holds observe the change.
    pub(crate) fn update(
        &mut self,
        limit: &Limit,
        now: Now,
        decide: impl FnOnce(&Limit, &mut Counter) -> Decision,
    ) -> Decision {
        match self.holds.take() {
            None => change(&mut self.packed, limit, now, |counter| decide(limit, counter)),
            Some(holds) => {
                let decide =
                    |holds: &mut Holds, counter: &mut Counter| (decide(&holds.beside(limit), counter), ());
                self.change_both(holds, limit, now, decide).0
            }
        }
    }

    /// Refunds hits: those of calls before those that are held.
    pub(super) fn refund(&mut self, limit: &Limit, hits: u64, now: Now) -> Decision {
        let Some(holds) = self.holds.take() else {
            return change(&mut self.packed, limit, now, |counter| {
                limit.decide(counter, now.now, Operation::Refund(hits))
            });
        };
        let refund =
            |holds: &mut Holds, counter: &mut Counter| (holds.refund(limit, counter, hits, now.now), ());
        self.change_both(holds, limit, now, refund).0
    }

    /// Applies an operation on one counter, after its holds that are due have ended. Returns whether it has changed the
    /// counter.
    pub(crate) fn apply(
        &mut self,
        limit: &Limit,
        operation: &CounterOperation,
        now: Now,
        room: Room,
    ) -> (Outcome, bool) {
        match operation {
            CounterOperation::Decide(operation) => {
                let decision = match *operation {
                    Operation::Refund(hits) => self.refund(limit, hits, now),
                    Operation::Peek | Operation::Charge(_) => {
                        self.update(limit, now, |limit, counter| limit.decide(counter, now.now, *operation))
                    }
                };
                let passes = decision.verdict.passes();
                let outcome = Outcome::of(decision, limit.charged(*operation, passes));
                (outcome, limit.is_changed_by(*operation, passes))
            }
            CounterOperation::Set(_) => {
                *self = Self::default();
                (
                    Outcome::of(
                        self.update(limit, now, |limit, counter| operation.apply(limit, counter, now.now)),
                        0,
                    ),
                    true,
                )
            }
            CounterOperation::Undo(_) | CounterOperation::Absorb(_) => (
                Outcome::of(
                    self.update(limit, now, |limit, counter| operation.apply(limit, counter, now.now)),
                    0,
                ),
                true,
            ),
            CounterOperation::Reserve { terms, hits } => {
                let terms = HoldTerms::clone(terms);
                let each = [Reserve { counter: 0, limit, terms, hits: *hits, leased: 0 }];
                let counters = std::slice::from_mut(self);
                match reserve(&each, counters, now, room, |decisions| !decisions[0].verdict.passes()) {
                    Ok(reserved) => (Outcome::reserved(&reserved)[0].clone(), reserved.is_held),
                    Err(Exhausted) => (Outcome::exhausted(), false),
                }
            }
            CounterOperation::Settle { id, actual, unknown } => {
                let room = if *unknown == UnknownId::Remember { room } else { Room::NONE };
                (Outcome::settled(self.settle(limit, id, *actual, now, room)), true)
            }
            CounterOperation::RefundOnce { terms, hits } => self.refund_once(limit, terms, *hits, now, room),
            CounterOperation::Show => {
                let holds = self.holds().map(|holds| holds.list(now.now)).unwrap_or_default();
                let penalty = limit.penalty_state(&self.counter(limit, now), now.now);
                let shown = Shown { holds: Arc::new(holds), penalty, subscribers: None };
                let peek = self.update(limit, now, |limit, counter| peek(limit, counter, now));
                (Outcome { hold: HoldOutcome::Shown(Arc::new(shown)), ..Outcome::of(peek, 0) }, false)
            }
            CounterOperation::Withdraw { id, attempt } => {
                let was_held = self.withdraw(limit, id, *attempt, now);
                (
                    Outcome::of(self.update(limit, now, |limit, counter| peek(limit, counter, now)), 0),
                    was_held,
                )
            }
        }
    }

    /// Refunds hits, unless the id is known, and remembers the id.
    fn refund_once(
        &mut self,
        limit: &Limit,
        terms: &HoldTerms,
        hits: u64,
        now: Now,
        room: Room,
    ) -> (Outcome, bool) {
        self.forget_holds(now.now);
        if let Some(known) = self.holds().and_then(|holds| holds.answer(&terms.id)) {
            return (Outcome::of(known.decision, 0), false);
        }
        if !room.has(self.holds(), 1, Holds::bytes_of_one(&terms.id)) {
            return (Outcome::exhausted(), false);
        }
        let decision = Decision { receipt: None, ..self.refund(limit, hits, now) };
        let holds = self.holds.get_or_insert_with(|| Box::new(Holds::new(limit)));
        holds.remember_refund(terms, &decision, now.now);
        (Outcome::of(decision, 0), true)
    }

    /// Settles the hold of this id at `actual` hits. If the id is unknown, the hits are charged, and the settlement is
    /// remembered if there is room.
    pub(super) fn settle(
        &mut self,
        limit: &Limit,
        id: &HoldId,
        actual: u64,
        now: Now,
        room: Room,
    ) -> Settled {
        let bytes = Holds::bytes_of_one(id);
        self.forget_holds(now.now);
        let has_room = room.has(self.holds(), 1, bytes);
        let is_known = self.holds().is_some_and(|holds| holds.answer(id).is_some());
        let holds = self.holds.take().unwrap_or_else(|| Box::new(Holds::new(limit)));
        let (_, settled) = self.change_both(holds, limit, now, |holds, counter| {
            let settled = holds.settle(limit, counter, id, actual, now.now);
            (peek(&holds.beside(limit), counter, now), settled)
        });
        if let Some(holds) = self.holds.as_mut().filter(|_| !is_known && !has_room) {
            holds.forget_ended(id);
        }
        self.holds.take_if(|holds| holds.is_empty());
        settled
    }

    /// Takes back what one attempt holds with this id, and forgets it. Returns whether there was such a hold.
    pub(super) fn withdraw(&mut self, limit: &Limit, id: &HoldId, attempt: u64, now: Now) -> bool {
        let Some(holds) = self.holds.take() else { return false };
        let withdraw = |holds: &mut Holds, counter: &mut Counter| {
            let was_held = holds.withdraw(counter, id, attempt, now.now);
            (peek(&holds.beside(limit), counter, now), was_held)
        };
        self.change_both(holds, limit, now, withdraw).1
    }

    /// Adds what another replica has made of `base`, an earlier state of this counter, until `there`. Without `room`,
    /// what is added stays charged, and its holds are unknown.
    pub(super) fn absorb(&mut self, there: Self, base: Self, now: Now, room: Room) {
        let holds = self.holds.take();
        let known = holds.as_ref().or(there.holds.as_ref()).or(base.holds.as_ref());
        let Some(limit) = known.map(|holds| holds.limit().clone()) else { return };
        let has_room = there.holds().is_none_or(|holds| holds.bytes() <= room.bytes);
        let (there, base) = (there.unpacked(&limit), base.unpacked(&limit));
        let holds = holds.unwrap_or_else(|| Box::new(Holds::new(&limit)));
        self.change_both(holds, &limit, now, |holds, counter| {
            holds.absorb(counter, there, base, has_room, now.now);
            (peek(&limit, counter, now), ())
        });
    }

    fn unpacked(self, limit: &Limit) -> (Counter, Holds) {
        let counter = self.packed.map_or_else(|| limit.fresh(), |packed| packed.counter(limit));
        (counter, self.holds.map_or_else(|| Holds::new(limit), |holds| *holds))
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
        self.holds = Some(holds).filter(|holds| !holds.is_empty());
        (decision, result.expect("`change` calls the closure"))
    }
}

/// For a store that keeps both as one value.
#[cfg(feature = "redis")]
impl HeldCounter {
    /// Decodes a counter from its tag and fields, and its holds.
    pub(crate) fn read(counter: Option<(u8, &[u8])>, holds: Option<&[u8]>) -> DecodedHeldCounter {
        // Ages since the epoch are absolute instants.
        let packed = match counter.map(|(tag, fields)| PackedCounter::read(tag, fields, Timestamp::EPOCH)) {
            None => None,
            Some(Decoded::Counter(packed)) => Some(packed),
            Some(Decoded::Unknown) => return DecodedHeldCounter::Unknown,
            Some(Decoded::Malformed) => return DecodedHeldCounter::Malformed,
        };
        let holds = match holds.map(|bytes| Holds::read(bytes, Timestamp::EPOCH)) {
            None => None,
            Some(DecodedHolds::Holds(holds)) => Some(Box::new(holds)).filter(|holds| !holds.is_empty()),
            Some(DecodedHolds::Unknown) => return DecodedHeldCounter::Unknown,
            Some(DecodedHolds::Malformed) => return DecodedHeldCounter::Malformed,
        };
        DecodedHeldCounter::Counter(Self { packed, holds })
    }

    /// The tag and the encoded fields of the counter, if there is one.
    pub(crate) fn write_counter(&self) -> Option<(u8, Vec<u8>)> {
        let mut fields = Vec::new();
        let tag = self.packed.as_ref()?.write(Timestamp::EPOCH, &mut fields);
        Some((tag, fields))
    }

    /// The encoded holds, if there are any.
    pub(crate) fn write_holds(&self) -> Option<Vec<u8>> {
        self.holds().map(|holds| holds.write(Timestamp::EPOCH))
    }

    /// How many ids of ended holds were forgotten because there were too many, since the last call.
    pub(crate) fn take_ids_forgotten(&mut self) -> usize {
        self.holds.as_mut().map_or(0, |holds| holds.take_forgotten_early())
    }

    /// Whether there is neither a counter nor a hold.
    pub(crate) fn is_absent(&self) -> bool {
        self.packed.is_none() && self.holds.is_none()
    }

    /// The instant from which an absent counter answers the same.
    pub(crate) fn idle_at(&self) -> Timestamp {
        let counter = self.packed.as_ref().map(PackedCounter::idle_at);
        counter.max(self.holds().map(Holds::forgotten_at)).unwrap_or(Timestamp::EPOCH)
    }

    /// Drops what answers the same when it is absent.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) {
        self.packed.take_if(|packed| packed.idle_at() <= now);
        self.forget_holds(now);
    }

    /// Whether a hold has expired and still weighs.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.holds().is_some_and(|holds| holds.is_due(now))
    }
}

/// Holds the charges of a call in its counters, whose holds that are due have ended, or none of them if `refused` says
/// that the decisions refuse the call. A known id is answered as the first time and charges nothing. A refused check
/// that does not refuse the call holds no hits.
pub(crate) fn reserve(
    each: &[Reserve<'_>],
    counters: &mut [HeldCounter],
    now: Now,
    room: Room,
    refused: impl Fn(&[Decision]) -> bool,
) -> Result<Reserved, Exhausted> {
    let draft = Draft::new(each, counters, now);
    if refused(&draft.decisions) {
        return Ok(draft.not_held(each, counters, now));
    }
    draft.require_room(each, counters, now, room)?;
    draft.charge(each, counters, now);
    Ok(draft.hold(each, counters, now))
}

impl Draft {
    /// Decides what each check reserves.
    pub(super) fn new(each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) -> Self {
        counters.iter_mut().for_each(|counter| counter.forget_holds(now.now));
        let mut draft = Self {
            decisions: SmallVec::new(),
            counters: SmallVec::from_elem(None, counters.len()),
            new: Vec::new(),
            has_ended: false,
        };
        for (check, Reserve { counter, limit, terms, hits, leased }) in each.iter().enumerate() {
            let known = counters[*counter].holds().and_then(|holds| holds.answer(&terms.id));
            if let Some(known) = known {
                draft.decisions.push(known.decision);
                draft.has_ended |= !known.is_open;
                continue;
            }
            let (first, before) = draft.counters[*counter].take().unwrap_or_else(|| {
                let counter = counters[*counter].counter(limit, now);
                (counter.clone(), counter)
            });
            let mut after = before.clone();
            let limit = &*counters[*counter].beside(limit);
            let decision =
                decide_leased(limit, &mut after, Operation::Charge(*hits), *leased, now.now).decision;
            let passes = decision.verdict.passes();
            let (hits, after) = if passes { (*hits, after) } else { (0, before.clone()) };
            draft.new.push(NewHold { check, hits, held: limit.held(&before, &after, hits, now.now) });
            draft.counters[*counter] = Some((first, after));
            // What is held is taken back by its id only.
            draft.decisions.push(Decision { receipt: None, ..decision });
        }
        draft
    }

    /// The answer if nothing is held: what is left without the call.
    pub(super) fn not_held(mut self, each: &[Reserve<'_>], counters: &[HeldCounter], now: Now) -> Reserved {
        for (Reserve { counter, limit, leased, .. }, decision) in each.iter().zip(&mut self.decisions) {
            if decision.verdict.passes() {
                let mut copy = counters[*counter].counter(limit, now);
                let limit = &*counters[*counter].beside(limit);
                let left = decide_leased(limit, &mut copy, Operation::Peek, *leased, now.now).decision;
                (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
            }
        }
        let charged = SmallVec::from_elem(0, each.len());
        Reserved { is_held: false, has_ended: false, decisions: Decisions::new(self.decisions, charged) }
    }

    /// Fails unless there is room for the new holds, at least after those are forgotten that ended long ago.
    pub(super) fn require_room(
        &self,
        each: &[Reserve<'_>],
        counters: &mut [HeldCounter],
        now: Now,
        room: Room,
    ) -> Result<(), Exhausted> {
        if self.has_room(each, counters, room) {
            return Ok(());
        }
        counters.iter_mut().for_each(|counter| counter.forget_holds(now.now));
        if self.has_room(each, counters, room) { Ok(()) } else { Err(Exhausted) }
    }

    fn has_room(&self, each: &[Reserve<'_>], counters: &[HeldCounter], room: Room) -> bool {
        let mut more: SmallVec<[usize; 2]> = SmallVec::from_elem(0, counters.len());
        let mut bytes = 0;
        for NewHold { check, .. } in &self.new {
            more[each[*check].counter] += 1;
            bytes += Holds::bytes_of_one(&each[*check].terms.id);
        }
        let first =
            counters.iter().zip(&more).filter(|(counter, more)| **more > 0 && counter.holds.is_none());
        bytes += first.count() * Holds::BYTES_OF_FIRST;
        let has_room = |(counter, more): (&HeldCounter, &usize)| room.has(counter.holds(), *more, bytes);
        counters.iter().zip(&more).all(has_room)
    }

    /// Charges the counters, except for places in flight, which the holds keep.
    pub(super) fn charge(&self, each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) {
        self.set(each, counters, now, |(_, after)| after);
    }

    /// Undoes [`Draft::charge`].
    pub(super) fn undo(&self, each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) {
        self.set(each, counters, now, |(before, _)| before);
    }

    fn set(
        &self,
        each: &[Reserve<'_>],
        counters: &mut [HeldCounter],
        now: Now,
        which: impl Fn(&(Counter, Counter)) -> &Counter,
    ) {
        for Reserve { counter: index, limit, .. } in each {
            if let Some(states) = &self.counters[*index]
                && limit.admission() != Admission::InFlight
            {
                counters[*index].update(limit, now, |limit, counter| {
                    counter.clone_from(which(states));
                    peek(limit, counter, now)
                });
            }
        }
    }

    /// Adds the holds of what is charged.
    pub(super) fn hold(self, each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) -> Reserved {
        let Self { decisions, new, has_ended, .. } = self;
        let mut charged = SmallVec::from_elem(0, each.len());
        for NewHold { check, hits, held } in new {
            let Reserve { counter, limit, terms, .. } = &each[check];
            charged[check] = hits;
            let holds = counters[*counter].holds.get_or_insert_with(|| Box::new(Holds::new(limit)));
            holds.add(terms.id.clone(), terms, hits, held, &decisions[check], now.now);
        }
        Reserved { is_held: true, has_ended, decisions: Decisions::new(decisions, charged) }
    }
}

/// Applies `decide` to a counter, after it is corrected if it is ahead of the clock. A fresh one that stays idle is not
/// kept.
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
