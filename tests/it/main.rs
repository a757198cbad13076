//! Integration tests of the service over real sockets, in one process.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

mod admin;
mod api_v1;
mod bad_requests;
mod bench;
mod calls;
mod certificates;
mod circles;
mod clock;
mod connections;
mod counters;
mod denials;
mod diff;
mod docs;
mod docs_front;
mod doctor;
mod forwards;
mod frames;
mod harness;
mod hostile_clients;
mod http;
mod layers;
mod lifecycle;
mod links;
mod llm;
mod log;
mod markdown;
mod metrics;
mod output;
mod pages;
mod program;
mod queue;
mod readiness;
mod reload;
mod responses;
mod rule_changes;
mod settings;
mod simulate;
mod size_limits;
mod special_files;
mod stop;
mod tls;
mod top;
mod traces;
mod use_cases;
