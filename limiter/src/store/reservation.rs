//! Reservations as callers see them: their ids and terms, and how they were settled.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most bytes of an id.
pub const HOLD_ID_BYTES_MAX: usize = 64;
/// A byte that no text has.
const NO_TEXT: u8 = 0xff;
/// The time until a hold expires, unless the caller says otherwise.
pub const HOLD_TTL_DEFAULT: Duration = Duration::from_secs(60);
/// The shortest time until a hold expires.
pub const HOLD_TTL_MIN: Duration = Duration::from_millis(1);
/// The longest time until a hold expires.
pub const HOLD_TTL_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The id of a hold. It distinguishes the holds of one counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "ReceivedId")]
pub struct HoldId {
    // Invariant: at most 64 bytes.
    pub(super) bytes: Box<[u8]>,
    // How many earlier checks of the same call have the same counter.
    nth: u32,
}

/// An id as received from another replica.
#[derive(Deserialize)]
struct ReceivedId {
    bytes: Box<[u8]>,
    nth: u32,
}

/// An id is longer than 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a reservation has {0} bytes; at most 64 are allowed")]
pub struct HoldIdTooLong(pub usize);

/// What happens to a hold that is neither settled nor canceled until its expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnExpiry {
    /// It is taken back.
    #[default]
    Release,
    /// It stays charged.
    Charge,
}

/// How a call reserves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTerms {
    pub(crate) id: HoldId,
    // Random, if there are several owners: only holds of the same attempt are withdrawn.
    pub(crate) attempt: u64,
    pub(crate) ttl: Duration,
    pub(crate) on_expiry: OnExpiry,
}

/// The time until a hold expires is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ttl of a reservation is {0:?}; from 1 ms to 24 h are allowed")]
pub struct HoldTtlOutOfBounds(pub Duration);

/// How a hold was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// What was known of the hold.
    pub outcome: SettleOutcome,
    /// Hits that were reserved; 0 if the id is unknown.
    pub reserved: u64,
    /// Of the hits that were used, those that were not charged because the limit does not go as far.
    pub uncharged: u64,
    /// Hits that would pass now.
    pub remaining: u64,
    /// The time until the whole limit is available again.
    pub reset_after: Duration,
}

/// What was known of a hold when it was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettleOutcome {
    /// It was open.
    Open,
    /// Its expiry had charged it, and the charge was adjusted.
    Charged,
    /// Its expiry had released it, so all hits were charged now.
    Released,
    /// The id is unknown, so all hits were charged now.
    Unknown,
}

impl HoldId {
    /// An id of these bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, HoldIdTooLong> {
        if bytes.len() > HOLD_ID_BYTES_MAX {
            return Err(HoldIdTooLong(bytes.len()));
        }
        Ok(Self { bytes: bytes.into(), nth: 0 })
    }

    /// The id of a charge that counts once, from the id of its request. It differs from every id that is a text.
    pub fn of_request(request_id: &str) -> Result<Self, HoldIdTooLong> {
        Self::new(&[&[NO_TEXT], request_id.as_bytes()].concat())
    }

    /// A random id of 16 bytes.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("every supported system has a random source");
        Self { bytes: bytes.into(), nth: 0 }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The id for a check with `nth` earlier checks of the same counter in its call.
    pub(super) fn nth(&self, nth: usize) -> Self {
        // The number of checks of a call is bounded by its message.
        Self { nth: self.nth + nth as u32, ..self.clone() }
    }
}

impl TryFrom<ReceivedId> for HoldId {
    type Error = HoldIdTooLong;

    fn try_from(ReceivedId { bytes, nth }: ReceivedId) -> Result<Self, HoldIdTooLong> {
        let id = Self::new(&bytes)?;
        Ok(Self { nth, ..id })
    }
}

impl HoldTerms {
    /// The id.
    pub fn id(&self) -> &HoldId {
        &self.id
    }

    /// The time until the hold expires.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// What happens to the hits when it expires.
    pub fn on_expiry(&self) -> OnExpiry {
        self.on_expiry
    }

    /// Terms of a hold of this id, which expires after `ttl`.
    pub fn new(id: HoldId, ttl: Duration, on_expiry: OnExpiry) -> Result<Self, HoldTtlOutOfBounds> {
        if !(HOLD_TTL_MIN..=HOLD_TTL_MAX).contains(&ttl) {
            return Err(HoldTtlOutOfBounds(ttl));
        }
        Ok(Self { id, attempt: 0, ttl, on_expiry })
    }

    /// The same terms for another attempt.
    pub(crate) fn with_random_attempt(&self) -> Self {
        let attempt = getrandom::u64().expect("every supported system has a random source");
        self.clone().with_attempt(attempt)
    }

    /// The same terms for this attempt.
    pub fn with_attempt(self, attempt: u64) -> Self {
        Self { attempt, ..self }
    }
}
