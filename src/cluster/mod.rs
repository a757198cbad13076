//! Replicas that share keys and answer as one.

mod member;
#[allow(dead_code, reason = "whoever sends and reads messages comes next")]
mod message;
#[allow(dead_code, reason = "whoever sends and reads messages comes next")]
mod wire;

pub use member::MemberId;
