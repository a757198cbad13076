//! Links between replicas, over real sockets of the loopback.

mod batches;
mod discovery;
mod leaks;
mod loss;
pub mod proxy;
mod replica;
mod trust;
