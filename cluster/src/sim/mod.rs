//! Simulation: many replicas in one thread, over a network that delays, cuts and loses messages, all from a seed.
//!
//! A script is a list of [`Step`]s such as starting, cutting, draining, killing and calling. While time passes, after
//! every step and at the end the world must keep the promises of the cluster: too many hits, needless refusals and late
//! answers are faults. A seed that breaks a promise is printed, and repeats the same run.
//!
//! The link delivers each message of a session once and in order, across any number of connections. So messages are
//! neither lost, doubled nor reordered alone. A lost connection is a longer delay, and a forgotten session loses its
//! last messages: both happen here, when a process dies, is frozen or is cut off for long.

use std::time::Duration;

mod backups;
mod calls;
mod checker;
mod claims;
mod forwards;
mod holds;
mod keys;
mod members;
mod own_limits;
mod quotas;
mod random;
mod record;
mod regions;
mod regressions;
mod scripts;
mod world;

use world::World;

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Starts replicas.
    Start(usize),
    /// Starts replicas, each from the snapshot of a replica that has left, in the order in which those left.
    Resume(usize),
    /// Lets the next replicas to resume find no usable snapshot, because it is missing or damaged.
    LoseSnapshots(usize),
    /// Every replica writes a snapshot now. If it crashes, this one remains.
    Store,
    /// Gives the replicas to resume the snapshots of the last [`Step::Store`], which are older.
    AgeSnapshots,
    /// Drains the replica with this number.
    Drain(usize),
    /// Drains replicas at the same instant.
    DrainTogether(Vec<usize>),
    /// Drains the owner of the first key.
    DrainOwner,
    /// Ends the replica without a goodbye.
    Kill(usize),
    /// Ends replicas at the same instant without a goodbye.
    KillTogether(Vec<usize>),
    /// Freezes the replica with this number: it neither receives nor sends.
    Freeze(usize),
    /// Waits until a replica has borrowed hits of the first key and all calls are answered, stops the traffic, and
    /// freezes that replica: it neither receives nor sends, and its peers get no notice of that.
    FreezeBorrower,
    /// Resumes every frozen replica.
    Thaw,
    /// Cuts the network between these replicas and the others.
    Cut(Vec<usize>),
    /// Cuts only what these replicas send to the others.
    CutOneWay(Vec<usize>),
    /// Cuts the network between these replicas and the others, which reject each other: their secrets differ.
    Distrust(Vec<usize>),
    /// Ends the cut.
    Heal,
    /// Puts a process that is no member at a seed of every replica.
    Stranger,
    /// Sets the longest delay of a message, in milliseconds.
    Delay(u64),
    /// Moves a replica's clock by this many milliseconds. A negative number gives up a lead.
    Skew(usize, i64),
    /// Divides every limit by this number, at every replica at another time within 300 ms.
    Rules(u32),
    /// Sets the number of calls per second, to random replicas and keys.
    Traffic(u32),
    /// Sets the number of calls per second, to random replicas and for the first key only.
    Hot(u32),
    /// Sets the number of calls per second with every operation: several descriptors, weights, peeks, refunds,
    /// overrides of classic limits, and rules with and without leases.
    Mixed(u32),
    /// Sets the number of calls per second that reserve, settle and cancel, in addition to the other traffic. Some are
    /// repeated, and some reservations expire.
    Hold(u32),
    /// Sets the number of calls per second for keys with limits of their own, in addition to the other traffic. Some set
    /// or clear the limit.
    Own(u32),
    /// Starts clients that decide by themselves: the caller of each, and its requests a second.
    Envoys(&'static [(u32, u32)]),
    /// Calls with this many other keys, so that memory runs out.
    Flood(usize),
    /// Breaks something that the replicas do not know of, to test the checker.
    Tamper(Tamper),
    /// Lets time pass.
    Pass(Duration),
    /// Lets time pass until every slot is owned as placed, 20 seconds at most.
    Settle,
}

/// A fault of the product, as the checker must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tamper {
    /// The owner of the key with this number takes so many hits for charged.
    SetHits(usize, u64),
    /// The owner of each key with a limit of its own forgets that.
    ForgetOwnLimits,
    /// The owner of the key with this number takes its open reservations for canceled.
    CancelHolds(usize),
    /// The replica with this number does nothing that depends on time alone.
    Stall(usize),
    /// No replica has more than this many bytes of memory, but none knows it.
    ShrinkMemory(u64),
    /// Every replica takes the slot data that arrives for so many milliseconds younger than it is.
    RejuvenateCopies(u64),
}
