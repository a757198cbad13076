//! Clients that decide by themselves, and their parts of one limit, for operators.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::algorithm::HitRate;

/// The most clients of one limit that are listed.
pub const SUBSCRIBERS_LISTED_MAX: usize = 100;

/// A bucket of a stream of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubscriberId {
    /// The replica that has the stream; without a cluster, the process.
    pub replica: u64,
    /// The stream among those of the replica. The upper half is the number of its caller.
    pub stream: u64,
    /// The bucket among those of the stream.
    pub bucket: u32,
}

impl SubscriberId {
    /// The number of the caller that has the stream.
    pub(crate) fn caller(self) -> u32 {
        (self.stream >> u32::BITS) as u32
    }
}

/// What a subscriber has, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubscriberState {
    /// The subscriber.
    pub id: SubscriberId,
    /// Hits that the subscriber has requested in each second before its last report.
    pub demand: f64,
    /// The part of the limit that the subscriber has.
    pub part: LimitPart,
    /// The time after which the part is no longer in force, unless it is renewed.
    pub ends_after: Duration,
    /// Whether the subscriber is gone, so that the part is not renewed.
    pub has_ended: bool,
}

/// A part of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitPart {
    /// A share of a rate.
    Share(HitRate),
    /// A slice, and what may be left of it and of earlier ones.
    Slice {
        /// The hits of the last slice.
        hits: u64,
        /// Hits that the subscriber may still let pass.
        left: u64,
    },
}

/// The subscribers of one limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subscribers {
    /// The subscribers with the greatest demand, in descending order.
    pub first: Vec<SubscriberState>,
    /// The number of all subscribers.
    pub number: usize,
    /// Hits that callers without a part have requested in each second.
    pub callers: f64,
}

impl Subscribers {
    /// The subscribers `each`, of which at most `max` are listed.
    pub(crate) fn new(each: impl Iterator<Item = SubscriberState>, callers: f64, max: usize) -> Self {
        let mut first: Vec<SubscriberState> = each.collect();
        let number = first.len();
        first.sort_by(|one, other| other.demand.total_cmp(&one.demand).then(one.id.cmp(&other.id)));
        first.truncate(max);
        Self { first, number, callers }
    }
}
