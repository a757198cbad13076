//! Encodes messages into protobuf.

use std::sync::Arc;

use prost::bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use crate::{
    algorithm::{Decision, Operation, Verdict},
    cluster::{
        MemberId,
        message::{
            Grant, HandOff, HashSecret, Hello, LeaseReply, LeaseState, Message, Origin, Owner, RemoteCheck,
            RemoteOperation, Reply, Settlement, SlotCopy, Version,
        },
        wire::{
            convert::nanos,
            proto::{self, ask, item::Kind},
        },
    },
    store::{Slot, SlotData},
    time::Timestamp,
};

/// The size of the allocations that limits and receipts share, in bytes.
const SMALL_BYTES: usize = 1024;

/// Encodes messages at one instant.
pub(super) struct Writer {
    now: Timestamp,
    // A shared buffer for limits and receipts, which take a few bytes each.
    small: BytesMut,
}

impl Writer {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { now, small: BytesMut::new() }
    }

    pub(super) fn kind(&mut self, message: &Message) -> Kind {
        match message {
            Message::Hello(hello) => Kind::Hello(Box::new(introduction(hello))),
            Message::Member(record) => Kind::Member(record.into()),
            Message::Owns { slot, epoch, origin } => Kind::Holds(holds(*slot, *epoch, *origin)),
            Message::HandOff(transfer) => Kind::Transfer(Box::new(self.transfer(transfer))),
            Message::HandOffAck(id) => Kind::Taken((*id).into()),
            Message::Backup { slot, copy, after } => {
                let copy = Some(self.copy(copy));
                Kind::Backup(Box::new(proto::Backup { slot: number(*slot), copy, after: *after }))
            }
            Message::BackupAck { slot, version } => {
                Kind::Backed(proto::Backed { slot: number(*slot), version: Some((*version).into()) })
            }
            Message::BackupBaseMissing { slot } => Kind::Lacking(proto::Lacking { slot: number(*slot) }),
            Message::RecoveryQuery { slot, best, dead } => {
                let (best, dead) = (Some((*best).into()), numbers(dead));
                Kind::Query(proto::Query { slot: number(*slot), best, dead })
            }
            Message::RecoveryReply { slot, owner, alive, copy } => {
                let (holder, copy) = (owner.map(Into::into), copy.as_ref().map(|copy| self.copy(copy)));
                Kind::Known(Box::new(proto::Known { slot: number(*slot), holder, alive: *alive, copy }))
            }
            Message::Orphan { slot, owner, dead } => {
                let (holder, dead) = (Some((*owner).into()), numbers(dead));
                Kind::Orphan(proto::Orphan { slot: number(*slot), holder, dead })
            }
            Message::NewerCopy { slot, copy } => {
                let copy = Some(self.copy(copy));
                Kind::Better(Box::new(proto::Better { slot: number(*slot), copy }))
            }
            Message::Forward { ticket, check, budget, hops } => {
                let RemoteCheck { key, limit, operation, lease_hits } = &**check;
                Kind::Ask(proto::Ask {
                    ticket: *ticket,
                    key_high: key.high(),
                    key_low: key.low(),
                    limit: self.put(limit),
                    budget_nanos: nanos(*budget),
                    hops: (*hops).into(),
                    wish: *lease_hits,
                    deed: Some(self.deed(operation)),
                })
            }
            Message::Reply { ticket, reply } => Kind::Answer(self.answer(*ticket, reply)),
            Message::Recall { key } => Kind::Recall((*key).into()),
            Message::Revoke { key } => Kind::Revoke((*key).into()),
        }
    }

    fn deed(&mut self, operation: &RemoteOperation) -> ask::Deed {
        match operation {
            RemoteOperation::Decide(Operation::Peek) => ask::Deed::Look(true),
            RemoteOperation::Decide(Operation::Charge(hits)) => ask::Deed::Charge(*hits),
            RemoteOperation::Decide(Operation::Refund(hits)) => ask::Deed::Refund(*hits),
            RemoteOperation::Undo(receipt) => ask::Deed::Undo(self.put(receipt)),
            RemoteOperation::Absorb(consumed) => ask::Deed::Absorb(self.contents(consumed)),
            RemoteOperation::Settle(settlement) => ask::Deed::Settle(Box::new(self.settlement(settlement))),
            RemoteOperation::Set(hits) => ask::Deed::Set(*hits),
        }
    }

    fn settlement(&self, settlement: &Settlement) -> proto::Settlement {
        let Settlement { borrower, number, hits, left, age, state } = settlement;
        let closed = match state {
            LeaseState::Open => false,
            LeaseState::Closed => true,
        };
        let age_nanos = nanos(*age);
        proto::Settlement {
            lessee: borrower.number(),
            number: *number,
            hits: *hits,
            age_nanos,
            closed,
            left: *left,
        }
    }

    fn answer(&mut self, ticket: u64, reply: &Reply) -> proto::Answer {
        match reply {
            Reply::Unreachable => proto::Answer { ticket, ..Default::default() },
            Reply::Decided { decision, charged, lease } => {
                self.decided(ticket, decision, *charged, lease.as_ref())
            }
        }
    }

    fn decided(
        &mut self,
        ticket: u64,
        decision: &Decision,
        charged: u64,
        lease: Option<&LeaseReply>,
    ) -> proto::Answer {
        let Decision { verdict, remaining, reset_after, receipt } = decision;
        let (verdict, wait) = match verdict {
            Verdict::Pass => (proto::Verdict::Pass, None),
            Verdict::Delay(delay) => (proto::Verdict::Delay, Some(*delay)),
            Verdict::Refuse { retry_after } => (proto::Verdict::Refuse, *retry_after),
        };
        proto::Answer {
            ticket,
            verdict: verdict.into(),
            wait_nanos: wait.map(nanos),
            remaining: *remaining,
            reset_after_nanos: nanos(*reset_after),
            charged,
            receipt: receipt.as_ref().map(|receipt| self.put(receipt)).unwrap_or_default(),
            grant: lease.map(Into::into),
        }
    }

    fn transfer(&mut self, transfer: &HandOff) -> proto::Transfer {
        let HandOff { id, slot, copy, origin } = transfer;
        let Origin { version, since, contents } = origin;
        let origin = proto::Origin {
            version: Some((*version).into()),
            since: *since,
            contents: contents.as_ref().map(|contents| self.contents(contents)),
        };
        let copy = Some(self.copy(copy));
        proto::Transfer { id: Some((*id).into()), slot: number(*slot), copy, origin: Some(origin) }
    }

    fn copy(&mut self, copy: &SlotCopy) -> proto::Copy {
        let SlotCopy { version, contents, grants } = copy;
        let slices = grants.iter().map(|grant| self.slice(grant)).collect();
        proto::Copy { version: Some((*version).into()), contents: self.contents(contents), slices }
    }

    fn slice(&mut self, grant: &Grant) -> proto::Slice {
        let Grant { key, limit, borrower, number, left, ttl, charged } = grant;
        proto::Slice {
            key: Some((*key).into()),
            limit: self.put(limit),
            lessee: borrower.number(),
            number: *number,
            left: *left,
            life_nanos: nanos(*ttl),
            charged_hits: charged.map_or(0, |charged| charged.hits.get()),
            charged_age_nanos: charged.map_or(0, |charged| nanos(charged.age)),
        }
    }

    fn contents(&self, contents: &Arc<SlotData>) -> Bytes {
        contents.encode(self.now).into()
    }

    /// Encodes a limit or a receipt.
    fn put(&mut self, value: &impl Serialize) -> Bytes {
        if self.small.capacity() < SMALL_BYTES / 4 {
            self.small.reserve(SMALL_BYTES);
        }
        postcard::to_io(value, (&mut self.small).writer())
            .expect("a growing buffer has room for any value, and every sequence in it has a known length");
        self.small.split().freeze()
    }
}

fn introduction(hello: &Hello) -> proto::Introduction {
    let Hello { record, hash_secret, known, owned, owners } = hello;
    let hashing = hash_secret.as_ref().map(|HashSecret { founder, secret }| proto::Hashing {
        founder: founder.number(),
        secret: Bytes::copy_from_slice(&secret.to_bytes()),
    });
    let holder_of = |(slot, owner): &(Slot, Owner)| proto::HolderOf {
        slot: number(*slot),
        holder: Some((*owner).into()),
    };
    proto::Introduction {
        record: Some(record.into()),
        hashing,
        known: known.iter().map(Into::into).collect(),
        held: owned.iter().map(|(slot, epoch, origin)| holds(*slot, *epoch, *origin)).collect(),
        holders: owners.iter().map(holder_of).collect(),
    }
}

fn holds(slot: Slot, epoch: u64, origin: Version) -> proto::Holds {
    proto::Holds { slot: number(slot), epoch, origin: Some(origin.into()) }
}

fn number(slot: Slot) -> u32 {
    slot.0.into()
}

fn numbers(members: &[MemberId]) -> Vec<u64> {
    members.iter().map(|member| member.number()).collect()
}
