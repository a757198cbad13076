//! Golden encodings of every kind of message, so that the format does not change unnoticed. Replicas of other versions send
//! these bytes: do not adjust them to a change of the code. Append new variants at the end.

use std::{
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
    time::Duration,
};

use tollgate_counter::{
    algorithm::{
        Classic, Decision, Excess, HitRate, Limit, Operation, QuotaTerms, Rate, TokenBucket, Verdict, Window,
    },
    descriptor::{Key, Secret},
    time::SECOND,
};
use tollgate_store::{
    Check, CounterOperation, Epoch, HoldId, HoldOutcome, HoldTerms, LimitOrigin, Memory, OnExpiry, OnFull,
    OnRefusal, OperationOutcome, SettleOutcome, Settled, Slot, SlotData, UnknownId,
    divider::{Assignment, DividerReport, SlotDivisions, SubscriberId, SubscriberUsage},
};

use super::any::NOW;
use crate::{
    member::MemberId,
    message::{check::*, slot::*, *},
    wire::{decode, encode},
};

pub(super) const KEY: Key = Key::from_halves(0x0102_0304_0506_0708, 0x1112_1314_1516_1718);

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
        owned: vec![(Slot(4_095), Epoch(5), Version { epoch: Epoch(4), seq: 300 })],
        owners: vec![(Slot(7), SlotOwner { epoch: Epoch(6), member: member(3) })],
    }))
}

pub(super) fn classic() -> Limit {
    Limit::Classic(Classic::new(10, Window::from_nanos(60 * SECOND).unwrap()))
}

pub(super) fn bucket() -> Limit {
    let [hits, nanos] = [5, SECOND].map(|number| NonZeroU64::new(number).unwrap());
    Limit::TokenBucket(TokenBucket { rate: Rate::new(hits, nanos), burst: 20, excess: Excess::Refuse })
}

fn forward(limit: Limit, operation: RemoteOperation) -> Message {
    let check = RemoteCheck { key: KEY, limit, operation, lease_hits: 0 };
    let budget = Duration::from_millis(10);
    Message::Forward { ticket: 258, check: Arc::new(check), budget, hops: 1 }
}

fn counter(operation: CounterOperation) -> RemoteOperation {
    RemoteOperation::Counter(operation)
}

fn reply(limit: &Limit) -> Message {
    let decision = limit.decide(&mut limit.fresh(), NOW, Operation::Charge(1));
    let lease = Some(Box::new(LeaseReply::Granted { number: 1, hits: 2, ttl: Duration::from_nanos(3) }));
    Message::Reply {
        ticket: 258,
        reply: CheckReply::Decided { outcome: OperationOutcome::new(decision, 1), lease },
    }
}

fn refusal() -> Message {
    let verdict = Verdict::Refuse { retry_after: Some(Duration::from_nanos(300)) };
    let decision = Decision { verdict, remaining: 0, reset_after: Duration::from_nanos(300), receipt: None };
    let lease = Some(Box::new(LeaseReply::Refused { ttl: Duration::from_nanos(300) }));
    Message::Reply {
        ticket: 1,
        reply: CheckReply::Decided { outcome: OperationOutcome::new(decision, 0), lease },
    }
}

/// A bucket that was emptied a second ago.
fn contents() -> Arc<SlotData> {
    let memory = Memory::new(1 << 30, OnFull::Deny).with_slots(2).shared();
    memory.acquire(Slot(0), SlotData::default(), NOW.minus(SECOND));
    let limit = bucket();
    let operation = Operation::Charge(20);
    let check =
        Check { key: KEY, limit: &limit, operation, on_refusal: OnRefusal::Keep, origin: LimitOrigin::Rule };
    memory.apply(&[check], NOW.minus(SECOND), |_| false).unwrap();
    Arc::new(memory.whole(Slot(0)).data)
}

const SUBSCRIBER: SubscriberId = SubscriberId { replica: 1, stream: 2, bucket: 3 };

fn divide(report: DividerReport) -> RemoteOperation {
    let terms = QuotaTerms { weight: NonZeroU32::MIN, floor: 300 };
    RemoteOperation::Divide(SUBSCRIBER, terms, report)
}

fn lent(grant: LeaseGrant) -> SlotGrants {
    SlotGrants { leases: vec![grant], divisions: SlotDivisions::default() }
}

pub(super) fn grant(limit: Limit) -> LeaseGrant {
    let borrower = member(2);
    let ttl = Duration::from_nanos(5);
    LeaseGrant { key: KEY, limit, borrower, number: 3, left: 4, ttl, charged: None }
}

fn hand_off() -> Message {
    let version = Version { epoch: Epoch(1), seq: 2 };
    let copy = VersionedSlot { version, contents: contents(), grants: lent(grant(bucket())) };
    let origin = RecoveryOrigin { version: Version::default(), since: Epoch(1), contents: None };
    let id = HandOffId { from: member(1), number: 9 };
    Message::HandOff(Box::new(HandOff { id, slot: Slot(0), copy, origin }))
}

