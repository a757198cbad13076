//! Records with a tag and a length.

/// The maximum encoded size of a length, with seven bits in each byte.
const LENGTH_MAX: usize = usize::BITS.div_ceil(7) as usize;

/// Writes a tag, a length and the fields.
pub(crate) fn put_tagged(bytes: &mut Vec<u8>, tag: u8, body: &[u8]) {
    let mut length = [0; LENGTH_MAX];
    let length =
        postcard::to_slice(&body.len(), &mut length).expect("the buffer has the maximum size of a length");
    bytes.push(tag);
    bytes.extend_from_slice(length);
    bytes.extend_from_slice(body);
}

/// Splits off what [`put_tagged`] has written.
pub(crate) fn tagged(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = postcard::take_from_bytes(rest).ok()?;
    let (body, rest) = rest.split_at_checked(length)?;
    Some((*tag, body, rest))
}
