//! Replicas that share keys and answer as one.

pub mod link;
mod member;
mod message;
mod node;
mod seeds;
#[cfg(test)]
mod sim;
mod slots;
mod trust;
mod wire;

pub use member::MemberId;
pub use seeds::{SeedState, Vain};
pub use trust::{Files, Trust, TrustError};
