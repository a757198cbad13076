//! Code generated from `proto/`.
#![allow(missing_docs, clippy::all, clippy::disallowed_methods)]

include!(concat!(env!("OUT_DIR"), "/proto.rs"));
