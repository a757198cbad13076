//! Compatibility with messages of other versions.

use std::{sync::Arc, time::Duration};

use tollgate_counter::algorithm::{Limit, Operation};
use tollgate_store::{CounterOperation, Slot, SlotData};

use super::{any::NOW, golden};
use crate::{
    message::{check::*, slot::*, *},
    wire::{MalformedBatch, decode, encode, put, put_block},
};

const LACKING: Message = Message::BackupBaseMissing { slot: Slot(5) };
/// A variant that no type has.
const UNKNOWN: u8 = 120;

/// A batch of one message with these bytes.
fn batch(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_block(&mut bytes, message);
    bytes
}

fn bytes_of<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, value);
    bytes
}

/// The bytes with those of `old` replaced, which occur once.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    let [at] = places[..] else { panic!("{old:?} occurs at {places:?}") };
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

fn forward(limit: Limit, operation: RemoteOperation) -> Message {
    let check = RemoteCheck { key: golden::KEY, limit, operation, lease_hits: 0 };
    Message::Forward { ticket: 3, check: Arc::new(check), budget: Duration::ZERO, hops: 1 }
}

#[test]
fn message_of_unknown_kind_is_ignored() {
    let known = encode(&[LACKING], NOW);
    let unknown = batch(&[&[UNKNOWN], &b"what a later version says"[..]].concat());
    let bytes = [&known[..], &unknown, &known].concat();
    assert_eq!(decode(&bytes, NOW), Ok(vec![LACKING, LACKING]));
}

#[test]
fn bytes_behind_message_are_ignored() {
    let bytes = [bytes_of(&LACKING), b"what a later version appends".to_vec()].concat();
    assert_eq!(decode(&batch(&bytes), NOW), Ok(vec![LACKING]));
}

#[test]
fn forward_with_unknown_operation_limit_or_receipt_is_ignored() {
    let limit = golden::bucket();
    let receipt = limit.decide(&mut limit.fresh(), NOW, Operation::Charge(1)).receipt.unwrap();
    let undo = RemoteOperation::Counter(CounterOperation::Undo(receipt));
    let bytes = bytes_of(&forward(limit.clone(), undo.clone()));
    for part in [bytes_of(&undo), bytes_of(&limit), bytes_of(&receipt)] {
        let unknown = replaced(&bytes, &part, &[UNKNOWN]);
        assert_eq!(decode(&batch(&unknown), NOW), Ok(vec![]));
    }
}

#[test]
fn copy_keeps_all_but_grant_of_unknown_limit() {
    let grant = |limit, number| LeaseGrant { number, ..golden::grant(limit) };
    let unknown = bytes_of(&grant(golden::bucket(), 1));
    let mut invalid = replaced(&unknown, &bytes_of(&golden::bucket()), &[UNKNOWN]);
    invalid.resize(unknown.len(), 0);
    let leases = vec![grant(golden::bucket(), 1), grant(golden::classic(), 2)];
    let grants = SlotGrants { leases, ..SlotGrants::default() };
    let copy = VersionedSlot { grants, ..VersionedSlot::default() };
    let mut bytes = bytes_of(&Message::NewerCopy { slot: Slot(1), copy });
    put_block(&mut bytes, &SlotData::default().encode(NOW));
    let heard = decode(&batch(&replaced(&bytes, &unknown, &invalid)), NOW).unwrap();
    let [Message::NewerCopy { copy, .. }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(copy.grants.leases, [grant(golden::classic(), 2)]);
}

#[test]
fn damaged_or_missing_slot_data_is_error() {
    let copy = bytes_of(&Message::NewerCopy { slot: Slot(1), copy: VersionedSlot::default() });
    assert_eq!(decode(&batch(&copy), NOW), Err(MalformedBatch));
    let damaged = [&copy[..], &[2, 0xff, 0xff]].concat();
    assert_eq!(decode(&batch(&damaged), NOW), Err(MalformedBatch));
}

#[test]
fn truncated_message_and_length_beyond_end_are_errors() {
    let bytes = bytes_of(&LACKING);
    for damaged in [batch(&bytes[..bytes.len() - 1]), batch(&[]), vec![0x80], vec![9, 0], vec![0xff; 12]] {
        assert_eq!(decode(&damaged, NOW), Err(MalformedBatch), "{damaged:?}");
    }
    assert_eq!(MalformedBatch.to_string(), "a message is damaged");
}
