//! Compiles what a control plane sends into Rust without needing `protoc`.

use std::error::Error;

const CONTROL_PLANE: [&str; 2] =
    ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../proto");
    let control_plane = protox::compile(CONTROL_PLANE, ["../proto"])?;
    tonic_prost_build::configure().build_server(false).include_file("proto.rs").compile_fds(control_plane)?;
    Ok(())
}
