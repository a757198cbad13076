//! Compiles the frames between replicas into Rust without needing `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let link = protox::compile(["tollgate/cluster/v1/link.proto"], ["proto"])?;
    // `bytes` fields share the received buffer.
    tonic_prost_build::configure().bytes(".").include_file("cluster.rs").compile_fds(link)?;
    Ok(())
}
