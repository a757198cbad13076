//! A request from the bytes of its protobuf message, and why bytes are no request.

use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

use crate::{
    api::proto::envoy::service::ratelimit::v3::RateLimitRequest,
    limiter::{Bounds, TooLarge},
};

/// The number of `RateLimitRequest.descriptors`.
const DESCRIPTORS: u32 = 2;
/// The number of `RateLimitDescriptor.entries`.
const ENTRIES: u32 = 1;

/// Why bytes are not a request, whatever their format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// There is more of something than the bounds allow. Nothing was built.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// They are no `RateLimitRequest` in their format.
    #[error("{0}")]
    Malformed(String),
}

/// Reads a message within `bounds`, which are checked before anything is built.
pub(super) fn decode(message: &[u8], bounds: Bounds) -> Result<RateLimitRequest, Unreadable> {
    check(message, bounds)?;
    RateLimitRequest::decode(message).map_err(|error| Unreadable::Malformed(error.to_string()))
}

/// Counts descriptors and entries. A message that is malformed passes if the part before the error is within `bounds`:
/// the decoder builds that part and fails at the same byte.
fn check(message: &[u8], bounds: Bounds) -> Result<(), TooLarge> {
    let mut descriptors = 0;
    let walked = each_message(message, DESCRIPTORS, |descriptor| {
        let index = descriptors;
        bounds.descriptor(index)?;
        descriptors += 1;
        let mut entries = 0;
        each_message(descriptor, ENTRIES, |_entry| {
            bounds.entry(index, entries)?;
            entries += 1;
            Ok(())
        })
    });
    match walked {
        Ok(()) | Err(Stop::Malformed) => Ok(()),
        Err(Stop::TooLarge(error)) => Err(error),
    }
}

/// Why a message is not walked to its end.
enum Stop {
    Malformed,
    TooLarge(TooLarge),
}

impl From<TooLarge> for Stop {
    fn from(error: TooLarge) -> Self {
        Self::TooLarge(error)
    }
}

impl From<DecodeError> for Stop {
    fn from(_: DecodeError) -> Self {
        Self::Malformed
    }
}

/// Hands the content of each field `number` to `found`, and skips the other fields.
fn each_message(
    mut message: &[u8],
    number: u32,
    mut found: impl FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<(), Stop> {
    while !message.is_empty() {
        let (field, kind) = decode_key(&mut message)?;
        if field == number && kind == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut message)?).map_err(|_| Stop::Malformed)?;
            let (content, rest) = message.split_at_checked(length).ok_or(Stop::Malformed)?;
            found(content)?;
            message = rest;
        } else {
            skip_field(kind, field, &mut message, DecodeContext::default())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { descriptors: 2, entries: 3 };
    const DESCRIPTOR: [u8; 2] = [0x12, 0];
    const ENTRY: [u8; 2] = [0x0a, 0];
    const GROUP: [u8; 2] = [0x7b, 0x7c];

    fn descriptor(entries: usize) -> Vec<u8> {
        [&[0x12, 2 * entries as u8][..], &ENTRY.repeat(entries)].concat()
    }

    #[test]
    fn message_beyond_the_bounds_is_refused_whatever_else_is_in_it() {
        let descriptors = TooLarge::Descriptors { most: 2 };
        let entries = TooLarge::Entries { descriptor: 1, most: 3 };
        for (message, expected) in [
            (DESCRIPTOR.repeat(2), Ok(())),
            (descriptor(3).repeat(2), Ok(())),
            (DESCRIPTOR.repeat(3), Err(descriptors)),
            ([descriptor(3), descriptor(4)].concat(), Err(entries)),
            // Fields that the usual reader leaves to the decoder.
            ([&GROUP[..], &DESCRIPTOR.repeat(3)].concat(), Err(descriptors)),
            // Malformed behind the bounds.
            ([&DESCRIPTOR.repeat(3)[..], &[0xff]].concat(), Err(descriptors)),
        ] {
            let read = decode(&message, BOUNDS).map(drop);
            assert_eq!(read, expected.map_err(Unreadable::TooLarge), "{message:?}");
        }
    }

    #[test]
    fn malformed_message_within_the_bounds_is_the_decoders_to_refuse() {
        for message in [&[0x12, 5][..], &[0x12, 2, 0x0a, 9], &[0xff; 20], &[0x7b, 0x12, 0]] {
            assert!(matches!(decode(message, BOUNDS), Err(Unreadable::Malformed(_))), "{message:?}");
        }
    }
}
