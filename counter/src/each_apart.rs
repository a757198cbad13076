//! Encodes each item of a list by itself, so that a reader can leave out one with a limit that it does not know.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// Encodes the items.
pub fn serialize<T: Serialize, S: Serializer>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    let bytes = |item| postcard::to_stdvec(item).expect("memory grows as needed, and every length is known");
    serializer.collect_seq(items.iter().map(bytes))
}

/// Decodes the items that are known here.
pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let each: Vec<&[u8]> = Vec::deserialize(deserializer)?;
    Ok(each.into_iter().filter_map(|bytes| postcard::from_bytes(bytes).ok()).collect())
}
