//! Replicas that share keys and answer as one.

mod member;
mod message;
mod node;
#[cfg(test)]
mod sim;
mod slots;
mod wire;

pub use member::MemberId;
