//! Laws of the codec.

use proptest::prelude::*;
use prost::{Message as _, bytes::Bytes};

use crate::{
    cluster::{
        message::Message,
        wire::{Malformed, decode, encode},
    },
    time::{SECOND, Timestamp},
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
fn mutated(batch: &Bytes, changes: &[(usize, u8)]) -> Bytes {
    let mut bytes = batch.to_vec();
    let length = bytes.len().max(1);
    for (at, byte) in changes {
        if let Some(here) = bytes.get_mut(at % length) {
            *here = *byte;
        }
    }
    bytes.into()
}

proptest! {
    #[test]
    fn decoded_messages_equal_encoded_ones(messages in messages()) {
        prop_assert_eq!(decode(encode(&messages, NOW), NOW), Ok(messages));
    }

    #[test]
    fn concatenated_batches_decode_as_one_batch(one in messages(), other in messages()) {
        let bytes = [encode(&one, NOW), encode(&other, NOW)].concat();
        let both: Vec<_> = one.into_iter().chain(other).collect();
        prop_assert_eq!(decode(bytes.into(), NOW), Ok(both));
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
        if let Ok(messages) = decode(batch, Timestamp::from_nanos(later)) {
            prop_assert_eq!(decode(encode(&messages, NOW), NOW).map(|again| again.len()), Ok(messages.len()));
        }
    }

    #[test]
    fn arbitrary_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _either = decode(bytes.into(), NOW);
    }

    #[test]
    fn truncated_batch_is_error_or_its_first_messages(
        messages in messages(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut batch = encode(&messages, NOW);
        batch.truncate(cut.index(batch.len() + 1));
        if let Ok(some) = decode(batch, NOW) {
            prop_assert_eq!(&some[..], &messages[..some.len()]);
        }
    }

    #[test]
    fn decode_error_quotes_no_byte(
        secret in any::<[u8; 16]>(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8),
    ) {
        let hello = golden::hello(secret);
        if let Err(error) = decode(mutated(&encode(&[hello], NOW), &changes), NOW) {
            let (shown, told) = (format!("{error:?}"), error.to_string());
            prop_assert!(!shown.contains(|character: char| character.is_ascii_digit()), "{}", shown);
            prop_assert!(!told.contains(|character: char| character.is_ascii_digit()), "{}", told);
        }
    }
}

/// An item with this field number whose content is an end-of-group tag without a group.
fn damaged_item(kind: u32) -> Bytes {
    let mut item = Vec::new();
    prost::encoding::encode_key(kind, prost::encoding::WireType::LengthDelimited, &mut item);
    item.extend([1, 0x0c]);
    let mut batch = vec![0x0a, item.len() as u8];
    batch.extend(item);
    batch.into()
}

#[test]
fn damaged_message_error_names_its_kind() {
    let kinds = [
        "ask", "answer", "hello", "member", "holds", "transfer", "taken", "backup", "backed", "lacking",
        "query", "known", "orphan", "better", "recall", "revoke",
    ];
    for (number, kind) in (1..).zip(kinds) {
        let error = decode(damaged_item(number), NOW).unwrap_err();
        assert_eq!(error, Malformed::Message { kind });
        assert_eq!(error.to_string(), format!("a message of kind `{kind}` is damaged"));
    }
    assert_eq!(decode(Bytes::from_static(&[0x0c]), NOW), Err(Malformed::Batch));
}

#[test]
fn length_beyond_end_is_damage() {
    assert_eq!(
        decode(Bytes::from_static(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]), NOW),
        Err(Malformed::Batch)
    );
    // The address of a member.
    let item = Bytes::from_static(&[0x0a, 8, 0x22, 6, 0x12, 0xff, 0xff, 0xff, 0x7f, 1]);
    assert_eq!(decode(item, NOW), Err(Malformed::Message { kind: "member" }));
}

#[test]
fn debug_output_of_hello_hides_secret() {
    let secret = *b"0123456789abcdef";
    let hello = golden::hello(secret);
    let bytes = encode(std::slice::from_ref(&hello), NOW);
    let sent = super::proto::Batch::decode(bytes).unwrap();
    for shown in [format!("{hello:?}"), format!("{sent:?}"), format!("{sent:#?}")] {
        assert!(shown.contains("founder"), "{shown}");
        for form in [String::from_utf8_lossy(&secret).into_owned(), format!("{secret:?}"), "48".to_owned()] {
            assert!(!shown.contains(&form), "{form} in {shown}");
        }
    }
}
