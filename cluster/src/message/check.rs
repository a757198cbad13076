//! Checks that are sent to owners, and what owners reply.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Limit, Operation, QuotaTerms},
    descriptor::Key,
};
use tollgate_store::{
    CounterOperation, LimitOrigin, OperationOutcome, SlotData,
    divider::{DividerReport, SubscriberId},
};

use crate::member::MemberId;

/// An operation on one counter, for its owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteCheck {
    pub(crate) key: Key,
    pub(crate) limit: Limit,
    pub(crate) operation: RemoteOperation,
    /// The number of hits that the sender asks to borrow, because it forwards the key often.
    pub(crate) lease_hits: u64,
}

impl RemoteCheck {
    // Most checks have none, and are not copied.
    pub(super) fn consumed_mut(shared: &mut Arc<Self>) -> Option<&mut Arc<SlotData>> {
        shared.operation.consumed()?;
        let RemoteOperation::Absorb(consumed) = &mut Arc::make_mut(shared).operation else { return None };
        Some(consumed)
    }
}

/// The operation of a remote check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum RemoteOperation {
    /// An operation on the counter and its holds.
    Counter(CounterOperation),
    /// Add consumption that was admitted elsewhere.
    Absorb(#[serde(skip)] Arc<SlotData>),
    /// Add consumption from a grant.
    Settle(Settlement),
    /// Divide the limit, given the report of a client.
    Divide(SubscriberId, QuotaTerms, DividerReport),
    /// An operation on the counter and its holds by a limit that the request has sent.
    CounterByRequest(CounterOperation),
}

impl RemoteOperation {
    /// Whether the operation is sent again if it gets lost.
    pub(crate) fn must_arrive(&self) -> bool {
        match self {
            Self::Counter(operation) | Self::CounterByRequest(operation) => {
                operation.properties().must_arrive
            }
            Self::Absorb(_) | Self::Settle(_) => true,
            // A client reports again. What a lost report says is granted until then.
            Self::Divide(..) => false,
        }
    }

    /// Whether an isolated owner applies the operation too: it corrects what was charged before, and admits nothing.
    pub(crate) fn is_applied_in_isolation(&self) -> bool {
        self.must_arrive() || self.is_undo()
    }

    /// Whether the operation takes back one charge.
    pub(crate) fn is_undo(&self) -> bool {
        self.on_counter().is_some_and(|(operation, _)| operation.properties().undone.is_some())
    }

    /// The operation of a call, if it is one.
    pub(crate) fn decided(&self) -> Option<Operation> {
        self.on_counter().and_then(|(operation, _)| operation.properties().decided)
    }

    /// The operation on the counter and its holds, and where its limit comes from.
    pub(crate) fn on_counter(&self) -> Option<(&CounterOperation, LimitOrigin)> {
        match self {
            Self::Counter(operation) => Some((operation, LimitOrigin::Rule)),
            Self::CounterByRequest(operation) => Some((operation, LimitOrigin::Request)),
            Self::Absorb(_) | Self::Settle(_) | Self::Divide(..) => None,
        }
    }

    /// Where the limit comes from.
    pub(crate) fn origin(&self) -> LimitOrigin {
        self.on_counter().map_or(LimitOrigin::Rule, |(_, origin)| origin)
    }

    pub(super) fn consumed(&self) -> Option<&Arc<SlotData>> {
        if let Self::Absorb(consumed) = self { Some(consumed) } else { None }
    }
}

/// The consumption of a grant since the last settlement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settlement {
    pub(crate) borrower: MemberId,
    pub(crate) number: u64,
    /// Hits that were used.
    pub(crate) hits: u64,
    /// Unused hits of the grant. The newest settlement is authoritative when the slot changes its owner.
    pub(crate) left: u64,
    /// The time since the last hit was used.
    pub(crate) age: Duration,
    pub(crate) state: LeaseState,
}

/// Whether a grant continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaseState {
    /// More hits may be used.
    Open,
    /// The unused hits are returned.
    Closed,
}

/// The owner's answer to a remote check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum CheckReply {
    /// What the operation has come to.
    // The lease is boxed, because most replies have none.
    Decided { outcome: OperationOutcome, lease: Option<Box<LeaseReply>> },
    /// The owner is unreachable, or does not trust its counters.
    Unreachable,
}

/// What the sender of a check may decide about its key by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaseReply {
    /// The sender may use this many hits for some time.
    Granted { number: u64, hits: u64, ttl: Duration },
    /// Every charge is refused for some time.
    Refused { ttl: Duration },
}
