//! Local shares: while owners are unreachable, this replica admits its share of each limit. It reports the consumption
//! once the owner is reachable.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt, Verdict},
    cluster::{
        message::{RemoteCheck, RemoteOperation},
        node::Node,
    },
    descriptor::Key,
    store::{Check, Lead, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::Timestamp,
};

/// The memory that local shares may use.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Slots of the table of local shares, which has no concurrent users.
const SLOTS: usize = 16;
/// The most keys with unreported consumption.
const KEYS_MAX: usize = 100_000;
/// The most reports that wait to be sent again.
const REPORTS_MAX: usize = 10_000;

/// The local shares, and the consumption that is still to be reported.
#[derive(Debug)]
pub(super) struct LocalShare {
    memory: Memory,
    admitted: BTreeMap<Key, Admitted>,
    unsent_reports: VecDeque<Arc<RemoteCheck>>,
}

/// The consumption of one key, as a counter of the whole limit.
#[derive(Clone, Debug)]
struct Admitted {
    limit: Limit,
    counter: Counter,
}

impl Default for LocalShare {
    fn default() -> Self {
        let memory = Memory::new(BYTES_MAX, OnFull::Deny).with_slots(SLOTS);
        Self { memory, admitted: BTreeMap::new(), unsent_reports: VecDeque::new() }
    }
}

impl LocalShare {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Applies a lead that the clock of the counters gives up.
    pub(super) fn give_up_lead(&mut self, lead: Lead) {
        self.memory.give_up_lead(lead);
        for Admitted { limit, counter } in self.admitted.values_mut() {
            limit.clamp_ahead(counter, lead.at, lead.at);
        }
    }

    pub(super) fn has_unreported(&self) -> bool {
        !self.admitted.is_empty() || !self.unsent_reports.is_empty()
    }

    /// Decides by the share of one of `members` equal members.
    pub(super) fn decide(
        &mut self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        members: usize,
        now: Timestamp,
    ) -> (Decision, u64) {
        let full = self.admitted.len() >= KEYS_MAX && !self.admitted.contains_key(&key);
        // Reject what cannot be reported to the owner later.
        let operation = if full { Operation::Peek } else { operation };
        let share = limit.share(u32::try_from(members).unwrap_or(u32::MAX));
        let check = Check { key, limit: &share, operation, on_refusal: OnRefusal::Keep };
        let decisions =
            self.memory.apply(&[check], now, |_| false).expect("a memory that is not shared owns every slot");
        let (decision, charged) = (decisions[0], decisions.charged()[0]);
        if full {
            let verdict = Verdict::Refuse { retry_after: None };
            return (Decision { verdict, receipt: None, ..decision }, 0);
        }
        if charged > 0 {
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
    /// Takes back a charge that this replica admitted from its local share.
    pub(crate) fn undo_share(&mut self, key: Key, limit: &Limit, receipt: Receipt, hits: u64) {
        self.local_share.undo(key, limit, receipt, hits, self.healthy.len(), self.wall);
    }

    /// Queues a report for an owner that is unreachable.
    pub(super) fn queue_report(&mut self, check: Arc<RemoteCheck>) {
        match check.operation {
            RemoteOperation::Absorb(_) | RemoteOperation::Settle(_) => {
                if self.local_share.unsent_reports.len() < REPORTS_MAX {
                    self.local_share.unsent_reports.push_back(check);
                } else {
                    self.stats.reports_dropped += 1;
                }
            }
            RemoteOperation::Decide(_) | RemoteOperation::Undo(_) | RemoteOperation::Set(_) => {}
        }
    }

    /// Reports admitted consumption to owners that are reachable again.
    pub(super) fn report_admitted(&mut self, now: Timestamp) {
        if self.isolated || !self.local_share.has_unreported() {
            return;
        }
        for check in std::mem::take(&mut self.local_share.unsent_reports) {
            self.report_if_reachable(check, now);
        }
        let reached = |key: &Key| self.is_owner_reachable(*key, now);
        let keys: Vec<Key> = self.local_share.admitted.keys().filter(|key| reached(key)).copied().collect();
        for key in keys {
            if let Some(Admitted { limit, counter }) = self.local_share.admitted.remove(&key) {
                let consumed = Arc::new(SlotData::of_usage(key, &limit, counter, self.wall));
                self.send_to_owner(
                    RemoteCheck { key, limit, operation: RemoteOperation::Absorb(consumed), lease_hits: 0 },
                    now,
                );
            }
        }
    }

    fn report_if_reachable(&mut self, check: Arc<RemoteCheck>, now: Timestamp) {
        if self.is_owner_reachable(check.key, now) {
            self.send_to_owner(check, now);
        } else {
            self.queue_report(check);
        }
    }

    fn is_owner_reachable(&self, key: Key, now: Timestamp) -> bool {
        let state = self.slot(Slot::of(key, self.slots.len()));
        state.ownership.is_some() || state.owner.is_some_and(|owner| self.is_reachable(owner.member, now))
    }
}
