//! The store of counters: it takes checks and returns decisions.

mod budget;
mod check;
mod decisions;
pub mod divider;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod held_counter;
mod holds;
mod memory;
mod operation;
mod reservation;
mod side_data;
mod slot;
mod slot_copy;
mod slot_data;
mod subscribers;
mod table;

pub use budget::{BYTES_MIN, MemoryReservation};
pub use check::{Check, CheckRole, Checks, LimitOrigin, OnFull, OnRefusal, Refusal, refuses};
pub use decisions::{CheckDecision, CounterOutcomes, Decisions};
pub use held_counter::{HeldCounter, Reserve, Room, reserve};
pub use holds::{Expired, RETENTION as HOLD_RETENTION, id_bytes};
pub use memory::{
    CounterState, CounterView, DryRun, Grants, Leases, Memory, NotLocal, SWEEP_PARTS, SWEEP_ROUND,
    StoreStats, Turn, UsedHits, each_hold_id,
};
pub use operation::{
    CounterDetails, CounterOperation, HoldOutcome, OperationOutcome, OperationProperties, UnknownId,
    decide_set,
};
pub use reservation::{
    HOLD_ID_BYTES_MAX, HOLD_TTL_DEFAULT, HOLD_TTL_MAX, HOLD_TTL_MIN, HOLDS_MAX, HoldId, HoldIdTooLong,
    HoldTerms, HoldTtlOutOfBounds, OnExpiry, OpenHold, OpenHolds, SettleOutcome, Settled,
};
pub use side_data::{
    OWN_LIMIT_TAG, OWN_RECORD_MAX, OwnLimitChange, OwnLimitOutcome, OwnLimitPage, OwnLimitPosition,
    OwnLimitRefusal, OwnLimitState, SlotOwnLimits, read_own_limit,
};
pub use slot::{KeyHash, SLOTS, Slot};
pub use slot_copy::{EncodedSlot, Epoch, SlotCopy, StoredSlot};
pub use slot_data::{Consumption, SlotChanges, SlotData};
pub use subscribers::{LimitPart, SUBSCRIBERS_LISTED_MAX, SubscriberId, SubscriberState, Subscribers};
pub use table::CounterEvents;
pub use tollgate_counter::algorithm::OwnTerms;
pub use tollgate_counter::time::Lead;
