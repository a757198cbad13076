//! Conversions of parts that have the same fields in messages and in protobuf.

use std::{fmt, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{HandOffId, LeaseReply, MemberRecord, MemberState, Owner, Version},
        wire::proto,
    },
    descriptor::Key,
};

/// The nanoseconds of a duration, capped at `u64::MAX` (584 years).
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Shows the founder and hides the secret.
impl fmt::Debug for proto::Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing").field("founder", &self.founder).finish_non_exhaustive()
    }
}

impl From<Key> for proto::Key {
    fn from(key: Key) -> Self {
        Self { high: key.high(), low: key.low() }
    }
}

impl From<proto::Key> for Key {
    fn from(proto::Key { high, low }: proto::Key) -> Self {
        Self::from_halves(high, low)
    }
}

impl From<Version> for proto::Version {
    fn from(Version { epoch, seq }: Version) -> Self {
        Self { epoch, seq }
    }
}

/// A missing version is the least one.
impl From<Option<proto::Version>> for Version {
    fn from(version: Option<proto::Version>) -> Self {
        version.map_or_else(Self::default, |proto::Version { epoch, seq }| Self { epoch, seq })
    }
}

impl From<Owner> for proto::Holder {
    fn from(Owner { epoch, member }: Owner) -> Self {
        Self { epoch, member: member.number() }
    }
}

impl From<proto::Holder> for Owner {
    fn from(proto::Holder { epoch, member }: proto::Holder) -> Self {
        Self { epoch, member: MemberId::from_number(member) }
    }
}

impl From<HandOffId> for proto::TransferId {
    fn from(HandOffId { from, number }: HandOffId) -> Self {
        Self { from: from.number(), number }
    }
}

impl From<proto::TransferId> for HandOffId {
    fn from(proto::TransferId { from, number }: proto::TransferId) -> Self {
        Self { from: MemberId::from_number(from), number }
    }
}

impl From<&MemberRecord> for proto::Record {
    fn from(MemberRecord { id, address, state, rules, changes }: &MemberRecord) -> Self {
        let state: proto::State = (*state).into();
        Self {
            id: id.number(),
            address: address.clone(),
            state: state.into(),
            rules: *rules,
            changes: *changes,
        }
    }
}

impl From<proto::Record> for MemberRecord {
    fn from(record: proto::Record) -> Self {
        let state = record.state().into();
        let proto::Record { id, address, rules, changes, .. } = record;
        Self { id: MemberId::from_number(id), address, state, rules, changes }
    }
}

impl From<MemberState> for proto::State {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Joining => Self::Joining,
            MemberState::Serving => Self::Serving,
            MemberState::Draining => Self::Draining,
        }
    }
}

impl From<proto::State> for MemberState {
    fn from(state: proto::State) -> Self {
        match state {
            proto::State::Joining => Self::Joining,
            proto::State::Serving => Self::Serving,
            // A member in an unknown state may answer, but receives no slots.
            proto::State::Draining | proto::State::Unspecified => Self::Draining,
        }
    }
}

impl From<&LeaseReply> for proto::Grant {
    fn from(grant: &LeaseReply) -> Self {
        let kind = match grant {
            LeaseReply::Granted { number, hits, ttl } => proto::grant::Kind::Slice(proto::GrantedSlice {
                number: *number,
                hits: *hits,
                life_nanos: nanos(*ttl),
            }),
            LeaseReply::Refused { ttl } => proto::grant::Kind::NothingNanos(nanos(*ttl)),
        };
        Self { kind: Some(kind) }
    }
}

impl From<proto::grant::Kind> for LeaseReply {
    fn from(kind: proto::grant::Kind) -> Self {
        match kind {
            proto::grant::Kind::Slice(proto::GrantedSlice { number, hits, life_nanos }) => {
                Self::Granted { number, hits, ttl: Duration::from_nanos(life_nanos) }
            }
            proto::grant::Kind::NothingNanos(nanos) => Self::Refused { ttl: Duration::from_nanos(nanos) },
        }
    }
}
