//! Links between replicas, over real sockets of the loopback.

mod batches;
mod replica;
