//! From messages to the wire.

use std::sync::Arc;

use prost::bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use crate::{
    algorithm::{Decision, Operation, Verdict},
    cluster::{
        MemberId,
        message::{
            Copy, Deed, End, Grant, Hashing, Hello, Holder, Message, Origin, Question, Reply, Settlement,
            Slice, Transfer, Version,
        },
        wire::{
            parts::nanos,
            proto::{self, ask, item::Kind},
        },
    },
    store::{Slot, SlotData},
    time::Timestamp,
};

/// The bytes of limits and receipts that are written into one allocation.
const SMALL_BYTES: usize = 1024;

/// Words messages at one instant.
pub(super) struct Writer {
    now: Timestamp,
    // Room for the bytes of limits and receipts, which take a few each.
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
            Message::Holds { slot, epoch, origin } => Kind::Holds(holds(*slot, *epoch, *origin)),
            Message::Transfer(transfer) => Kind::Transfer(Box::new(self.transfer(transfer))),
            Message::Taken(id) => Kind::Taken((*id).into()),
            Message::Backup { slot, copy, after } => {
                let copy = Some(self.copy(copy));
                Kind::Backup(Box::new(proto::Backup { slot: number(*slot), copy, after: *after }))
            }
            Message::Backed { slot, version } => {
                Kind::Backed(proto::Backed { slot: number(*slot), version: Some((*version).into()) })
            }
            Message::Lacking { slot } => Kind::Lacking(proto::Lacking { slot: number(*slot) }),
            Message::Query { slot, best, dead } => {
                let (best, dead) = (Some((*best).into()), numbers(dead));
                Kind::Query(proto::Query { slot: number(*slot), best, dead })
            }
            Message::Known { slot, holder, alive, copy } => {
                let (holder, copy) = (holder.map(Into::into), copy.as_ref().map(|copy| self.copy(copy)));
                Kind::Known(Box::new(proto::Known { slot: number(*slot), holder, alive: *alive, copy }))
            }
            Message::Orphan { slot, holder, dead } => {
                let (holder, dead) = (Some((*holder).into()), numbers(dead));
                Kind::Orphan(proto::Orphan { slot: number(*slot), holder, dead })
            }
            Message::Better { slot, copy } => {
                let copy = Some(self.copy(copy));
                Kind::Better(Box::new(proto::Better { slot: number(*slot), copy }))
            }
            Message::Ask { ticket, question, budget, hops } => {
                let Question { key, limit, deed, wish } = &**question;
                Kind::Ask(proto::Ask {
                    ticket: *ticket,
                    key_high: key.high(),
                    key_low: key.low(),
                    limit: self.put(limit),
                    budget_nanos: nanos(*budget),
                    hops: (*hops).into(),
                    wish: *wish,
                    deed: Some(self.deed(deed)),
                })
            }
            Message::Answer { ticket, reply } => Kind::Answer(self.answer(*ticket, reply)),
            Message::Recall { key } => Kind::Recall((*key).into()),
            Message::Revoke { key } => Kind::Revoke((*key).into()),
        }
    }

    fn deed(&mut self, deed: &Deed) -> ask::Deed {
        match deed {
            Deed::Ask(Operation::Peek) => ask::Deed::Look(true),
            Deed::Ask(Operation::Charge(hits)) => ask::Deed::Charge(*hits),
            Deed::Ask(Operation::Refund(hits)) => ask::Deed::Refund(*hits),
            Deed::Undo(receipt) => ask::Deed::Undo(self.put(receipt)),
            Deed::Absorb(consumed) => ask::Deed::Absorb(self.contents(consumed)),
            Deed::Settle(settlement) => ask::Deed::Settle(Box::new(self.settlement(settlement))),
            Deed::Set(hits) => ask::Deed::Set(*hits),
        }
    }

    fn settlement(&self, settlement: &Settlement) -> proto::Settlement {
        let Settlement { lessee, number, hits, left, age, end } = settlement;
        let closed = match end {
            End::Open => false,
            End::Closed => true,
        };
        let age_nanos = nanos(*age);
        proto::Settlement {
            lessee: lessee.number(),
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
            Reply::Decided { decision, charged, grant } => {
                self.decided(ticket, decision, *charged, grant.as_ref())
            }
        }
    }

    fn decided(
        &mut self,
        ticket: u64,
        decision: &Decision,
        charged: u64,
        grant: Option<&Grant>,
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
            grant: grant.map(Into::into),
        }
    }

    fn transfer(&mut self, transfer: &Transfer) -> proto::Transfer {
        let Transfer { id, slot, copy, origin } = transfer;
        let Origin { version, since, contents } = origin;
        let origin = proto::Origin {
            version: Some((*version).into()),
            since: *since,
            contents: contents.as_ref().map(|contents| self.contents(contents)),
        };
        let copy = Some(self.copy(copy));
        proto::Transfer { id: Some((*id).into()), slot: number(*slot), copy, origin: Some(origin) }
    }

    fn copy(&mut self, copy: &Copy) -> proto::Copy {
        let Copy { version, contents, slices } = copy;
        let slices = slices.iter().map(|slice| self.slice(slice)).collect();
        proto::Copy { version: Some((*version).into()), contents: self.contents(contents), slices }
    }

    fn slice(&mut self, slice: &Slice) -> proto::Slice {
        let Slice { key, limit, lessee, number, left, life, charged } = slice;
        proto::Slice {
            key: Some((*key).into()),
            limit: self.put(limit),
            lessee: lessee.number(),
            number: *number,
            left: *left,
            life_nanos: nanos(*life),
            charged_hits: charged.map_or(0, |charged| charged.hits.get()),
            charged_age_nanos: charged.map_or(0, |charged| nanos(charged.age)),
        }
    }

    fn contents(&self, contents: &Arc<SlotData>) -> Bytes {
        contents.encode(self.now).into()
    }

    /// The bytes of a limit or a receipt.
    fn put(&mut self, value: &impl Serialize) -> Bytes {
        if self.small.capacity() < SMALL_BYTES / 4 {
            self.small.reserve(SMALL_BYTES);
        }
        postcard::to_io(value, (&mut self.small).writer()).expect(
            "a buffer that grows has room for whatever comes, and no list of it is of unknown length",
        );
        self.small.split().freeze()
    }
}

fn introduction(hello: &Hello) -> proto::Introduction {
    let Hello { record, hashing, known, held, holders } = hello;
    let hashing = hashing.as_ref().map(|Hashing { founder, secret }| proto::Hashing {
        founder: founder.number(),
        secret: Bytes::copy_from_slice(&secret.to_bytes()),
    });
    let holder_of = |(slot, holder): &(Slot, Holder)| proto::HolderOf {
        slot: number(*slot),
        holder: Some((*holder).into()),
    };
    proto::Introduction {
        record: Some(record.into()),
        hashing,
        known: known.iter().map(Into::into).collect(),
        held: held.iter().map(|(slot, epoch, origin)| holds(*slot, *epoch, *origin)).collect(),
        holders: holders.iter().map(holder_of).collect(),
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
