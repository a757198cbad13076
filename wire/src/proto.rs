//! Code generated from `proto/`.

include!(concat!(env!("OUT_DIR"), "/proto.rs"));

/// Descriptors of all files of `proto/`, for reflection and JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
