//! Replicas that share keys and answer as one.
//!
//! `node` is the state machine of a replica, without I/O. `link` carries messages between replicas. [`Cluster`]
//! connects the two and is the interface for the limiter.

mod calls;
mod degraded;
mod error;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
pub mod link;
mod member;
mod message;
mod node;
mod placement;
mod protocol;
mod replica;
#[cfg(test)]
mod sim;
mod stats;
mod strangers;
mod submit;
mod trust;
mod tuning;
mod wire;

pub use error::ClusterError;
pub use link::SeedState;
pub use member::{Departure, MemberId};
pub use message::MemberState;
pub use node::{ClusterView, MemberDeparture, MemberView};
pub use protocol::VERSION as PROTOCOL_VERSION;
pub use replica::{Cluster, ClusterSettings};
pub use stats::ClusterStats;
pub use strangers::LinkTrust;
pub use trust::{Files, TRUST_MISSING, Trust};
pub use tuning::Tuning;
