//! Rate limits inside a program: rules in the format of Envoy's rate limit service, exact algorithms, and counters in
//! memory or in Redis. See [`Limiter::from_yaml`].

#![cfg_attr(
    not(all(feature = "limits", feature = "redis")),
    allow(dead_code, unused_imports, reason = "the features use the rest")
)]

pub mod limiter;
#[cfg(feature = "redis")]
pub mod shared_limiter;
#[cfg(feature = "tower")]
pub mod tower;

#[doc(inline)]
pub use limiter::{
    ActiveView, Answer, CheckError, Checked, Descriptor, HoldError, Limiter, LimiterError,
    PreparedDescriptor, Request, RequestError, Reservation, Status,
};
#[doc(inline)]
pub use tollgate_counter::algorithm::Operation;
#[doc(inline)]
pub use tollgate_counter::descriptor::Entry;
#[cfg(feature = "watch")]
#[doc(inline)]
pub use tollgate_rules::FileSettings;
#[doc(inline)]
pub use tollgate_rules::{Location, Problem, Problems};
#[doc(inline)]
pub use tollgate_store::{HoldId, HoldIdTooLong, HoldTtlOutOfBounds, SettleOutcome, Settled};
