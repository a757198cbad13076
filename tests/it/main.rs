//! Tests of the service as its users see it: over real sockets, in one process, needing nothing else.

#![allow(clippy::unwrap_used, reason = "what a test unwraps, it asserts")]

mod admin;
mod answers;
mod bench;
mod calls;
mod certificates;
mod changes;
mod clock;
mod connections;
mod counters;
mod denials;
mod docs;
mod floors;
mod forwards;
mod frames;

mod harness;
mod hostile;
mod http;
mod life;
mod links;
mod metrics;
mod program;
mod queue;
mod readiness;
mod reload;
mod settings;
mod sizes;
mod special_files;
mod tls;
mod traces;
mod uses;
