//! Reservations as callers see them: their ids and terms, and how they were settled.

use std::{borrow::Cow, fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// The most bytes of an id.
pub const HOLD_ID_BYTES_MAX: usize = 64;
/// Bytes that no text has: ids of requests that charge, and of those that refund.
const CHARGES: u8 = 0xff;
const REFUNDS: u8 = 0xfe;
/// The time until a hold expires, unless the caller says otherwise.
pub const HOLD_TTL_DEFAULT: Duration = Duration::from_secs(60);
/// The most holds of one counter that are open, or charged at their expiry and not forgotten yet.
pub const HOLDS_MAX: usize = 1_000;
/// The most holds of a counter that are listed.
pub const LISTED_HOLDS_MAX: usize = 100;
/// The shortest time until a hold expires.
pub const HOLD_TTL_MIN: Duration = Duration::from_millis(1);
/// The longest time until a hold expires.
pub const HOLD_TTL_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The id of a hold. It distinguishes the holds of one counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Box<[u8]>, u32)")]
pub struct HoldId {
    // Invariant: at most 64 bytes.
    pub(super) bytes: Box<[u8]>,
    // How many earlier checks of the same call have the same counter.
    nth: u32,
}

/// An id is longer than 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a reservation has {0} bytes; at most 64 are allowed")]
pub struct HoldIdTooLong(pub usize);

/// What happens to a hold that is neither settled nor canceled until its expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnExpiry {
    /// The hold is taken back.
    #[default]
    Release,
    /// The hold stays charged.
    Charge,
}

/// How a call reserves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTerms {
    /// The id of the reservation.
    pub id: HoldId,
    /// Random, if there are several owners: only holds of the same attempt are withdrawn.
    pub attempt: u64,
    pub(crate) ttl: Duration,
    pub(crate) on_expiry: OnExpiry,
    // What happens to the parts of the call instead, by their index; for the others nothing is said. Each part gets its
    // own terms before they are sent.
    #[serde(skip)]
    pub(crate) parts: Vec<Option<OnExpiry>>,
}

/// The time until a hold expires is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ttl of a reservation is {0:?}; from 1 ms to 24 h are allowed")]
pub struct HoldTtlOutOfBounds(pub Duration);

/// The open holds of a counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHolds {
    /// The number of open holds.
    pub count: u64,
    /// The hits of all open holds.
    pub hits: u64,
    /// The open holds that expire first, at most 100.
    pub first: Vec<OpenHold>,
}

/// An open hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHold {
    /// The id of the hold.
    pub id: HoldId,
    /// The hits of the hold.
    pub hits: u64,
    /// The time until the hold expires.
    pub expires_after: Duration,
    /// What happens to the hits when the hold expires.
    pub on_expiry: OnExpiry,
}

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
    /// The hold was open.
    Open,
    /// The expiry had charged the hold, and the charge was adjusted.
    Charged,
    /// The expiry had released the hold, so all hits were charged now.
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

    /// Whether the id is that of a charge or of a refund that counts once.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(self.bytes.first(), Some(&(CHARGES | REFUNDS)))
    }

    /// The id of a charge that counts once, from the id of its request. It differs from every id that is a text.
    pub fn for_request(request_id: &str) -> Result<Self, HoldIdTooLong> {
        Self::new(&[&[CHARGES], request_id.as_bytes()].concat())
    }

    /// The id of a refund that counts once, from the id of its request. A charge with the same id is another one.
    pub fn for_refund(request_id: &str) -> Result<Self, HoldIdTooLong> {
        Self::new(&[&[REFUNDS], request_id.as_bytes()].concat())
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

/// The id as callers chose it; in hexadecimal digits if it is no text, or the id of a request.
impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => f.write_str(text),
            Err(_) => self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// An id as received from another replica.
impl TryFrom<(Box<[u8]>, u32)> for HoldId {
    type Error = HoldIdTooLong;

    fn try_from((bytes, nth): (Box<[u8]>, u32)) -> Result<Self, HoldIdTooLong> {
        let id = Self::new(&bytes)?;
        Ok(Self { nth, ..id })
    }
}

impl HoldTerms {
    /// The time until the hold expires.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// What happens to the hits when the hold expires.
    pub fn on_expiry(&self) -> OnExpiry {
        self.on_expiry
    }

    /// Terms of a hold of this id, which expires after `ttl`.
    pub fn new(id: HoldId, ttl: Duration, on_expiry: OnExpiry) -> Result<Self, HoldTtlOutOfBounds> {
        if !(HOLD_TTL_MIN..=HOLD_TTL_MAX).contains(&ttl) {
            return Err(HoldTtlOutOfBounds(ttl));
        }
        Ok(Self { id, attempt: 0, ttl, on_expiry, parts: Vec::new() })
    }

    /// The terms with what happens to each descriptor of the request instead.
    pub fn with_descriptors(self, parts: Vec<Option<OnExpiry>>) -> Self {
        Self { parts, ..self }
    }

    /// The terms with the checks of the descriptors at these indices as their parts.
    pub fn with_checks(&self, descriptors: impl Iterator<Item = usize>) -> Cow<'_, Self> {
        if self.parts.is_empty() {
            return Cow::Borrowed(self);
        }
        let parts = descriptors.map(|index| self.parts.get(index).copied().flatten()).collect();
        Cow::Owned(Self { parts, ..self.clone() })
    }

    /// The terms of one part.
    pub fn for_part(&self, index: usize, id: HoldId) -> Self {
        let Self { attempt, ttl, on_expiry, ref parts, .. } = *self;
        let on_expiry = parts.get(index).copied().flatten().unwrap_or(on_expiry);
        Self { id, attempt, ttl, on_expiry, parts: Vec::new() }
    }

    /// The terms for another attempt.
    pub fn with_random_attempt(&self) -> Self {
        let attempt = getrandom::u64().expect("every supported system has a random source");
        self.clone().with_attempt(attempt)
    }

    /// The terms for this attempt.
    pub fn with_attempt(self, attempt: u64) -> Self {
        Self { attempt, ..self }
    }
}
