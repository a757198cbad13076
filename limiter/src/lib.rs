//! Rate limits inside a program: rules in the format of Envoy's rate limit service, exact algorithms, and counters in
//! memory or in Redis. See [`Limiter::from_yaml`].
//!
//! The modules that this page does not show are for the service Tollgate. They change without notice.

#![cfg_attr(not(feature = "redis"), allow(dead_code, unused_imports, reason = "the feature uses the rest"))]

#[doc(hidden)]
pub mod algorithm;
#[doc(hidden)]
pub mod descriptor;
#[doc(hidden)]
pub mod divider;
#[doc(hidden)]
pub mod each_apart;
#[cfg(feature = "watch")]
#[doc(hidden)]
pub mod file_watch;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod limiter;
#[doc(hidden)]
pub mod lock;
#[doc(hidden)]
pub mod metrics;
mod named;
#[doc(hidden)]
pub mod printable;
#[doc(hidden)]
pub mod remote;
#[doc(hidden)]
pub mod resilience;
#[doc(hidden)]
pub mod rules;
#[cfg(feature = "redis")]
pub mod shared_limiter;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub mod shared_store;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod time;
#[cfg(feature = "tower")]
pub mod tower;
#[doc(hidden)]
pub mod yaml;

#[doc(inline)]
pub use algorithm::Operation;
#[doc(inline)]
pub use descriptor::Entry;
#[doc(inline)]
pub use limiter::{
    ActiveView, Answer, CheckError, Checked, Descriptor, HoldError, Limiter, LimiterError,
    PreparedDescriptor, Request, RequestError, Reservation, Status,
};
#[cfg(feature = "watch")]
#[doc(inline)]
pub use rules::FileSettings;
#[doc(inline)]
pub use rules::{Location, Problem, Problems};
#[doc(inline)]
pub use store::{HoldId, HoldIdTooLong, HoldTtlOutOfBounds, SettleOutcome, Settled};
