//! Compiles `proto/` into Rust without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// What callers speak; they may ask for its descriptors.
const PUBLIC: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];
/// What replicas speak among themselves.
const CLUSTER: [&str; 1] = ["tollgate/cluster/v1/link.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let public = protox::compile(PUBLIC, ["proto"])?;
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(public)?;
    let cluster = protox::compile(CLUSTER, ["proto"])?;
    // Batches are handed on as they came, not copied.
    tonic_prost_build::configure().bytes(".").include_file("cluster.rs").compile_fds(cluster)?;
    Ok(())
}
