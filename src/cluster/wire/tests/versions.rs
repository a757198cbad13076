//! Compatibility with messages of other versions.

use std::{sync::Arc, time::Duration};

use prost::{
    Message as _,
    bytes::{BufMut, Bytes, BytesMut},
    encoding::{WireType, encode_key, encode_varint},
};

use super::any::NOW;
use crate::{
    algorithm::{Classic, Limit, Operation, Verdict, Window},
    cluster::{
        MemberId,
        message::*,
        wire::{
            Malformed, decode, encode,
            proto::{self, ask, item::Kind},
        },
    },
    descriptor::Key,
    store::{Slot, SlotData},
    time::SECOND,
};

const LACKING: Message = Message::BackupBaseMissing { slot: Slot(5) };

fn limit() -> Limit {
    Limit::Classic(Classic { limit: 10, window: Window::of_nanos(60 * SECOND).unwrap() })
}

fn bytes_of(limit: &Limit) -> Bytes {
    postcard::to_stdvec(limit).unwrap().into()
}

fn batch(kinds: impl IntoIterator<Item = Kind>) -> Bytes {
    let items = kinds.into_iter().map(|kind| proto::Item { kind: Some(kind) }).collect();
    proto::Batch { items }.encode_to_vec().into()
}

fn heard(kind: Kind) -> Result<Vec<Message>, Malformed> {
    decode(batch([kind]), NOW)
}

fn slotless(copy: proto::Copy) -> Kind {
    Kind::Backup(Box::new(proto::Backup { slot: 0, copy: Some(copy), after: None }))
}

/// Prepends a field that no version has to `message`.
fn with_an_unknown_field(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(500, WireType::LengthDelimited, &mut bytes);
    encode_varint(3, &mut bytes);
    bytes.put_slice(b"new");
    bytes.put_slice(message);
    bytes
}

/// A length-delimited field that holds `message`.
fn field(number: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(message.len() as u64, &mut bytes);
    bytes.put_slice(message);
    bytes
}

#[test]
fn message_of_unknown_kind_is_ignored() {
    let mut bytes = BytesMut::from(&encode(&[LACKING], NOW)[..]);
    bytes.put_slice(&field(1, &field(400, b"what a later version says")));
    bytes.put_slice(&field(1, b""));
    bytes.put(encode(&[LACKING], NOW));
    assert_eq!(decode(bytes.freeze(), NOW), Ok(vec![LACKING, LACKING]));
}

#[test]
fn unknown_fields_are_ignored_at_every_depth() {
    let lacking = with_an_unknown_field(&proto::Lacking { slot: 5 }.encode_to_vec());
    let item = with_an_unknown_field(&field(10, &lacking));
    let batch = with_an_unknown_field(&field(1, &item));
    assert_eq!(decode(batch.into(), NOW), Ok(vec![LACKING]));
}

#[test]
fn ask_with_unknown_operation_or_limit_is_ignored() {
    let ask = |limit, deed| Kind::Ask(proto::Ask { limit, deed, ..Default::default() });
    let look = || Some(ask::Deed::Look(true));
    assert_eq!(heard(ask(bytes_of(&limit()), None)), Ok(vec![]));
    // A limit of variant 120, which does not exist.
    assert_eq!(heard(ask(Bytes::from_static(&[120, 1, 2, 3]), look())), Ok(vec![]));
    assert_eq!(heard(ask(bytes_of(&limit()), Some(ask::Deed::Undo(Bytes::from_static(&[120]))))), Ok(vec![]));
}

