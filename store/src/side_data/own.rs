//! A limit of its own for one key: numbers in place of those of its rule.

use std::{ops::Range, time::Duration};

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::OwnTerms,
    descriptor::Key,
    packed_counter::{Age, DecodeClock, DecodeError, put, take},
    time::Timestamp,
};

use crate::slot::Slot;

/// How long a removed own limit is retained, so that an older copy does not bring it back.
const TOMBSTONE: Duration = Duration::from_secs(3_600);
/// The maximum length of a record, in bytes.
pub const OWN_RECORD_MAX: usize = 16 * 1024;
/// Of a slot no more limits are listed at once after so many bytes of their records.
const LISTED_BYTES: usize = 16 * 1024;
/// The largest encoded own limit without its limit and its record, in bytes.
const FIELDS_BYTES_MAX: usize = 64;

/// A limit of its own that a caller sets or removes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnLimitChange {
    /// What decides from now on; `None` for the numbers of the rule.
    pub terms: Option<OwnTerms>,
    /// How long the own limit applies; `None` until it is removed.
    pub expires_after: Option<Duration>,
    /// What the caller retains with the own limit, at most [`OWN_RECORD_MAX`] bytes.
    pub record: Box<[u8]>,
    /// The version that the change replaces, 0 for none; `None` for any.
    pub replaces: Option<u64>,
}

/// A limit of its own as it applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnLimitState {
    /// What decides; `None` if it was removed.
    pub terms: Option<OwnTerms>,
    /// The version. It grows with each change.
    pub version: u64,
    /// The time until the own limit ends; `None` until it is removed.
    pub expires_after: Option<Duration>,
    /// What the caller retains with the own limit.
    pub record: Box<[u8]>,
}

/// What has become of a change of an own limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnLimitOutcome {
    /// Why nothing has changed, or is not safe; `None` if it has.
    pub refusal: Option<OwnLimitRefusal>,
    /// The own limit after the operation, if there is one.
    pub state: Option<OwnLimitState>,
}

/// Why an own limit is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnLimitRefusal {
    /// The own limit has another version.
    OtherVersion,
    /// There is no memory for the own limit.
    NoMemory,
    /// The own limit has changed, and no backup is known to have it: it is lost if its owner dies now.
    NotBackedUp,
}

/// Where a list of limits of their own continues: after a key in a slot, or at a cursor of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnLimitPosition {
    /// The slot, or the number of the server.
    pub slot: Slot,
    /// The key in the slot, or the cursor.
    pub key: Key,
}

/// Limits of their own of one slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotOwnLimits {
    /// The limits, those that were removed included, in the order of their keys.
    pub limits: Box<[(Key, OwnLimitState)]>,
    /// Whether the slot has more limits after these.
    pub has_more: bool,
}

/// A part of the list of all limits of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnLimitPage {
    /// The limits, those that were removed included.
    pub limits: Vec<(Key, OwnLimitState)>,
    /// Where the list continues; `None` at its end.
    pub next: Option<OwnLimitPosition>,
}

impl OwnLimitPosition {
    /// The position at this cursor of the server with this number.
    pub fn at_cursor(server: u16, cursor: u64) -> Self {
        Self { slot: Slot(server), key: Key::from_halves(0, cursor) }
    }

    /// The number of the server, and the cursor.
    pub fn server_and_cursor(self) -> (u16, u64) {
        (self.slot.0, self.key.low())
    }

    /// The position as text.
    pub fn token(self) -> String {
        format!("{:04x}{:016x}{:016x}", self.slot.0, self.key.high(), self.key.low())
    }

    /// Reads what [`OwnLimitPosition::token`] has returned.
    pub fn from_token(token: &str) -> Option<Self> {
        let digits = |range: Range<usize>| u64::from_str_radix(token.get(range)?, 16).ok();
        let slot = Slot(u16::try_from(digits(0..4)?).ok()?);
        let key = Key::from_halves(digits(4..20)?, digits(20..36)?);
        (token.len() == 36).then_some(Self { slot, key })
    }
}

