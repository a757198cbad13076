//! Replicas of one cluster, and what they say to each other.

pub mod link;
mod member;
mod seeds;
mod trust;

pub use member::MemberId;
pub use seeds::{SeedState, Vain};
pub use trust::{Files, Trust, TrustError};
