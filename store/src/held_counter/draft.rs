//! The reservation of a call in its counters: decided as a draft, then held in all of them or in none.

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Admission, Counter, Decision, HeldCharge, Limit, Operation},
    packed_counter::Now,
};

use crate::{
    check::OnFull,
    decisions::{CheckDecision, CounterOutcomes, Decisions},
    held_counter::{HeldCounter, Room, peek},
    holds::Holds,
    operation::decide_leased,
    reservation::HoldTerms,
};

/// What one check of a call reserves.
#[derive(Debug)]
pub struct Reserve<'a> {
    /// The index of the counter of the check.
    pub counter: usize,
    /// The limit of the counter.
    pub limit: &'a Limit,
    /// The terms of the hold. The id in them distinguishes the checks of one counter.
    pub terms: HoldTerms,
    /// Hits to reserve.
    pub hits: u64,
}

/// The decisions on the reservation of a call, before anything is held.
#[derive(Debug)]
struct ReservationDraft {
    decisions: Decisions,
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
    held: HeldCharge,
}

/// Holds the charges of a call in its counters, whose holds that are due have ended, or none of them if `refused` says
/// that the decisions refuse the call. A known id is answered as the first time and charges nothing. A refused check
/// that does not refuse the call holds no hits. `None`, and nothing is held, if a counter has too many holds, or all
/// holds take too much memory. `store` returns for each counter what decides in its place if it has no place in the
/// store.
pub fn reserve(
    each: &[Reserve<'_>],
    counters: &mut [HeldCounter],
    now: Now,
    room: Room,
    refused: impl Fn(&[CheckDecision]) -> bool,
    store: impl FnOnce(&[HeldCounter]) -> SmallVec<[Option<OnFull>; 2]>,
) -> Option<CounterOutcomes> {
    let mut draft = ReservationDraft::new(each, counters, now);
    if refused(&draft.decisions) {
        return Some(draft.not_held(each, counters, now, |_| true));
    }
    if !draft.has_room(each, counters, room) {
        return None;
    }
    draft.set(each, counters, now, |(_, after)| after);
    let missing = store(counters);
    for (Reserve { counter, .. }, CheckDecision { decision, .. }) in each.iter().zip(&mut draft.decisions) {
        if let Some(on_full) = missing[*counter] {
            *decision = on_full.without_memory(*decision);
        }
    }
    if refused(&draft.decisions) {
        draft.set(each, counters, now, |(before, _)| before);
        return Some(draft.not_held(each, counters, now, |counter| missing[counter].is_none()));
    }
    Some(draft.hold(each, counters, now))
}

impl ReservationDraft {
    /// Decides what each check reserves.
    fn new(each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) -> Self {
        counters.iter_mut().for_each(|counter| counter.forget_side_data(now.now));
        let mut draft = Self {
            decisions: Decisions::new(),
            counters: SmallVec::from_elem(None, counters.len()),
            new: Vec::new(),
            has_ended: false,
        };
        for (check, Reserve { counter, limit, terms, hits }) in each.iter().enumerate() {
            if let Some(holds) = counters[*counter].holds()
                && let Some(known) = holds.answer(&terms.id)
            {
                draft.decisions.push(CheckDecision { decision: known, charged: 0, own: None });
                draft.has_ended |= !holds.is_open(&terms.id);
                continue;
            }
            let (first, before) = draft.counters[*counter].take().unwrap_or_else(|| {
                let counter = counters[*counter].counter(limit, now);
                (counter.clone(), counter)
            });
            let leased = counters[*counter].leased();
            let limit = &*counters[*counter].limit_without_holds(limit);
            let charge = |limit: &Limit| {
                let mut after = before.clone();
                let decision = decide_leased(limit, &mut after, Operation::Charge(*hits), leased, now.now);
                (decision, after)
            };
            let traceless = limit.without_refused_charges();
            let (mut decision, mut after) = charge(&traceless);
            let passes = decision.verdict.passes();
            if !passes {
                // A refused reservation changes nothing, so no penalty begins with it.
                (decision, after) = (charge(traceless.penalized_now(&before, now.now)).0, before.clone());
            }
            let hits = if passes { *hits } else { 0 };
            draft.new.push(NewHold { check, hits, held: limit.held(&before, &after, hits, now.now) });
            draft.counters[*counter] = Some((first, after));
            // What is held is taken back by its id only.
            let decision = Decision { receipt: None, ..decision };
            draft.decisions.push(CheckDecision { decision, charged: 0, own: None });
        }
        draft
    }

    /// The answer if nothing is held: what is left without the call. A counter without memory has nothing left.
    fn not_held(
        mut self,
        each: &[Reserve<'_>],
        counters: &[HeldCounter],
        now: Now,
        has_memory: impl Fn(usize) -> bool,
    ) -> CounterOutcomes {
        for (Reserve { counter, limit, .. }, CheckDecision { decision, .. }) in
            each.iter().zip(&mut self.decisions)
        {
            if !decision.verdict.passes() && !has_memory(*counter) {
                continue;
            }
            let mut copy = counters[*counter].counter(limit, now);
            let limit = &*counters[*counter].limit_without_holds(limit);
            let left = decide_leased(limit, &mut copy, Operation::Peek, counters[*counter].leased(), now.now);
            *decision = decision.after_take_back(&left);
        }
        self.decisions.into()
    }

    /// Whether there is room for the new holds. Those that ended long ago are forgotten already.
    fn has_room(&self, each: &[Reserve<'_>], counters: &[HeldCounter], room: Room) -> bool {
        let mut more: SmallVec<[usize; 2]> = SmallVec::from_elem(0, counters.len());
        let mut bytes = 0;
        for NewHold { check, .. } in &self.new {
            more[each[*check].counter] += 1;
            bytes += Holds::bytes_of_one(&each[*check].terms.id);
        }
        let first =
            counters.iter().zip(&more).filter(|(counter, more)| **more > 0 && counter.holds().is_none());
        bytes += first.count() * Holds::BYTES_OF_FIRST;
        // All checks of a call have the same id, with a number.
        let Some(Reserve { terms, .. }) = each.first() else { return true };
        let has_room =
            |(counter, more): (&HeldCounter, &usize)| room.has(counter.holds(), &terms.id, *more, bytes);
        counters.iter().zip(&more).all(has_room)
    }

    /// Sets the counters to what they were, or would be. Places in flight are those of the holds.
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
    fn hold(self, each: &[Reserve<'_>], counters: &mut [HeldCounter], now: Now) -> CounterOutcomes {
        let Self { mut decisions, new, has_ended, .. } = self;
        for NewHold { check, hits, held } in new {
            let Reserve { counter, limit, terms, .. } = &each[check];
            decisions[check].charged = hits;
            let counter = &mut counters[*counter];
            let mut holds = counter.take_holds().unwrap_or_else(|| Box::new(Holds::new(limit)));
            holds.add(terms.id.clone(), terms, hits, held, &decisions[check], now.now);
            counter.put_holds(holds);
        }
        CounterOutcomes { is_held: true, has_ended, ..decisions.into() }
    }
}