fn pinned(message: Message, bytes: &str) {
    let encoded = encode(std::slice::from_ref(&message), NOW);
    let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes, "{message:?}");
    assert_eq!(decode(&encoded, NOW), Ok(vec![message]));
}

#[test]
fn encoding_of_operations_is_stable() {
    let receipt = bucket().decide(&mut bucket().fresh(), NOW, Operation::Charge(1)).receipt.unwrap();
    let age = Duration::from_nanos(4);
    let state = LeaseState::Closed;
    let settlement = Settlement { borrower: member(2), number: 1, hits: 2, left: 3, age, state };
    let id = HoldId::new(b"ab").unwrap();
    let terms = HoldTerms::new(id.clone(), Duration::from_secs(60), OnExpiry::Charge).unwrap();
    let terms = terms.with_attempt(7);
    for (operation, bytes) in [
        (
            counter(CounterOperation::Decide(Operation::Peek)),
            "280c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000000000080ade20401",
        ),
        (
            counter(CounterOperation::Decide(Operation::Charge(1))),
            "290c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc03140000000101000080ade20401",
        ),
        (
            RemoteOperation::CounterByRequest(CounterOperation::Decide(Operation::Charge(1))),
            "290c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc03140004000101000080ade20401",
        ),
        (
            counter(CounterOperation::Decide(Operation::Refund(300))),
            concat!(
                "2a0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000002ac02000080ad",
                "e20401",
            ),
        ),
        (
            counter(CounterOperation::Undo(receipt)),
            concat!(
                "3c0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000103959abbdac2f0",
                "d6eb1801959eeab9c3f0d6eb1800000080ade20401",
            ),
        ),
        (
            RemoteOperation::Absorb(contents()),
            concat!(
                "440c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc03140001000080ade204011d",
                "030100000000000000000018171615141312110308895f0080f882ad16",
            ),
        ),
        (
            RemoteOperation::Settle(settlement),
            concat!(
                "2d0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400020201020300040100",
                "0080ade20401",
            ),
        ),
        (
            counter(CounterOperation::Set(300)),
            "290c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc0314000002ac02000080ade20401",
        ),
        (
            counter(CounterOperation::Reserve { terms: Box::new(terms.clone()), hits: 300 }),
            concat!(
                "310c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000302616200073c00",
                "01ac02000080ade20401",
            ),
        ),
        (
            counter(CounterOperation::Settle { id: id.clone(), actual: 300, unknown: UnknownId::Remember }),
            concat!(
                "2e0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000402616200ac0200",
                "000080ade20401",
            ),
        ),
        (
            counter(CounterOperation::Settle { id: id.clone(), actual: 300, unknown: UnknownId::Forget }),
            concat!(
                "2e0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000402616200ac0201",
                "000080ade20401"
            ),
        ),
        (
            counter(CounterOperation::RefundOnce { terms: Box::new(terms), hits: 300 }),
            concat!(
                "310c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000602616200073c00",
                "01ac02000080ade20401"
            ),
        ),
        (
            counter(CounterOperation::Show),
            "270c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc0314000007000080ade20401",
        ),
        (
            counter(CounterOperation::Withdraw { id, attempt: 300 }),
            concat!(
                "2d0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc031400000502616200ac0200",
                "0080ade20401",
            ),
        ),
    ] {
        pinned(forward(bucket(), operation), bytes);
    }
}

#[test]
fn encoding_of_replies_is_stable() {
    pinned(reply(&classic()), "210d820200000927ebf9fba103010080a08aa1d7f1d6eb1801010000010001020003");
    pinned(
        reply(&bucket()),
        "2a0d8202000013008084af5f0103959abbdac2f0d6eb1801959eeab9c3f0d6eb1800010000010001020003",
    );
    pinned(refusal(), "150d0100020100ac020000ac0200000000010100ac02");
    pinned(Message::Reply { ticket: 1, reply: CheckReply::Unreachable }, "030d0101");
    let settled = Box::new(Settled {
        outcome: SettleOutcome::Released,
        reserved: 5,
        uncharged: 1,
        remaining: 300,
        reset_after: Duration::from_nanos(3),
    });
    let replied = |hold| {
        let outcome = OperationOutcome { hold, ..OperationOutcome::exhausted() };
        Message::Reply { ticket: 1, reply: CheckReply::Decided { outcome, lease: None } }
    };
    pinned(replied(HoldOutcome::Settled(settled)), "130d010000000000000002020501ac0200030000");
    pinned(replied(HoldOutcome::Exhausted), "0c0d0100000000000000010000");
    pinned(replied(HoldOutcome::Ended), "0c0d0100000000000000040000");
}

