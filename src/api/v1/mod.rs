//! Our own API, `tollgate.v1`: from the bytes of a call to the bytes of its reply.
//!
//! Requests of a call that are decided each by itself are decoded, decided and encoded one after the other. Those with
//! counters elsewhere are planned, and their counters are asked together.

pub(crate) mod decide;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod limit_renewal;
mod own_limits;
pub(crate) mod reservations;
mod reset;
pub mod stream;
