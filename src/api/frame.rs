//! The frame that gRPC puts around a message: whether it is compressed, and its length.

/// The bytes before a message.
const HEAD: usize = 5;

/// Whether `bytes` are exactly one frame around a message that is not compressed.
pub fn is_one_frame(bytes: &[u8]) -> bool {
    message_in(bytes).is_some()
}

/// The message in `bytes`; `None` unless they are exactly one frame around a message that is not compressed.
pub(super) fn message_in(bytes: &[u8]) -> Option<&[u8]> {
    let ([flag, length @ ..], message) = bytes.split_first_chunk::<HEAD>()?;
    let is_whole = u32::from_be_bytes(*length) as usize == message.len();
    (*flag == 0 && is_whole).then_some(message)
}

/// The frame of a message of `length` bytes, which fit and are to follow.
pub(super) fn begin(length: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + length);
    frame.push(0);
    // An answer to a message of at most 4 MiB is far below 4 GiB.
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    frame
}
