//! Shares of the memory for ids, so that no caller and no other replica takes the reservations of all.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;
use tollgate_counter::{
    algorithm::Limit,
    descriptor::Key,
    resilience::{CALLER_SHARE, Caller, IdRecord},
    time::Timestamp,
};
use tollgate_store::{
    Checks, CounterOperation, HOLD_RETENTION, HoldId, HoldOutcome, HoldTerms, LimitOrigin, Memory, NotLocal,
    OperationOutcome, SettleOutcome, Settled, UnknownId, id_bytes,
};

/// What another replica, whose callers share it, gets at most of what the others leave free: one part of so many.
const REPLICA_SHARE: usize = 2;

/// An id that a caller sends, and what the counters of its call retain of it.
#[derive(Debug)]
pub struct SentId<'c> {
    caller: &'c Caller,
    id: u64,
    bytes: usize,
    bytes_max: usize,
    is_allowed: bool,
    now: Timestamp,
}

impl<'c> SentId<'c> {
    /// The id of a call with these checks.
    pub fn new(
        caller: &'c Caller,
        checks: &Checks<'_>,
        id: &HoldId,
        memory: &Memory,
        now: Timestamp,
    ) -> Self {
        let first = checks.first().map(|check| check.key);
        Self::in_share(CALLER_SHARE, caller, (id, first, checks.len() * id_bytes(id)), memory, now)
    }

    /// The id of a call with this first key, which takes so many bytes, of a caller that gets one part of so many.
    fn in_share(
        parts: usize,
        caller: &'c Caller,
        (id, first, bytes): (&HoldId, Option<Key>, usize),
        memory: &Memory,
        now: Timestamp,
    ) -> Self {
        let mut hasher = FxHasher::default();
        id.as_bytes().hash(&mut hasher);
        first.hash(&mut hasher);
        let hash = hasher.finish();
        let shared = memory.id_memory(caller.id_bytes(now));
        let is_allowed = shared.has_room_for(bytes, parts) || caller.has_id(hash, now);
        Self { caller, id: hash, bytes, bytes_max: shared.max, is_allowed, now }
    }

    /// Whether the caller's share has room for the id, or the id is known.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// What becomes of the id if a settlement finds that it is unknown.
    pub fn unknown(&self) -> UnknownId {
        if self.is_allowed { UnknownId::Remember } else { UnknownId::Forget }
    }

    /// Counts the id as held with these terms.
    pub fn held(&self, terms: &HoldTerms) {
        self.remember(self.now.after(terms.ttl()).after(HOLD_RETENTION));
    }

    /// Counts the id as settled.
    pub fn settled(&self, each: &[Settled]) {
        let is_new = each.iter().any(|settled| settled.outcome == SettleOutcome::Unknown);
        if (is_new && self.is_allowed) || self.caller.has_id(self.id, self.now) {
            self.remember(self.now.after(HOLD_RETENTION));
        }
    }

    fn remember(&self, until: Timestamp) {
        let record = IdRecord { id: self.id, until, bytes: self.bytes };
        self.caller.remember_id(record, self.bytes_max, self.now);
    }
}

/// What the counters of this process retain for the callers of another replica.
#[derive(Debug, Default)]
pub struct ReplicaShare(Caller);

impl ReplicaShare {
    /// Applies an operation that the replica has forwarded, as [`Memory::operate_by`] does. Beyond its share the replica
    /// is answered as if the memory for ids were full: new ids are refused, and unknown ones that are settled are not
    /// retained.
    pub fn operate(
        &self,
        memory: &Memory,
        key: Key,
        limit: (&Limit, LimitOrigin),
        operation: &CounterOperation,
        now: Timestamp,
    ) -> Result<OperationOutcome, NotLocal> {
        let properties = operation.properties();
        let Some(id) = properties.retained_id else { return memory.operate_by(key, limit, operation, now) };
        let id = (id, Some(key), id_bytes(id));
        let sent = SentId::in_share(REPLICA_SHARE, &self.0, id, memory, now);
        let outcome = if sent.is_allowed() {
            memory.operate_by(key, limit, operation, now)?
        } else if let Some(operation) = operation.without_retained_id() {
            memory.operate_by(key, limit, &operation, now)?
        } else {
            memory.count_exhausted();
            return Ok(OperationOutcome::exhausted());
        };
        match (&outcome.hold, properties.terms) {
            (HoldOutcome::Settled(settled), _) => sent.settled(std::slice::from_ref(&**settled)),
            (HoldOutcome::Decided, Some(terms)) if outcome.decision.verdict.passes() => sent.held(terms),
            _nothing_retained => {}
        }
        Ok(outcome)
    }
}
