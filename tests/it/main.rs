//! Tests of the service as its users see it: over real sockets, in one process, needing nothing else.

#![allow(clippy::unwrap_used, reason = "what a test unwraps, it asserts")]

mod admin;
mod answers;
mod changes;
mod counters;
mod docs;
mod floors;
mod harness;
mod http;
mod life;
mod queue;
mod reload;
mod settings;
mod uses;
