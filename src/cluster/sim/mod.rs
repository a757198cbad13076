//! Many replicas in one thread, over a network that delays, cuts and loses, all from a seed.
//!
//! A script is data: [`Step`]s such as starting, cutting, draining, killing, and asking. After every script the world
//! must hold what the cluster promises; a seed that breaks one is printed, and plays again by its number.

use std::time::Duration;

mod keys;
mod random;
mod scripts;
mod world;

use world::World;

use crate::{
    cluster::{message::Message, wire},
    time::Timestamp,
};

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Starts replicas.
    Start(usize),
    /// Starts replicas, each with what one that has left held last: those of the first to leave come first.
    Resume(usize),
    /// Tells the replica of this number to leave.
    Drain(usize),
    /// Tells the replica that holds the first key to leave.
    DrainOwner,
    /// Ends it without a word.
    Kill(usize),
    /// Stops a replica that has borrowed hits of the first key, once there is one and all calls are answered, and
    /// asks no more: it neither hears nor does anything, and nothing tells others so.
    FreezeBorrower,
    /// Lets every stopped replica go on.
    Thaw,
    /// Nothing passes between these replicas and the others.
    Cut(Vec<usize>),
    /// Everything passes again.
    Heal,
    /// Moves a replica's clock by milliseconds; back, it gives up a lead.
    Skew(usize, i64),
    /// Asks so many times a second, of replicas and keys by chance.
    Traffic(u32),
    /// Only of the first key.
    Hot(u32),
    /// Lets time pass.
    Pass(Duration),
    /// Lets time pass until every slot has the holder that is wanted; 20 seconds at most.
    Settle,
}

/// Messages as they arrive where the clock shows another time: they go over the wire as everywhere.
fn carried(messages: &[Message], sent_at: Timestamp, now: Timestamp) -> Vec<Message> {
    wire::decode(wire::encode(messages, sent_at), now).expect("what was just written can be read")
}
