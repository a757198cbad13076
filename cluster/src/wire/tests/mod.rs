//! Laws of the codec.

use proptest::prelude::*;
use tokio_util::bytes::Bytes;
use tollgate_counter::time::{SECOND, Timestamp};

use crate::{
    message::Message,
    wire::{decode, encode},
};

mod any;
mod golden;
mod receipts;
mod versions;

use any::{NOW, message};

fn messages() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec(message(), 0..6)
}

/// Changes bytes of a batch; positions wrap around its length.
fn mutated(batch: &Bytes, changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = batch.to_vec();
    let length = bytes.len().max(1);
    for (at, byte) in changes {
        if let Some(here) = bytes.get_mut(at % length) {
            *here = *byte;
        }
    }
    bytes
}

proptest! {
    #[test]
    fn decoded_messages_equal_encoded_ones(messages in messages()) {
        prop_assert_eq!(decode(&encode(&messages, NOW), NOW), Ok(messages));
    }

    #[test]
    fn slot_data_of_message_is_within_its_size(message in message()) {
        let encoded = message.contents().map(|contents| contents.encode(NOW).len()).sum::<usize>();
        prop_assert!(encoded <= message.data_bytes());
        prop_assert!(message.data_bytes() == 0 || message.contents().next().is_some());
    }

    #[test]
    fn concatenated_batches_decode_as_one_batch(one in messages(), other in messages()) {
        let bytes = [encode(&one, NOW), encode(&other, NOW)].concat();
        let both: Vec<_> = one.into_iter().chain(other).collect();
        prop_assert_eq!(decode(&bytes, NOW), Ok(both));
    }

    #[test]
    fn changed_bytes_decode_to_messages_or_error(
        messages in messages(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        later in 0..100 * SECOND,
    ) {
        let mut batch = mutated(&encode(&messages, NOW), &changes);
        if let Some(cut) = cut {
            batch.truncate(cut.index(batch.len() + 1));
        }
        if let Ok(messages) = decode(&batch, Timestamp::from_nanos(later)) {
            prop_assert_eq!(decode(&encode(&messages, NOW), NOW).map(|again| again.len()), Ok(messages.len()));
        }
    }

    #[test]
    fn arbitrary_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _either = decode(&bytes, NOW);
    }

    #[test]
    fn truncated_batch_is_error_or_its_first_messages(
        messages in messages(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut batch = encode(&messages, NOW);
        batch.truncate(cut.index(batch.len() + 1));
        if let Ok(some) = decode(&batch, NOW) {
            prop_assert_eq!(&some[..], &messages[..some.len()]);
        }
    }
}

#[test]
fn debug_output_of_hello_hides_secret() {
    let secret = *b"0123456789abcdef";
    let hello = golden::hello(secret);
    for shown in [format!("{hello:?}"), format!("{hello:#?}")] {
        assert!(shown.contains("founder"), "{shown}");
        for form in [String::from_utf8_lossy(&secret).into_owned(), format!("{secret:?}"), "48".to_owned()] {
            assert!(!shown.contains(&form), "{form} in {shown}");
        }
    }
}
