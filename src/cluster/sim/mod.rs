//! Simulation: many replicas in one thread, over a network that delays, cuts and loses messages, all from a seed.
//!
//! A script is a list of [`Step`]s such as starting, cutting, draining, killing and calling. After every script the
//! world must keep the promises of the cluster. A seed that breaks a promise is printed, and repeats the same run.

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
    /// Starts replicas, each from the snapshot of a replica that has left, in the order in which those left.
    Resume(usize),
    /// Drains the replica with this number.
    Drain(usize),
    /// Drains the owner of the first key.
    DrainOwner,
    /// Ends the replica without a goodbye.
    Kill(usize),
    /// Waits until a replica has borrowed hits of the first key and all calls are answered, stops the traffic, and
    /// freezes that replica: it neither receives nor sends, and its peers get no notice of that.
    FreezeBorrower,
    /// Resumes every frozen replica.
    Thaw,
    /// Cuts the network between these replicas and the others.
    Cut(Vec<usize>),
    /// Ends the cut.
    Heal,
    /// Moves a replica's clock by this many milliseconds. A negative number gives up a lead.
    Skew(usize, i64),
    /// Sets the number of calls per second, to random replicas and keys.
    Traffic(u32),
    /// The same, for the first key only.
    Hot(u32),
    /// Lets time pass.
    Pass(Duration),
    /// Lets time pass until every slot is owned as placed, 20 seconds at most.
    Settle,
}

/// Encodes and decodes messages, as if the receiver's clock showed `now`.
fn over_the_wire(messages: &[Message], sent_at: Timestamp, now: Timestamp) -> Vec<Message> {
    wire::decode(wire::encode(messages, sent_at), now).expect("a message that was just encoded")
}
