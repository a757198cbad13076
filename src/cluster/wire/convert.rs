//! Conversions of parts that have the same fields in messages and in protobuf.

use std::{fmt, time::Duration};

use crate::{
    cluster::{
        MemberId,
        message::{Grant, Holder, Record, State, TransferId, Version},
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

impl From<Holder> for proto::Holder {
    fn from(Holder { epoch, member }: Holder) -> Self {
        Self { epoch, member: member.number() }
    }
}

impl From<proto::Holder> for Holder {
    fn from(proto::Holder { epoch, member }: proto::Holder) -> Self {
        Self { epoch, member: MemberId::from_number(member) }
    }
}

impl From<TransferId> for proto::TransferId {
    fn from(TransferId { from, number }: TransferId) -> Self {
        Self { from: from.number(), number }
    }
}

impl From<proto::TransferId> for TransferId {
    fn from(proto::TransferId { from, number }: proto::TransferId) -> Self {
        Self { from: MemberId::from_number(from), number }
    }
}

impl From<&Record> for proto::Record {
    fn from(Record { id, address, state, rules, changes }: &Record) -> Self {
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

impl From<proto::Record> for Record {
    fn from(record: proto::Record) -> Self {
        let state = record.state().into();
        let proto::Record { id, address, rules, changes, .. } = record;
        Self { id: MemberId::from_number(id), address, state, rules, changes }
    }
}

impl From<State> for proto::State {
    fn from(state: State) -> Self {
        match state {
            State::Joining => Self::Joining,
            State::Serving => Self::Serving,
            State::Draining => Self::Draining,
        }
    }
}

impl From<proto::State> for State {
    fn from(state: proto::State) -> Self {
        match state {
            proto::State::Joining => Self::Joining,
            proto::State::Serving => Self::Serving,
            // A member in an unknown state may answer, but receives no slots.
            proto::State::Draining | proto::State::Unspecified => Self::Draining,
        }
    }
}

impl From<&Grant> for proto::Grant {
    fn from(grant: &Grant) -> Self {
        let kind = match grant {
            Grant::Slice { number, hits, life } => proto::grant::Kind::Slice(proto::GrantedSlice {
                number: *number,
                hits: *hits,
                life_nanos: nanos(*life),
            }),
            Grant::Nothing { life } => proto::grant::Kind::NothingNanos(nanos(*life)),
        };
        Self { kind: Some(kind) }
    }
}

impl From<proto::grant::Kind> for Grant {
    fn from(kind: proto::grant::Kind) -> Self {
        match kind {
            proto::grant::Kind::Slice(proto::GrantedSlice { number, hits, life_nanos }) => {
                Self::Slice { number, hits, life: Duration::from_nanos(life_nanos) }
            }
            proto::grant::Kind::NothingNanos(nanos) => Self::Nothing { life: Duration::from_nanos(nanos) },
        }
    }
}
