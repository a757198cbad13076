//! The fuzz target of copies of rules.

use tollgate_counter::time::Timestamp;

use crate::url::{
    address::Address,
    copy::{Copy, decode, encode},
};

/// A copy, or the document of one: what is read is written the same, and every document is read as it was written.
pub fn rules_copy(bytes: &[u8]) {
    let address = Address::parse("https://rules.example/edge.yaml").expect("it is a URL");
    let written = |copy: &Copy<Vec<u8>>| encode(copy, &address).expect("texts can be written");
    if let Ok(copy) = decode(bytes, &address) {
        assert_eq!(decode(&written(&copy), &address).ok(), Some(copy));
    }
    let etag = std::str::from_utf8(bytes).ok().map(str::to_owned);
    let copy = Copy { etag, kept_at: Timestamp::from_nanos(1), bytes: bytes.to_vec() };
    assert_eq!(decode(&written(&copy), &address).ok(), Some(copy));
}
