//! Compiles `proto/` into Rust without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// The public API. Its descriptors are served by reflection.
const PUBLIC: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];
/// The protocol between replicas.
const CLUSTER: [&str; 2] = ["tollgate/cluster/v1/link.proto", "tollgate/cluster/v1/messages.proto"];
/// Large messages, boxed so that they do not increase the size of every item.
const LARGE: [&str; 5] = ["hello", "transfer", "backup", "known", "better"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let public = protox::compile(PUBLIC, ["proto"])?;
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(public)?;
    let cluster = protox::compile(CLUSTER, ["proto"])?;
    // `bytes` fields share the received buffer. `Debug` must not print the secret.
    let build = tonic_prost_build::configure().bytes(".").skip_debug([".tollgate.cluster.v1.Hashing"]);
    let build =
        LARGE.iter().fold(build, |build, kind| build.boxed(format!(".tollgate.cluster.v1.Item.kind.{kind}")));
    let build = build.boxed(".tollgate.cluster.v1.Ask.deed.settle");
    build.include_file("cluster.rs").compile_fds(cluster)?;
    Ok(())
}