#[test]
fn copy_keeps_all_but_slice_of_unknown_limit() {
    let slice = |limit| proto::Slice { key: Some(proto::Key::default()), limit, ..Default::default() };
    let slices = vec![slice(Bytes::from_static(&[120])), slice(bytes_of(&limit()))];
    let heard = heard(slotless(proto::Copy { slices, ..Default::default() })).unwrap();
    let [Message::Backup { copy, .. }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(copy.grants.iter().map(|grant| &grant.limit).collect::<Vec<_>>(), [&limit()]);
}

#[test]
fn ask_without_optional_fields_gets_least_defaults() {
    let ask = proto::Ask {
        limit: bytes_of(&limit()),
        hops: 1_000,
        deed: Some(ask::Deed::Look(false)),
        ..Default::default()
    };
    let check = RemoteCheck {
        key: Key::from_halves(0, 0),
        limit: limit(),
        operation: RemoteOperation::Decide(Operation::Peek),
        lease_hits: 0,
    };
    let expected =
        Message::Forward { ticket: 0, check: Arc::new(check), budget: Duration::ZERO, hops: u8::MAX };
    assert_eq!(heard(Kind::Ask(ask)), Ok(vec![expected]));
}

#[test]
fn answer_with_unknown_verdict_means_unreachable() {
    for verdict in [0, 99] {
        let answer = proto::Answer { ticket: 3, verdict, remaining: 7, ..Default::default() };
        let expected = Message::Reply { ticket: 3, reply: Reply::Unreachable };
        assert_eq!(heard(Kind::Answer(answer)), Ok(vec![expected]));
    }
}

#[test]
fn unknown_grant_and_receipt_of_answer_are_none() {
    let answer = proto::Answer {
        verdict: proto::Verdict::Delay.into(),
        receipt: Bytes::from_static(&[120]),
        grant: Some(proto::Grant { kind: None }),
        ..Default::default()
    };
    let heard = heard(Kind::Answer(answer)).unwrap();
    let [Message::Reply { reply: Reply::Decided { decision, charged: 0, lease: None }, .. }] = &heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!((decision.verdict, decision.receipt), (Verdict::Delay(Duration::ZERO), None));
}

#[test]
fn member_in_unknown_state_counts_as_draining() {
    for state in [0, 99] {
        let heard = heard(Kind::Member(proto::Record { state, ..Default::default() })).unwrap();
        let [Message::Member(record)] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!(record.state, MemberState::Draining);
    }
}

#[test]
fn missing_version_is_least_and_missing_contents_are_empty() {
    let id = Some(proto::TransferId { from: 1, number: 2 });
    let copy = Some(proto::Copy::default());
    let transfer = proto::Transfer { id, slot: 3, copy, origin: None };
    let nothing = SlotCopy { version: Version::default(), contents: Default::default(), grants: Vec::new() };
    let expected = HandOff {
        id: HandOffId { from: MemberId::from_number(1), number: 2 },
        slot: Slot(3),
        copy: nothing,
        origin: Origin { version: Version::default(), since: 0, contents: None },
    };
    let heard = heard(Kind::Transfer(Box::new(transfer))).unwrap();
    assert_eq!(heard, [Message::HandOff(Box::new(expected))]);
    assert_eq!(SlotData::default().len(), 0);
}

#[test]
fn invalid_required_part_is_named_in_error() {
    let ask = |limit| Kind::Ask(proto::Ask { limit, deed: Some(ask::Deed::Charge(1)), ..Default::default() });
    let hashing = |length| proto::Hashing { founder: 1, secret: vec![7; length].into() };
    let hello = |record, hashing| {
        Kind::Hello(Box::new(proto::Introduction { record, hashing, ..Default::default() }))
    };
    let record = Some(proto::Record::default());
    let contents = Bytes::from_static(&[0xff, 0xff]);
    let cases = [
        (ask(Bytes::new()), "ask", "limit"),
        (ask(bytes_of(&limit()).slice(..1)), "ask", "limit"),
        (hello(None, None), "hello", "record"),
        (hello(record.clone(), Some(hashing(15))), "hello", "secret"),
        (hello(record, Some(hashing(17))), "hello", "secret"),
        (Kind::Lacking(proto::Lacking { slot: 65_536 }), "lacking", "slot"),
        (Kind::Better(Default::default()), "better", "copy"),
        (Kind::Backup(Default::default()), "backup", "copy"),
        (Kind::Orphan(Default::default()), "orphan", "holder"),
        (Kind::Transfer(Default::default()), "transfer", "id"),
        (slotless(proto::Copy { contents, ..Default::default() }), "backup", "contents"),
        (slotless(proto::Copy { slices: vec![Default::default()], ..Default::default() }), "backup", "key"),
    ];
    for (message, kind, part) in cases {
        let error = heard(message).unwrap_err();
        assert_eq!(error, Malformed::Part { kind, part });
        assert_eq!(error.to_string(), format!("a message of kind `{kind}` has no valid {part}"));
    }
}
