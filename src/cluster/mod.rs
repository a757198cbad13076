//! Replicas that share keys and answer as one.

mod member;
mod message;
mod node;
mod slots;

pub use member::MemberId;
