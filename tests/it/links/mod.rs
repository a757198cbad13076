//! Links between replicas, over real sockets of the loopback.

mod batches;
mod leaks;
mod loss;
mod meeting;
mod proxy;
mod replica;
mod trust;
