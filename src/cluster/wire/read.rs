//! Decodes protobuf into messages.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use prost::bytes::Bytes;
use serde::Deserialize;

use crate::{
    algorithm::{Decision, Limit, Operation, Receipt, Verdict},
    cluster::{
        MemberId,
        message::{
            ChargedHits, Grant, HandOff, HashSecret, Hello, LeaseState, Message, Origin, Owner, RemoteCheck,
            RemoteOperation, Reply, Settlement, SlotCopy, Version,
        },
        wire::{
            Malformed,
            proto::{self, ask, item::Kind},
        },
    },
    descriptor::{Key, Secret},
    store::{Slot, SlotData},
    time::Timestamp,
};

/// Why a part is not decoded.
enum Unread {
    /// The part is well formed but has no meaning in this version.
    Unknown,
    /// This part is missing or invalid.
    Malformed(&'static str),
}

/// Decodes one message; `None` if it contains something that this version does not know.
pub(super) fn message(kind: Kind, now: Timestamp) -> Result<Option<Message>, Malformed> {
    let (kind, message) = named(kind, now);
    match message {
        Ok(message) => Ok(Some(message)),
        Err(Unread::Unknown) => Ok(None),
        Err(Unread::Malformed(part)) => Err(Malformed::Part { kind, part }),
    }
}

/// Decodes one message and names its kind.
fn named(kind: Kind, now: Timestamp) -> (&'static str, Result<Message, Unread>) {
    match kind {
        Kind::Ask(ask) => ("ask", asked(ask, now)),
        Kind::Answer(answer) => ("answer", answered(answer)),
        Kind::Hello(hello) => ("hello", introduced(*hello)),
        Kind::Member(record) => ("member", Ok(Message::Member(record.into()))),
        Kind::Holds(holds) => {
            ("holds", held(holds).map(|(slot, epoch, origin)| Message::Owns { slot, epoch, origin }))
        }
        Kind::Transfer(transfer) => ("transfer", transferred(*transfer, now)),
        Kind::Taken(id) => ("taken", Ok(Message::HandOffAck(id.into()))),
        Kind::Backup(backup) => ("backup", backed_up(*backup, now)),
        Kind::Backed(proto::Backed { slot: of, version }) => {
            ("backed", slot(of).map(|slot| Message::BackupAck { slot, version: version.into() }))
        }
        Kind::Lacking(proto::Lacking { slot: of }) => {
            ("lacking", slot(of).map(|slot| Message::BackupBaseMissing { slot }))
        }
        Kind::Query(proto::Query { slot: of, best, dead }) => {
            let query = |slot| Message::RecoveryQuery { slot, best: best.into(), dead: members(dead) };
            ("query", slot(of).map(query))
        }
        Kind::Known(known) => ("known", known_of(*known, now)),
        Kind::Orphan(orphan) => ("orphan", orphaned(orphan)),
        Kind::Better(better) => ("better", bettered(*better, now)),
        Kind::Recall(key) => ("recall", Ok(Message::Recall { key: key.into() })),
        Kind::Revoke(key) => ("revoke", Ok(Message::Revoke { key: key.into() })),
    }
}

fn asked(ask: proto::Ask, now: Timestamp) -> Result<Message, Unread> {
    let proto::Ask { ticket, key_high, key_low, limit, budget_nanos, hops, wish, deed: asked } = ask;
    let check = RemoteCheck {
        key: Key::from_halves(key_high, key_low),
        limit: written(&limit, "limit")?,
        operation: deed(asked.ok_or(Unread::Unknown)?, now)?,
        lease_hits: wish,
    };
    Ok(Message::Forward {
        ticket,
        check: Arc::new(check),
        budget: Duration::from_nanos(budget_nanos),
        // The limit on hops is far below the maximum, so capping changes nothing.
        hops: u8::try_from(hops).unwrap_or(u8::MAX),
    })
}

fn deed(deed: ask::Deed, now: Timestamp) -> Result<RemoteOperation, Unread> {
    Ok(match deed {
        ask::Deed::Charge(hits) => RemoteOperation::Decide(Operation::Charge(hits)),
        ask::Deed::Look(_) => RemoteOperation::Decide(Operation::Peek),
        ask::Deed::Refund(hits) => RemoteOperation::Decide(Operation::Refund(hits)),
        ask::Deed::Undo(receipt) => RemoteOperation::Undo(written(&receipt, "receipt")?),
        ask::Deed::Absorb(consumed) => RemoteOperation::Absorb(contents(&consumed, now)?),
        ask::Deed::Settle(settlement) => {
            let proto::Settlement { lessee, number, hits, age_nanos, closed, left } = *settlement;
            let state = if closed { LeaseState::Closed } else { LeaseState::Open };
            let (borrower, age) = (MemberId::from_number(lessee), Duration::from_nanos(age_nanos));
            RemoteOperation::Settle(Settlement { borrower, number, hits, left, age, state })
        }
        ask::Deed::Set(hits) => RemoteOperation::Set(hits),
    })
}

fn answered(answer: proto::Answer) -> Result<Message, Unread> {
    let ticket = answer.ticket;
    let wait = answer.wait_nanos.map(Duration::from_nanos);
    let verdict = match answer.verdict() {
        proto::Verdict::Pass => Verdict::Pass,
        proto::Verdict::Delay => Verdict::Delay(wait.unwrap_or_default()),
        proto::Verdict::Refuse => Verdict::Refuse { retry_after: wait },
        proto::Verdict::Unspecified => return Ok(Message::Reply { ticket, reply: Reply::Unreachable }),
    };
    let proto::Answer { remaining, reset_after_nanos, charged, receipt, grant, .. } = answer;
    let decision = Decision {
        verdict,
        remaining,
        reset_after: Duration::from_nanos(reset_after_nanos),
        receipt: returned(&receipt)?,
    };
    let lease = grant.and_then(|grant| grant.kind).map(Into::into);
    Ok(Message::Reply { ticket, reply: Reply::Decided { decision, charged, lease } })
}

/// Decodes the receipt of an answer. A receipt unknown to this version could not be returned, so the charge stays.
fn returned(receipt: &Bytes) -> Result<Option<Receipt>, Unread> {
    if receipt.is_empty() {
        return Ok(None);
    }
    known(written(receipt, "receipt"))
}

fn introduced(hello: proto::Introduction) -> Result<Message, Unread> {
    let proto::Introduction { record, hashing, known, held: holds, holders } = hello;
    let hello = Hello {
        record: record.ok_or(Unread::Malformed("record"))?.into(),
        hash_secret: hashing.map(hashed).transpose()?,
        known: known.into_iter().map(Into::into).collect(),
        owned: holds.into_iter().map(held).collect::<Result<_, _>>()?,
        owners: holders.into_iter().map(holder_of).collect::<Result<_, _>>()?,
    };
    Ok(Message::Hello(Box::new(hello)))
}

fn hashed(hashing: proto::Hashing) -> Result<HashSecret, Unread> {
    let secret = hashing.secret.as_ref().try_into().map_err(|_| Unread::Malformed("secret"))?;
    Ok(HashSecret { founder: MemberId::from_number(hashing.founder), secret: Secret::from_bytes(secret) })
}

fn held(holds: proto::Holds) -> Result<(Slot, u64, Version), Unread> {
    Ok((slot(holds.slot)?, holds.epoch, holds.origin.into()))
}

fn holder_of(of: proto::HolderOf) -> Result<(Slot, Owner), Unread> {
    Ok((slot(of.slot)?, of.holder.ok_or(Unread::Malformed("holder"))?.into()))
}

fn transferred(transfer: proto::Transfer, now: Timestamp) -> Result<Message, Unread> {
    let proto::Transfer { id, slot: of, copy, origin } = transfer;
    let proto::Origin { version, since, contents: base } = origin.unwrap_or_default();
    let transfer = HandOff {
        id: id.ok_or(Unread::Malformed("id"))?.into(),
        slot: slot(of)?,
        copy: required(copy, now)?,
        origin: Origin {
            version: version.into(),
            since,
            contents: base.map(|base| contents(&base, now)).transpose()?,
        },
    };
    Ok(Message::HandOff(Box::new(transfer)))
}

fn backed_up(backup: proto::Backup, now: Timestamp) -> Result<Message, Unread> {
    let proto::Backup { slot: of, copy, after } = backup;
    Ok(Message::Backup { slot: slot(of)?, copy: required(copy, now)?, after })
}

fn known_of(known: proto::Known, now: Timestamp) -> Result<Message, Unread> {
    let proto::Known { slot: of, holder, alive, copy: kept } = known;
    let copy = kept.map(|kept| copy(kept, now)).transpose()?;
    Ok(Message::RecoveryReply { slot: slot(of)?, owner: holder.map(Into::into), alive, copy })
}

fn orphaned(orphan: proto::Orphan) -> Result<Message, Unread> {
    let proto::Orphan { slot: of, holder, dead } = orphan;
    let owner = holder.ok_or(Unread::Malformed("holder"))?.into();
    Ok(Message::Orphan { slot: slot(of)?, owner, dead: members(dead) })
}

fn bettered(better: proto::Better, now: Timestamp) -> Result<Message, Unread> {
    let proto::Better { slot: of, copy } = better;
    Ok(Message::NewerCopy { slot: slot(of)?, copy: required(copy, now)? })
}

fn required(missing: Option<proto::Copy>, now: Timestamp) -> Result<SlotCopy, Unread> {
    copy(missing.ok_or(Unread::Malformed("copy"))?, now)
}

fn copy(copy: proto::Copy, now: Timestamp) -> Result<SlotCopy, Unread> {
    let proto::Copy { version, contents: counters, slices } = copy;
    let slices = slices.into_iter().filter_map(|each| known(slice(each)).transpose());
    let slices = slices.collect::<Result<_, _>>()?;
    Ok(SlotCopy { version: version.into(), contents: contents(&counters, now)?, grants: slices })
}

fn slice(slice: proto::Slice) -> Result<Grant, Unread> {
    let proto::Slice { key, limit, lessee, number, left, life_nanos, charged_hits, charged_age_nanos } =
        slice;
    let age = Duration::from_nanos(charged_age_nanos);
    Ok(Grant {
        key: key.ok_or(Unread::Malformed("key"))?.into(),
        limit: written::<Limit>(&limit, "limit")?,
        borrower: MemberId::from_number(lessee),
        number,
        left,
        ttl: Duration::from_nanos(life_nanos),
        charged: NonZeroU64::new(charged_hits).map(|hits| ChargedHits { hits, age }),
    })
}

/// Turns an unknown part into `None`.
fn known<T>(read: Result<T, Unread>) -> Result<Option<T>, Unread> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Unread::Unknown) => Ok(None),
        Err(Unread::Malformed(part)) => Err(Unread::Malformed(part)),
    }
}

/// Decodes a limit or a receipt.
fn written<'b, T: Deserialize<'b>>(bytes: &'b [u8], part: &'static str) -> Result<T, Unread> {
    postcard::from_bytes(bytes).map_err(|error| match error {
        // The bytes are complete but name no existing value.
        postcard::Error::SerdeDeCustom => Unread::Unknown,
        _ => Unread::Malformed(part),
    })
}

/// Decodes contents; no bytes are empty contents.
fn contents(bytes: &[u8], now: Timestamp) -> Result<Arc<SlotData>, Unread> {
    if bytes.is_empty() {
        return Ok(Arc::default());
    }
    SlotData::decode(bytes, now).map(Arc::new).map_err(|_| Unread::Malformed("contents"))
}

fn slot(number: u32) -> Result<Slot, Unread> {
    u16::try_from(number).map(Slot).map_err(|_| Unread::Malformed("slot"))
}

fn members(numbers: Vec<u64>) -> Vec<MemberId> {
    numbers.into_iter().map(MemberId::from_number).collect()
}
