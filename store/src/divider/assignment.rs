//! What dividers take and give.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::HitRate,
    time::{SECOND, Timestamp},
};

use crate::{memory::grants::Turn, subscribers::SubscriberId};

/// How long an assignment lasts unless it is renewed. Two reports may be lost.
pub const ASSIGNMENT_TTL: Duration = Duration::from_secs(15);
/// An assignment that ends within this time may have ended at the client.
pub const UNCERTAIN: Duration = Duration::from_secs(2);
/// A client reports so often. If its last report is longer ago, one was lost, and what it has used is not known.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(5);
/// An assignment counts as in force for this much longer than its time, because its time begins when it arrives.
pub(super) const DELIVERY_MAX: Duration = Duration::from_secs(1);
/// The factor by which a share may exceed the demand, so that a demand that grows is seen.
pub(super) const HEADROOM: f64 = 1.25;

/// What a subscriber has decided since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriberUsage {
    /// Hits that passed.
    pub allowed: u64,
    /// Hits that the subscriber refused.
    pub denied: u64,
    /// Hits that passed before, as earlier reports have said. Any of those may be lost.
    pub allowed_before: u64,
}

impl SubscriberUsage {
    /// All hits that have passed.
    pub(super) fn allowed_in_all(&self) -> u64 {
        self.allowed_before.saturating_add(self.allowed)
    }
}

/// What is reported of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DividerReport {
    /// What the subscriber has decided.
    Usage(SubscriberUsage),
    /// What the subscriber has decided, in the first report of a stream: the client has decided before over another
    /// stream, whose share may be in force.
    Resumed(SubscriberUsage),
    /// The limit of the subscriber may have changed.
    Limit,
    /// The subscriber has ended. What it has is in force until its time is over.
    End,
    /// Hits of a limit that refuses nothing. They are charged, and the limit is not divided.
    Counted(u64),
}

impl DividerReport {
    /// The report of a subscriber that has reported `allowed_before` hits earlier.
    #[must_use]
    pub fn after(self, allowed_before: u64) -> Self {
        match self {
            Self::Usage(usage) => Self::Usage(SubscriberUsage { allowed_before, ..usage }),
            Self::Resumed(usage) => Self::Resumed(SubscriberUsage { allowed_before, ..usage }),
            Self::Limit | Self::End | Self::Counted(_) => self,
        }
    }
}

/// What a subscriber may let pass until the next assignment, at most for [`ASSIGNMENT_TTL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Assignment {
    /// A bucket that is refilled evenly. An equal one keeps the tokens of the last one.
    Share(HitRate),
    /// A slice of this many hits, instead of all that is left of earlier assignments.
    Slice(u64),
    /// The last slice for longer, with what is left of it.
    Renewal(u64),
    /// No hits: all are refused.
    Deny,
}

/// What a report, or a turn without one, has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DivisionOutcome {
    /// New assignments. A division has one for each subscriber that has reported, unless its last one is to run out.
    pub assignments: Vec<(SubscriberId, Assignment)>,
    /// What becomes of the counter.
    pub turn: Turn,
    /// The instant of the next turn, if there is no report until then.
    pub next_at: Option<Timestamp>,
    /// Hits that passed at a subscriber without having been granted.
    pub beyond_grant: u64,
    /// The time from a change of demand or of subscribers until all shares were adjusted, if that is now.
    pub converged_after: Option<Duration>,
    /// The subscribers that a division has visited.
    pub visited: usize,
}

/// Moves instants of another process, at which it was `from`, to a clock that shows `to`.
pub(super) fn moved(instant: Timestamp, from: Timestamp, to: Timestamp) -> Timestamp {
    if from <= instant { to.after(instant.since(from)) } else { to.before(from.since(instant)) }
}

/// The hits that so many a second are in this time, rounded down.
pub(super) fn brought(per_second: u64, time: Duration) -> u64 {
    let hits = u128::from(per_second) * time.as_nanos() / u128::from(SECOND);
    u64::try_from(hits).unwrap_or(u64::MAX)
}

/// The instant at which an assignment of `now` is no longer in force.
pub(super) fn end_of_assignment(now: Timestamp) -> Timestamp {
    now.after(ASSIGNMENT_TTL + DELIVERY_MAX)
}
