//! Golden encodings of a few messages, so that the format does not change unnoticed. Replicas of other versions send
//! these bytes: do not adjust them to a change of the code.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use super::any::NOW;
use crate::{
    algorithm::{Classic, Decision, Excess, Limit, Operation, Rate, TokenBucket, Verdict, Window},
    cluster::{
        MemberId,
        message::*,
        wire::{decode, encode},
    },
    descriptor::{Key, Secret},
    store::{Check, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::SECOND,
};

const KEY: Key = Key::from_halves(0x0102_0304_0506_0708, 0x1112_1314_1516_1718);

fn member(number: u64) -> MemberId {
    MemberId::from_number(number)
}

pub(super) fn hello(secret: [u8; 16]) -> Message {
    let record = |id, state| MemberRecord {
        id: member(id),
        address: "a:1".to_owned(),
        state,
        rules: 0x0a0b,
        changes: 3,
    };
    Message::Hello(Box::new(Hello {
        record: record(1, MemberState::Serving),
        hash_secret: Some(HashSecret { founder: member(2), secret: Secret::from_bytes(secret) }),
        known: vec![record(2, MemberState::Joining), record(3, MemberState::Draining)],
        owned: vec![(Slot(4_095), 5, Version { epoch: 4, seq: 300 })],
        owners: vec![(Slot(7), Owner { epoch: 6, member: member(3) })],
    }))
}

fn classic() -> Limit {
    Limit::Classic(Classic { limit: 10, window: Window::of_nanos(60 * SECOND).unwrap() })
}

fn bucket() -> Limit {
    let [hits, nanos] = [5, SECOND].map(|number| NonZeroU64::new(number).unwrap());
    Limit::TokenBucket(TokenBucket { rate: Rate::new(hits, nanos), burst: 20, excess: Excess::Refuse })
}

fn ask(limit: Limit, operation: RemoteOperation) -> Message {
    let check = RemoteCheck { key: KEY, limit, operation, lease_hits: 0 };
    let budget = Duration::from_millis(10);
    Message::Forward { ticket: 258, check: Arc::new(check), budget, hops: 1 }
}

fn answer(limit: &Limit) -> Message {
    let decision = limit.decide(&mut limit.fresh(), NOW, Operation::Charge(1));
    let lease = Some(LeaseReply::Granted { number: 1, hits: 2, ttl: Duration::from_nanos(3) });
    Message::Reply { ticket: 258, reply: Reply::Decided { decision, charged: 1, lease } }
}

fn refusal() -> Message {
    let verdict = Verdict::Refuse { retry_after: Some(Duration::from_nanos(300)) };
    let decision = Decision { verdict, remaining: 0, reset_after: Duration::from_nanos(300), receipt: None };
    let lease = Some(LeaseReply::Refused { ttl: Duration::from_nanos(300) });
    Message::Reply { ticket: 1, reply: Reply::Decided { decision, charged: 0, lease } }
}

/// A bucket that was emptied a second ago.
fn contents() -> Arc<SlotData> {
    let memory = Memory::new(1 << 30, OnFull::Deny).with_slots(2).shared();
    memory.acquire(Slot(0), SlotData::default(), NOW.minus(SECOND));
    let (limit, ask) = (bucket(), Operation::Charge(20));
    let check = Check { key: KEY, limit: &limit, operation: ask, on_refusal: OnRefusal::Keep };
    memory.apply(&[check], NOW.minus(SECOND), |_| false).unwrap();
    Arc::new(memory.whole(Slot(0)).data)
}

fn transfer() -> Message {
    let version = Version { epoch: 1, seq: 2 };
    let grant = Grant {
        key: KEY,
        limit: bucket(),
        borrower: member(2),
        number: 3,
        left: 4,
        ttl: Duration::from_nanos(5),
        charged: None,
    };
    let copy = SlotCopy { version, contents: contents(), grants: vec![grant] };
    let origin = Origin { version: Version::default(), since: 1, contents: None };
    let id = HandOffId { from: member(1), number: 9 };
    Message::HandOff(Box::new(HandOff { id, slot: Slot(0), copy, origin }))
}

fn pinned(message: Message, bytes: &str) {
    let encoded = encode(std::slice::from_ref(&message), NOW);
    let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes, "{message:?}");
    assert_eq!(decode(encoded, NOW), Ok(vec![message]));
}

#[test]
fn encoding_of_charge_and_look_is_stable() {
    pinned(
        ask(classic(), RemoteOperation::Decide(Operation::Charge(1))),
        concat!(
            "0a2b0a290882021108070605040302011918171615141312112209000a0080b09dc2df012880ade2",
            "0430014001"
        ),
    );
    pinned(
        ask(bucket(), RemoteOperation::Decide(Operation::Peek)),
        concat!(
            "0a2b0a29088202110807060504030201191817161514131211220905058094ebdc0314002880ade2",
            "0430014801"
        ),
    );
}

#[test]
fn encoding_of_receipt_in_answer_and_undo_is_stable() {
    pinned(
        answer(&classic()),
        concat!("0a2912270882021001200928eb85cfc6940130013a0b0080f0ecdef7efd6eb180142080a06080110", "021803"),
    );
    pinned(
        answer(&bucket()),
        concat!(
            "0a31122f08820210012013288084af5f30013a1503959abbdac2f0d6eb1801959eeab9c3f0d6eb18",
            "0042080a06080110021803"
        ),
    );
    let receipt = bucket().decide(&mut bucket().fresh(), NOW, Operation::Charge(1)).receipt.unwrap();
    pinned(
        ask(bucket(), RemoteOperation::Undo(receipt)),
        concat!(
            "0a400a3e088202110807060504030201191817161514131211220905058094ebdc0314002880ade2",
            "0430015a1503959abbdac2f0d6eb1801959eeab9c3f0d6eb1800"
        ),
    );
}

#[test]
fn encoding_of_refusal_and_unreachable_is_stable() {
    pinned(refusal(), "0a11120f0801100318ac0228ac02420310ac02");
    pinned(Message::Reply { ticket: 1, reply: Reply::Unreachable }, "0a0412020801");
}

#[test]
fn encoding_of_hello_is_stable() {
    pinned(
        hello(*b"0123456789abcdef"),
        concat!(
            "0a96011a93010a1b0901000000000000001203613a311802210b0a0000000000002803121b090200",
            "0000000000001210303132333435363738396162636465661a1b0902000000000000001203613a31",
            "1801210b0a00000000000028031a1b0903000000000000001203613a311803210b0a000000000000",
            "2803220c08ff1f10051a05080410ac022a0f0807120b0806110300000000000000"
        ),
    );
}

#[test]
fn encoding_of_transfer_is_stable() {
    pinned(
        transfer(),
        concat!(
            "0a6c326a0a0b09010000000000000010091a550a0408011002121d02010008070605040302011817",
            "1615141312110308895f0080f882ad161a2e0a120908070605040302011118171615141312111209",
            "05058094ebdc03140019020000000000000020032804300522040a001001"
        ),
    );
}

#[test]
fn charge_has_under_100_bytes_and_answer_under_60() {
    let charge = encode(&[ask(bucket(), RemoteOperation::Decide(Operation::Charge(1)))], NOW).len();
    let answer = encode(&[answer(&bucket())], NOW).len();
    assert!(charge < 100, "{charge}");
    assert!(answer < 60, "{answer}");
}
