//! What this replica admits by itself while holders cannot be reached: its share of each limit, which is told to the
//! holder when it can be.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt, Verdict},
    cluster::{
        message::{Deed, Question},
        node::Node,
    },
    descriptor::Key,
    store::{Check, Lead, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::Timestamp,
};

/// What shares may take.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Slots of the table of shares, which nobody else locks.
const SLOTS: usize = 16;
/// The most keys whose consumption waits to be told.
const KEYS_MAX: usize = 100_000;
/// The most messages that wait to be told again.
const UNTOLD_MAX: usize = 10_000;

/// Shares that are given, and what is to be told of them.
#[derive(Debug)]
pub(super) struct Shares {
    memory: Memory,
    admitted: BTreeMap<Key, Admitted>,
    untold: VecDeque<Arc<Question>>,
}

/// What was admitted of one key, as a counter of its whole limit.
#[derive(Clone, Debug)]
struct Admitted {
    limit: Limit,
    counter: Counter,
}

impl Default for Shares {
    fn default() -> Self {
        let memory = Memory::new(BYTES_MAX, OnFull::Deny).with_slots(SLOTS);
        Self { memory, admitted: BTreeMap::new(), untold: VecDeque::new() }
    }
}

impl Shares {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The clock of counters gives up a lead.
    pub(super) fn give_up_lead(&mut self, lead: Lead) {
        self.memory.give_up_lead(lead);
        for Admitted { limit, counter } in self.admitted.values_mut() {
            limit.clamp_ahead(counter, lead.at, lead.at);
        }
    }

    pub(super) fn are_untold(&self) -> bool {
        !self.admitted.is_empty() || !self.untold.is_empty()
    }

    /// Decides by one share of `members` that the limit is divided into.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        ask: Operation,
        members: usize,
        now: Timestamp,
    ) -> (Decision, u64) {
        let full = KEYS_MAX <= self.admitted.len() && !self.admitted.contains_key(&key);
        // What could not be told must not be admitted.
        let ask = if full { Operation::Peek } else { ask };
        let share = limit.share(u32::try_from(members).unwrap_or(u32::MAX));
        let check = Check { key, limit: &share, operation: ask, on_refusal: OnRefusal::Keep };
        let decisions = self.memory.apply(&[check], now, |_| false).expect("it shares its slots with nobody");
        let (decision, charged) = (decisions[0], decisions.charged()[0]);
        if full {
            let verdict = Verdict::Refuse { retry_after: None };
            return (Decision { verdict, receipt: None, ..decision }, 0);
        }
        if 0 < charged {
            let fresh = || Admitted { limit: limit.clone(), counter: limit.fresh() };
            let admitted = self.admitted.entry(key).or_insert_with(fresh);
            admitted.limit.decide(&mut admitted.counter, now, Operation::Charge(charged));
        }
        (decision, charged)
    }

    /// Takes back one charge of a share.
    pub(super) fn undo(
        &mut self,
        key: Key,
        limit: &Limit,
        receipt: Receipt,
        hits: u64,
        members: usize,
        now: Timestamp,
    ) -> Decision {
        let share = limit.share(u32::try_from(members).unwrap_or(u32::MAX));
        if let Some(admitted) = self.admitted.get_mut(&key) {
            admitted.limit.decide(&mut admitted.counter, now, Operation::Refund(hits));
        }
        self.memory.undo(key, &share, receipt, now)
    }
}

impl Node {
    /// Takes back a charge that this replica passed by itself.
    pub(crate) fn undo_share(&mut self, key: Key, limit: &Limit, receipt: Receipt, hits: u64) {
        self.shares.undo(key, limit, receipt, hits, self.healthy.len(), self.wall);
    }

    /// Something that a holder must be told, which cannot be reached now.
    pub(super) fn keep_to_tell(&mut self, question: Arc<Question>) {
        match question.deed {
            Deed::Absorb(_) | Deed::Settle(_) => {
                if self.shares.untold.len() < UNTOLD_MAX {
                    self.shares.untold.push_back(question);
                } else {
                    self.figures.untold += 1;
                }
            }
            Deed::Ask(_) | Deed::Undo(_) | Deed::Set(_) => {}
        }
    }

    /// Tells holders that can be reached again what was admitted without them.
    pub(super) fn tell_shares(&mut self, now: Timestamp) {
        if self.isolated || !self.shares.are_untold() {
            return;
        }
        for question in std::mem::take(&mut self.shares.untold) {
            self.tell_if_reached(question, now);
        }
        let reached = |key: &Key| self.reaches(*key, now);
        let keys: Vec<Key> = self.shares.admitted.keys().filter(|key| reached(key)).copied().collect();
        for key in keys {
            if let Some(Admitted { limit, counter }) = self.shares.admitted.remove(&key) {
                let consumed = Arc::new(SlotData::of_usage(key, &limit, counter, self.wall));
                self.tell(Question { key, limit, deed: Deed::Absorb(consumed), wish: 0 }, now);
            }
        }
    }

    fn tell_if_reached(&mut self, question: Arc<Question>, now: Timestamp) {
        if self.reaches(question.key, now) {
            self.tell(question, now);
        } else {
            self.keep_to_tell(question);
        }
    }

    fn reaches(&self, key: Key, now: Timestamp) -> bool {
        let state = self.slot(Slot::of(key, self.slots.len()));
        state.held.is_some() || state.holder.is_some_and(|holder| self.hears(holder.member, now))
    }
}
