//! Divides a limit over clients that decide by themselves, as the rate limit quota service of Envoy needs it.
//!
//! A subscriber is a bucket of one stream of reports. A limit with a rate is divided into shares, max-min fair by
//! demand. Any other limit is divided into slices: hits that are granted once, and that count as charged until reports
//! say what has become of them. Callers that send each request are one more subscriber.
//!
//! A [`Divider`] is pure: reports, a view of the counter and the time in, assignments out.

mod assignment;
mod demand;
mod divide;
mod max_min;
mod registry;
mod roster;
mod shares;
mod slices;
mod stats;

pub use assignment::{
    ASSIGNMENT_TTL, Assignment, DividerReport, DivisionOutcome, SubscriberUsage, UNCERTAIN,
};
pub use divide::{Divider, SUBSCRIBERS_MAX, is_divisible};
pub use registry::{Assignments, Divide, Dividers, SlotDivisions, SubscriberReport};
pub use stats::DividerStats;

pub use crate::{LimitPart, SUBSCRIBERS_LISTED_MAX, SubscriberId, SubscriberState, Subscribers};

#[cfg(test)]
mod tests;
