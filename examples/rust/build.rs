//! Generates the client at every build. `protox` compiles without `protoc`.

use std::error::Error;

// In a service, the directory of the copy of proto/.
const PROTO: &str = "../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO])?;
    tonic_prost_build::configure().build_server(false).include_file("proto.rs").compile_fds(files)?;
    Ok(())
}
