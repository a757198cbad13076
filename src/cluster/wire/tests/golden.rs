//! The bytes of a few messages, so that the wire does not change unnoticed. What a test here says is what replicas
//! of other versions send: they are not to be corrected.

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
    let record =
        |id, state| Record { id: member(id), address: "a:1".to_owned(), state, rules: 0x0a0b, changes: 3 };
    Message::Hello(Box::new(Hello {
        record: record(1, State::Serving),
        hashing: Some(Hashing { founder: member(2), secret: Secret::from_bytes(secret) }),
        known: vec![record(2, State::Joining), record(3, State::Draining)],
        held: vec![(Slot(4_095), 5, Version { epoch: 4, seq: 300 })],
        holders: vec![(Slot(7), Holder { epoch: 6, member: member(3) })],
    }))
}

fn classic() -> Limit {
    Limit::Classic(Classic { limit: 10, window: Window::of_nanos(60 * SECOND).unwrap() })
}

fn bucket() -> Limit {
    let [hits, nanos] = [5, SECOND].map(|number| NonZeroU64::new(number).unwrap());
    Limit::TokenBucket(TokenBucket { rate: Rate::new(hits, nanos), burst: 20, excess: Excess::Refuse })
}

fn ask(limit: Limit, deed: Deed) -> Message {
    let question = Question { key: KEY, limit, deed, wish: 0 };
    let budget = Duration::from_millis(10);
    Message::Ask { ticket: 258, question: Arc::new(question), budget, hops: 1 }
}

fn answer(limit: &Limit) -> Message {
    let decision = limit.decide(&mut limit.fresh(), NOW, Operation::Charge(1));
    let grant = Some(Grant::Slice { number: 1, hits: 2, life: Duration::from_nanos(3) });
    Message::Answer { ticket: 258, reply: Reply::Decided { decision, charged: 1, grant } }
}

fn refusal() -> Message {
    let verdict = Verdict::Refuse { retry_after: Some(Duration::from_nanos(300)) };
    let decision = Decision { verdict, remaining: 0, reset_after: Duration::from_nanos(300), receipt: None };
    let grant = Some(Grant::Nothing { life: Duration::from_nanos(300) });
    Message::Answer { ticket: 1, reply: Reply::Decided { decision, charged: 0, grant } }
}

/// What is left of a bucket that was emptied a second before.
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
    let slice = Slice {
        key: KEY,
        limit: bucket(),
        lessee: member(2),
        number: 3,
        left: 4,
        life: Duration::from_nanos(5),
        charged: None,
    };
    let copy = Copy { version, contents: contents(), slices: vec![slice] };
    let origin = Origin { version: Version::default(), since: 1, contents: None };
    let id = TransferId { from: member(1), number: 9 };
    Message::Transfer(Box::new(Transfer { id, slot: Slot(0), copy, origin }))
}

fn pinned(message: Message, bytes: &str) {
    let encoded = encode(std::slice::from_ref(&message), NOW);
    let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes, "{message:?}");
    assert_eq!(decode(encoded, NOW), Ok(vec![message]));
}

#[test]
fn a_charge_and_a_look_are_written_so() {
    pinned(
        ask(classic(), Deed::Ask(Operation::Charge(1))),
        concat!(
            "0a2b0a290882021108070605040302011918171615141312112209000a0080b09dc2df012880ade2",
            "0430014001"
        ),
    );
    pinned(
        ask(bucket(), Deed::Ask(Operation::Peek)),
        concat!(
            "0a2b0a29088202110807060504030201191817161514131211220905058094ebdc0314002880ade2",
            "0430014801"
        ),
    );
}

#[test]
fn a_receipt_is_written_so_in_an_answer_and_in_an_undo() {
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
        ask(bucket(), Deed::Undo(receipt)),
        concat!(
            "0a400a3e088202110807060504030201191817161514131211220905058094ebdc0314002880ade2",
            "0430015a1503959abbdac2f0d6eb1801959eeab9c3f0d6eb1800"
        ),
    );
}

#[test]
fn a_refusal_and_silence_are_written_so() {
    pinned(refusal(), "0a11120f0801100318ac0228ac02420310ac02");
    pinned(Message::Answer { ticket: 1, reply: Reply::Unreachable }, "0a0412020801");
}

#[test]
fn a_hello_is_written_so() {
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
fn a_transfer_is_written_so() {
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
fn a_charge_takes_less_than_a_hundred_bytes_and_its_answer_less_than_60() {
    let charge = encode(&[ask(bucket(), Deed::Ask(Operation::Charge(1)))], NOW).len();
    let answer = encode(&[answer(&bucket())], NOW).len();
    assert!(charge < 100, "{charge}");
    assert!(answer < 60, "{answer}");
}
