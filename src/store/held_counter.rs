//! A counter with its holds, for a store that keeps both as one value.

use crate::{
    algorithm::{Counter, Decision, Held, Limit, Operation},
    store::{
        HoldId, HoldTerms, Settled,
        holds::{DecodedHolds, Expired, Holds},
        memory::charged_counter,
        packed_counter::{Decoded, PackedCounter},
    },
    time::Timestamp,
};

/// The most holds of one counter that are open or remembered. All of them are written with each change of the counter.
const REMEMBERED_MAX: usize = 4_000;

/// A counter, if it is not idle, and its holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldCounter {
    packed: Option<PackedCounter>,
    // Invariant: not empty.
    holds: Option<Box<Holds>>,
}

/// The result of decoding a counter with its holds.
#[derive(Debug)]
pub(crate) enum DecodedHeldCounter {
    Counter(HeldCounter),
    /// A part of it is unknown to this version.
    Unknown,
    Malformed,
}

/// The instant of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) now: Timestamp,
    /// When the clock gave up a lead, if it has one.
    pub(crate) given_up: Option<Timestamp>,
}

/// The counter has too many holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exhausted;

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
        self.packed.as_ref().map(|packed| packed.write(Timestamp::EPOCH))
    }

    /// The encoded holds, if there are any.
    pub(crate) fn write_holds(&self) -> Option<Vec<u8>> {
        self.holds.as_ref().map(|holds| holds.write(Timestamp::EPOCH))
    }

    /// Whether there is neither a counter nor a hold.
    pub(crate) fn is_absent(&self) -> bool {
        self.packed.is_none() && self.holds.is_none()
    }

    /// The instant from which an absent counter answers the same.
    pub(crate) fn idle_at(&self) -> Timestamp {
        let counter = self.packed.as_ref().map(PackedCounter::idle_at);
        let holds = self.holds.as_ref().map(|holds| holds.forgotten_at());
        counter.max(holds).unwrap_or(Timestamp::EPOCH)
    }

    /// Drops what answers the same when it is absent.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) {
        self.packed.take_if(|packed| packed.idle_at() <= now);
        self.forget_holds(now);
    }

    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let counter = self.packed.as_ref().map_or(0, PackedCounter::heap_bytes);
        counter + self.holds.as_ref().map_or(0, |holds| holds.bytes())
    }

    /// Whether a hold has expired and still weighs.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.holds.as_ref().is_some_and(|holds| holds.is_due(now))
    }

    /// Ends holds that have expired.
    pub(crate) fn expire(&mut self, limit: &Limit, now: Now) -> Expired {
        let Self { packed, holds: Some(holds) } = self else { return Expired::default() };
        if let Some(given_up) = now.given_up {
            holds.clamp_ahead(given_up.min(now.now), now.now);
        }
        let mut expired = Expired::default();
        if holds.is_due(now.now) {
            change(packed, limit, now, |counter| {
                expired = holds.expire(limit, counter, now.now);
                peek(limit, counter, now)
            });
        }
        expired
    }

    /// Applies `decide` to the counter. The holds observe the change.
    pub(crate) fn update(
        &mut self,
        limit: &Limit,
        now: Now,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> Decision {
        let Self { packed, holds: Some(holds) } = self else {
            return change(&mut self.packed, limit, now, decide);
        };
        change(packed, limit, now, |counter| {
            holds.observe(limit, counter, now.now);
            let decision = decide(counter);
            holds.observe(limit, counter, now.now);
            decision
        })
    }

    /// Replaces the counter by one with so many hits and no holds.
    pub(crate) fn replace(&mut self, limit: &Limit, hits: u64, now: Now) -> Decision {
        *self = Self::default();
        self.update(limit, now, |counter| {
            *counter = charged_counter(limit, hits, now.now);
            peek(limit, counter, now)
        })
    }

    /// Holds a charge of `hits`, unless it is refused. Returns the decision and the hits that were charged: none if the
    /// id is known, and the answer is that of the first time.
    pub(crate) fn reserve(
        &mut self,
        limit: &Limit,
        terms: &HoldTerms,
        hits: u64,
        now: Now,
    ) -> Result<(Decision, u64), Exhausted> {
        self.forget_holds(now.now);
        if let Some(known) = self.holds.as_ref().and_then(|holds| holds.answer(&terms.id)) {
            return Ok((known, 0));
        }
        let has_room = self.has_room();
        let mut held: Option<Held> = None;
        let decision = self.update(limit, now, |counter| {
            let mut after = counter.clone();
            let decision = limit.decide(&mut after, now.now, Operation::Charge(hits));
            if decision.verdict.passes() && has_room {
                held = Some(limit.held(counter, &after, hits, now.now));
                *counter = after;
            }
            decision
        });
        match held {
            Some(held) => {
                self.add(limit, terms, hits, held, &decision, now);
                Ok((decision, hits))
            }
            None if decision.verdict.passes() => Err(Exhausted),
            None => Ok((decision, 0)),
        }
    }

    /// Remembers a refusal that did not refuse its call, if its id is unknown.
    pub(crate) fn hold_nothing(&mut self, limit: &Limit, terms: &HoldTerms, refused: &Decision, now: Now) {
        let is_known = self.holds.as_ref().is_some_and(|holds| holds.answer(&terms.id).is_some());
        if !is_known && self.has_room() {
            let counter = self.packed.as_ref().map_or_else(|| limit.fresh(), |packed| packed.counter(limit));
            let held = limit.held(&counter, &counter, 0, now.now);
            self.add(limit, terms, 0, held, refused, now);
        }
    }

    /// Settles the hold of this id at `actual` hits. If the id is unknown, the hits are charged, and the settlement is
    /// remembered if there is room.
    pub(crate) fn settle(&mut self, limit: &Limit, id: &HoldId, actual: u64, now: Now) -> Settled {
        self.forget_holds(now.now);
        let has_room = self.has_room();
        let mut holds = self.holds.take().unwrap_or_else(|| Box::new(Holds::new(limit)));
        let (is_known, mut settled) = (holds.answer(id).is_some(), None);
        change(&mut self.packed, limit, now, |counter| {
            settled = Some(holds.settle(limit, counter, id, actual, now.now));
            holds.observe(limit, counter, now.now);
            peek(limit, counter, now)
        });
        if !is_known && !has_room {
            holds.forget_ended(id);
        }
        self.holds = Some(holds).filter(|holds| !holds.is_empty());
        settled.expect("the closure was called")
    }

    /// Takes back what one attempt holds with this id, and forgets it. Returns whether there was such a hold.
    pub(crate) fn withdraw(&mut self, limit: &Limit, id: &HoldId, attempt: u64, now: Now) -> bool {
        let Self { packed, holds: Some(holds) } = self else { return false };
        let mut was_held = false;
        change(packed, limit, now, |counter| {
            holds.observe(limit, counter, now.now);
            was_held = holds.withdraw(counter, id, attempt, now.now);
            holds.observe(limit, counter, now.now);
            peek(limit, counter, now)
        });
        self.holds.take_if(|holds| holds.is_empty());
        was_held
    }

    fn has_room(&self) -> bool {
        self.holds.as_ref().is_none_or(|holds| holds.has_room(1) && holds.remembered() < REMEMBERED_MAX)
    }

    fn add(
        &mut self,
        limit: &Limit,
        terms: &HoldTerms,
        hits: u64,
        held: Held,
        decision: &Decision,
        now: Now,
    ) {
        let holds = self.holds.get_or_insert_with(|| Box::new(Holds::new(limit)));
        holds.add(terms.id.clone(), terms, hits, held, decision, now.now);
    }

    fn forget_holds(&mut self, now: Timestamp) {
        if let Some(holds) = &mut self.holds {
            holds.forget(now);
        }
        self.holds.take_if(|holds| holds.is_empty());
    }
}

/// Applies `decide` to a counter, after it is cut if it is ahead of the clock. A fresh one that stays idle is not kept.
fn change(
    counter: &mut Option<PackedCounter>,
    limit: &Limit,
    Now { now, given_up }: Now,
    decide: impl FnOnce(&mut Counter) -> Decision,
) -> Decision {
    match counter {
        Some(packed) => {
            packed.clamp_ahead(limit, given_up.map(|at| at.min(now)), now);
            packed.update(limit, decide)
        }
        None => {
            let mut fresh = limit.fresh();
            let decision = decide(&mut fresh);
            if now < limit.idle_at(&fresh) {
                *counter = Some(PackedCounter::new(limit, fresh, &decision));
            }
            decision
        }
    }
}

fn peek(limit: &Limit, counter: &mut Counter, now: Now) -> Decision {
    limit.decide(counter, now.now, Operation::Peek)
}
