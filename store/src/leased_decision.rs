//! Decisions on a counter while some of its hits are leased to other replicas.

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Operation},
    time::Timestamp,
};

/// The effect of an operation on a counter with leased hits.
pub(super) struct LeasedDecision {
    pub(super) decision: Decision,
    /// Whether the decision would differ if the leased hits were returned.
    pub(super) depends_on_leases: bool,
}

/// Decides an operation with `leased` hits counted as charged now.
pub(super) fn decide_leased(
    limit: &Limit,
    counter: &mut Counter,
    operation: Operation,
    leased: u64,
    now: Timestamp,
) -> LeasedDecision {
    if leased == 0 {
        return LeasedDecision { decision: limit.decide(counter, now, operation), depends_on_leases: false };
    }
    let mut full = counter.clone();
    limit.charge_at(&mut full, leased, now, now);
    let with_leases = limit.decide(&mut full, now, operation);
    let mut unleased = counter.clone();
    let bare = limit.decide(&mut unleased, now, operation);
    let passes = with_leases.verdict.passes();
    if limit.is_changed_by(operation, passes) {
        *counter = unleased;
    }
    let decision = if passes {
        Decision { remaining: with_leases.remaining, ..bare }
    } else {
        Decision { receipt: None, ..with_leases }
    };
    let depends_on_leases = match operation {
        Operation::Peek | Operation::Charge(_) => !passes && bare.verdict.passes(),
        // A refund gives back no more than was charged.
        Operation::Refund(_) => limit.idle_at(counter) <= now,
    };
    LeasedDecision { decision, depends_on_leases }
}
