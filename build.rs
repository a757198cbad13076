//! Compiles `proto/` into Rust without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// What callers speak; they may ask for its descriptors.
const PUBLIC: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];
/// What replicas speak among themselves.
const CLUSTER: [&str; 2] = ["tollgate/cluster/v1/link.proto", "tollgate/cluster/v1/messages.proto"];
/// Messages with few readers and many fields, which would make room for themselves in every item.
const LARGE: [&str; 5] = ["hello", "transfer", "backup", "known", "better"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let public = protox::compile(PUBLIC, ["proto"])?;
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(public)?;
    let cluster = protox::compile(CLUSTER, ["proto"])?;
    // Bytes are handed on as they came, not copied; and the secret is shown to nobody.
    let build = tonic_prost_build::configure().bytes(".").skip_debug([".tollgate.cluster.v1.Hashing"]);
    let build =
        LARGE.iter().fold(build, |build, kind| build.boxed(format!(".tollgate.cluster.v1.Item.kind.{kind}")));
    let build = build.boxed(".tollgate.cluster.v1.Ask.deed.settle");
    build.include_file("cluster.rs").compile_fds(cluster)?;
    Ok(())
}
