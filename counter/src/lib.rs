//! What counts: time, the keys of counters, the algorithms and their limits. It has no store, no rules and no tasks.
//!
//! Besides, what several packages above need and none of them owns: files, locks, metrics, bounds of callers.

pub mod algorithm;
pub mod descriptor;
pub mod each_apart;
pub mod files;
pub mod lock;
pub mod metrics;
mod named;
pub mod packed_counter;
pub mod printable;
pub mod resilience;
pub mod time;
