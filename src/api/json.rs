//! The same messages as JSON, by the JSON mapping of Protocol Buffers.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::api::proto::{
    DESCRIPTORS,
    envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the build has compiled them"));

/// Reads a request. An unknown field is an error, as is anything after the request.
pub fn request(json: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize(descriptor("RateLimitRequest"), &mut reader)?;
    reader.end()?;
    message.transcode_to().map_err(serde::de::Error::custom)
}

/// Writes a request, as [`response`] does.
pub fn request_text(request: &RateLimitRequest) -> Result<String, serde_json::Error> {
    text("RateLimitRequest", &request.encode_to_vec())
}

/// Writes a response: lowerCamelCase names, enumerations by name, fields left out that have their default.
pub fn response(response: &RateLimitResponse) -> Result<String, serde_json::Error> {
    text("RateLimitResponse", &response.encode_to_vec())
}

fn text(name: &str, encoded: &[u8]) -> Result<String, serde_json::Error> {
    let mut message = DynamicMessage::new(descriptor(name));
    message.merge(encoded).map_err(serde::ser::Error::custom)?;
    let mut json = serde_json::Serializer::new(Vec::new());
    message.serialize_with_options(&mut json, &SerializeOptions::new())?;
    String::from_utf8(json.into_inner()).map_err(serde::ser::Error::custom)
}

fn descriptor(message: &str) -> MessageDescriptor {
    POOL.get_message_by_name(&format!("envoy.service.ratelimit.v3.{message}"))
        .expect("the build has compiled it")
}
