//! Each caller's share of the memory for ids, so that no caller takes the reservations of all.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::{
    resilience::{Caller, IdRecord},
    store::{
        Checks, HOLD_REMEMBERED, HoldId, HoldTerms, IdMemory, SettleOutcome, Settled, UnknownId, id_bytes,
    },
    time::Timestamp,
};

/// Once half of the memory is used, a caller gets at most this fraction of what the others leave free.
const CALLER_SHARE: usize = 4;

/// An id that a caller sends, and what the counters of its call remember of it.
#[derive(Debug)]
pub(super) struct SentId<'c> {
    caller: &'c Caller,
    id: u64,
    bytes: usize,
    bytes_max: usize,
    is_allowed: bool,
    now: Timestamp,
}

impl<'c> SentId<'c> {
    pub(super) fn new(
        caller: &'c Caller,
        checks: &Checks<'_>,
        id: &HoldId,
        memory: IdMemory,
        now: Timestamp,
    ) -> Self {
        let mut hasher = FxHasher::default();
        id.as_bytes().hash(&mut hasher);
        checks.first().map(|check| check.key).hash(&mut hasher);
        let (hash, bytes) = (hasher.finish(), checks.len() * id_bytes(id));
        let own = caller.id_bytes(now);
        let of_others = memory.used.saturating_sub(own);
        let is_plenty = memory.used + bytes <= memory.max / 2;
        let is_in_share = own + bytes <= memory.max.saturating_sub(of_others) / CALLER_SHARE;
        let is_allowed = is_plenty || is_in_share || caller.has_id(hash, now);
        Self { caller, id: hash, bytes, bytes_max: memory.max, is_allowed, now }
    }

    /// Whether the caller's share has room for it, or the id is known.
    pub(super) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// What becomes of it if a settlement finds that it is unknown.
    pub(super) fn unknown(&self) -> UnknownId {
        if self.is_allowed { UnknownId::Remember } else { UnknownId::Forget }
    }

    /// Counts it as held with these terms.
    pub(super) fn held(&self, terms: &HoldTerms) {
        self.remember(self.now.after(terms.ttl()).after(HOLD_REMEMBERED));
    }

    /// Counts it as settled.
    pub(super) fn settled(&self, each: &[Settled]) {
        let is_new = each.iter().any(|settled| settled.outcome == SettleOutcome::Unknown);
        if (is_new && self.is_allowed) || self.caller.has_id(self.id, self.now) {
            self.remember(self.now.after(HOLD_REMEMBERED));
        }
    }

    fn remember(&self, until: Timestamp) {
        let record = IdRecord { id: self.id, until, bytes: self.bytes };
        self.caller.remember_id(record, self.bytes_max, self.now);
    }
}