#[test]
fn encoding_of_hello_is_stable() {
    pinned(
        hello(*b"0123456789abcdef"),
        concat!(
            "3c000103613a31018b14030102b0e2c899c3a68d9b37b8f28493b68cd9b266020203613a31008b14",
            "030303613a31028b140301ff1f0504ac0201070603"
        ),
    );
}

#[test]
fn encoding_of_each_other_message_is_stable() {
    let slot = Slot(300);
    let version = Version { epoch: Epoch(5), seq: 6 };
    let members = vec![member(2), member(3)];
    let owner = SlotOwner { epoch: Epoch(7), member: member(1) };
    let copy = || VersionedSlot { version, contents: contents(), grants: lent(grant(classic())) };
    let Message::Hello(hello) = hello(*b"0123456789abcdef") else { unreachable!() };
    for (message, bytes) in [
        (Message::Member(hello.record), "0a010103613a31018b1403"),
        (Message::Owns { slot, epoch: Epoch(5), origin: version }, "0602ac02050506"),
        (
            hand_off(),
            concat!(
                "4e0301090001020121888e98a8c0e080810198aed8a8c1e284891104058094ebdc03140002030400",
                "0500000000000001001d030100000000000000000018171615141312110308895f0080f882ad16"
            ),
        ),
        (Message::HandOffAck(HandOffId { from: member(1), number: 9 }), "03040109"),
        (
            Message::Backup { slot, copy: copy(), after: Some(4) },
            concat!(
                "4b05ac0205060121888e98a8c0e080810198aed8a8c1e2848911000a0080b09dc2df010203040005",
                "0000000001041d030100000000000000000018171615141312110308895f0080f882ad16"
            ),
        ),
        (Message::BackupAck { slot, version }, "0506ac020506"),
        (Message::BackupBaseMissing { slot }, "0307ac02"),
        (Message::RecoveryQuery { slot, best: version }, "0508ac020506"),
        (
            Message::RecoveryReply { slot, owner: Some(owner), alive: true, copy: Some(copy()) },
            concat!(
                "4e09ac02010701010105060121888e98a8c0e080810198aed8a8c1e2848911000a0080b09dc2df01",
                "0203040005000000001d030100000000000000000018171615141312110308895f0080f882ad16"
            ),
        ),
        (Message::Orphan { slot, owner }, "050aac020701"),
        (
            Message::NewerCopy { slot, copy: copy() },
            concat!(
                "490bac0205060121888e98a8c0e080810198aed8a8c1e2848911000a0080b09dc2df010203040005",
                "000000001d030100000000000000000018171615141312110308895f0080f882ad16"
            ),
        ),
        (Message::Recall { key: KEY }, "130e888e98a8c0e080810198aed8a8c1e2848911"),
        (Message::Revoke { key: KEY }, "130f888e98a8c0e080810198aed8a8c1e2848911"),
        (Message::Dead { members }, "0410020203"),
        (Message::Status { program: "0.1.0".to_owned(), clock: NOW }, "101105302e312e30959abbdac2f0d6eb18"),
        (Message::BackupRefused { slot, version }, "0512ac020506"),
        (
            Message::Assigned(vec![
                (SUBSCRIBER, Assignment::Share(HitRate { per_second: 300, burst: 20 })),
                (SUBSCRIBER, Assignment::Slice(7)),
                (SUBSCRIBER, Assignment::Renewal(7)),
                (SUBSCRIBER, Assignment::Deny),
            ]),
            "17130401020300ac02140102030107010203020701020303",
        ),
        (
            forward(
                bucket(),
                divide(DividerReport::Usage(SubscriberUsage { allowed: 300, denied: 1, allowed_before: 4 })),
            ),
            concat!(
                "310c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc0314000301020301ac0200ac",
                "020104000080ade20401"
            ),
        ),
        (
            forward(
                bucket(),
                divide(DividerReport::Resumed(SubscriberUsage { allowed: 1, denied: 2, allowed_before: 0 })),
            ),
            concat!(
                "300c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc0314000301020301ac020101",
                "0200000080ade20401"
            ),
        ),
        (
            forward(bucket(), divide(DividerReport::Counted(9))),
            concat!(
                "2e0c8202888e98a8c0e080810198aed8a8c1e284891104058094ebdc0314000301020301ac020409",
                "000080ade20401"
            ),
        ),
    ] {
        pinned(message, bytes);
    }
}

#[test]
fn charge_has_under_100_bytes_and_reply_under_60() {
    let charge =
        encode(&[forward(bucket(), counter(CounterOperation::Decide(Operation::Charge(1))))], NOW).len();
    let reply = encode(&[reply(&bucket())], NOW).len();
    assert!(charge < 100, "{charge}");
    assert!(reply < 60, "{reply}");
}
