//! Compiles `proto/` into Rust without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

const FILES: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(files)?;
    Ok(())
}
