//! Compiles `proto/` into Rust without needing `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;
use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

/// The public API. Its descriptors are served by reflection.
const PUBLIC: [&str; 4] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "google/rpc/error_details.proto",
    "tollgate/v1/tollgate.proto",
];
#[expect(clippy::disallowed_methods, reason = "cargo tells a build script in the environment where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut public = protox::compile(PUBLIC, ["../proto"])?;
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;
    hold_entries_as_bytes(&mut public);
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(public)?;
    Ok(())
}

/// Makes keys and values of entries bytes in Rust. Proxies put the values of headers into them, which need not be UTF-8.
/// Reflection and JSON have read the files before, and know texts.
fn hold_entries_as_bytes(files: &mut FileDescriptorSet) {
    for message in files.file.iter_mut().flat_map(|file| &mut file.message_type) {
        let fields = match message.name() {
            "Entry" => &mut message.field,
            "RateLimitDescriptor" => {
                match message.nested_type.iter_mut().find(|nested| nested.name() == "Entry") {
                    Some(DescriptorProto { field, .. }) => field,
                    None => continue,
                }
            }
            _another => continue,
        };
        fields.iter_mut().for_each(|field| field.set_type(Type::Bytes));
    }
}