/// The own limit of a counter, or what is retained of a removed one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnLimit {
    terms: Option<OwnTerms>,
    pub(crate) version: u64,
    // The instant from which nothing of it is retained.
    ends_at: Option<Timestamp>,
    record: Box<[u8]>,
}

impl SlotOwnLimits {
    /// Of the limits of a slot as many as are listed at once, and at least one.
    pub(crate) fn new<'o>(mut each: impl Iterator<Item = (Key, &'o OwnLimit)>, now: Timestamp) -> Self {
        let mut limits = Vec::new();
        let mut bytes = 0;
        while bytes < LISTED_BYTES
            && let Some((key, own)) = each.next()
        {
            bytes += own.bytes();
            limits.push((key, own.state(now)));
        }
        Self { limits: limits.into(), has_more: each.next().is_some() }
    }
}

/// Decodes a record of a limit of its own, in a value of a shared store.
pub fn read_own_limit(fields: &[u8], now: Timestamp) -> Option<OwnLimitState> {
    OwnLimit::read(fields, Timestamp::EPOCH.into()).ok().map(|own| own.state(now))
}

impl OwnLimit {
    /// The own limit after a change at `now`, in place of `before`.
    pub(crate) fn changed(before: Option<&Self>, change: &OwnLimitChange, now: Timestamp) -> Self {
        let OwnLimitChange { terms, expires_after, record, replaces: _ } = change;
        // By the clock, so that another owner that knows no earlier version has a later one nevertheless.
        let version = before.map_or(0, |before| before.version.saturating_add(1)).max(now.as_nanos() / 1_000);
        let retained = terms.as_ref().map_or(Some(TOMBSTONE), |_| *expires_after);
        Self {
            terms: terms.clone(),
            version,
            ends_at: retained.map(|retained| now.after(retained)),
            record: record.clone(),
        }
    }

    /// Whether a change names this version and what it has, so that nothing changes.
    pub(crate) fn is_repeated_by(&self, change: &OwnLimitChange) -> bool {
        let OwnLimitChange { terms, expires_after, record, replaces } = change;
        let is_without_end = self.ends_at.is_none() && expires_after.is_none();
        *replaces == Some(self.version) && is_without_end && (terms, record) == (&self.terms, &self.record)
    }

    /// What decides at `now`.
    pub(crate) fn terms(&self, now: Timestamp) -> Option<&OwnTerms> {
        self.terms.as_ref().filter(|_| !self.is_over(now))
    }

    /// Whether nothing of the own limit is retained.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// The instant from which nothing of the own limit is retained.
    pub(crate) fn ends_at(&self) -> Timestamp {
        self.ends_at.unwrap_or(Timestamp::MAX)
    }

    /// The own limit as it applies at `now`.
    pub(crate) fn state(&self, now: Timestamp) -> OwnLimitState {
        let terms = self.terms(now).cloned();
        let expires_after = self.ends_at.filter(|_| terms.is_some()).map(|ends_at| ends_at.since(now));
        OwnLimitState { terms, version: self.version, expires_after, record: self.record.clone() }
    }

    /// The later one of two.
    pub(crate) fn later(self: Box<Self>, other: Box<Self>) -> Box<Self> {
        if self.version < other.version { other } else { self }
    }

    /// The approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.record.len()
    }

    /// The size of the encoded own limit at any instant, in bytes, at most.
    pub(super) fn encoded_bytes_max(&self) -> usize {
        FIELDS_BYTES_MAX + crate::holds::codec::LIMIT_BYTES_MAX + self.record.len()
    }

    /// The encoded own limit.
    pub(super) fn write(&self, now: Timestamp) -> Vec<u8> {
        let Self { terms, version, ends_at, record } = self;
        put(&(terms, version, ends_at.map(|ends_at| Age::new(ends_at, now)), record))
    }

    /// Decodes an own limit.
    pub(super) fn read(bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        let (terms, version, ends_at, record): (_, _, Option<Age>, Box<[u8]>) = take(bytes)?;
        if record.len() > OWN_RECORD_MAX {
            return Err(DecodeError::Malformed);
        }
        Ok(Self { terms, version, ends_at: ends_at.map(|ends_at| clock.instant(ends_at)), record })
    }
}
