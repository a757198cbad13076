//! Messages as JSON, by the JSON mapping of Protocol Buffers.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::proto::DESCRIPTORS;

/// The descriptors of all messages and services of the public interfaces.
pub static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the build has compiled them"));

/// The descriptor of a message by its full name, such as `google.rpc.Status`.
///
/// # Panics
///
/// Panics if no public interface has this message.
pub fn message(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(name).expect("the build has compiled it")
}

/// Converts an encoded message to JSON: lowerCamelCase names, enumerations by name, default values omitted.
///
/// # Errors
///
/// Fails if `encoded` is no message of this kind.
pub fn text(message: MessageDescriptor, encoded: &[u8]) -> Result<String, serde_json::Error> {
    let mut decoded = DynamicMessage::new(message);
    prost::Message::merge(&mut decoded, encoded).map_err(serde::ser::Error::custom)?;
    let mut json = serde_json::Serializer::new(Vec::new());
    decoded.serialize_with_options(&mut json, &SerializeOptions::new())?;
    String::from_utf8(json.into_inner()).map_err(serde::ser::Error::custom)
}
