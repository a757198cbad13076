//! Generates the messages at every build. `protox` compiles without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["tollgate/v1/tollgate.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .include_file("proto.rs")
        .compile_fds(files)?;
    Ok(())
}
