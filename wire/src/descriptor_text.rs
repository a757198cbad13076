//! Descriptors in their text form as entries of messages.

use tollgate_counter::descriptor;

use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

/// Parses a descriptor of at least one entry: `key=value,key=value`.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    Ok(descriptor::parse(text)?.into_iter().map(|(key, value)| Entry { key, value }).collect())
}

/// The text from which [`parse`] reads these entries.
pub fn format(entries: &[Entry]) -> String {
    descriptor::format(entries.iter().map(|entry| (&entry.key, &entry.value)))
}
