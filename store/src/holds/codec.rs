//! The wire format of holds. Their instants are sent as ages, except the ends of windows.

use tollgate_counter::{
    packed_counter::{Age, DecodeClock, DecodeError, put, take},
    time::Timestamp,
};

use crate::{
    holds::{Holds, changes::HoldChanges},
    reservation::{HOLD_TTL_MAX, HOLDS_MAX, HoldId},
};

/// The largest encoded limit, in bytes.
pub(crate) const LIMIT_BYTES_MAX: usize = 128;
/// The largest encoded hold without its id, in bytes.
const HOLD_BYTES_MAX: usize = 144;
/// The largest encoded ended hold without its id, in bytes.
const ENDED_BYTES_MAX: usize = 105;
/// The bytes of an encoded id in addition to its own, at most, and a length.
const ID_BYTES_MAX: usize = 6;

/// The largest encoded position of an entry, in bytes.
const POSITION_BYTES_MAX: usize = 4;

impl Holds {
    /// The encoded holds.
    pub(crate) fn write(&self, now: Timestamp) -> Vec<u8> {
        let age = |instant| Timestamp::from_nanos(Age::new(instant, now).to_bits());
        let holds = self.clone().moved(age, |end| end);
        if self.accompanies_changes() {
            let HoldChanges { gone, is_partial, positions, .. } = &self.changes;
            put(&(holds, is_partial.then_some(gone), positions))
        } else {
            put(&holds)
        }
    }

    /// The size of the encoded holds at any instant, in bytes, at most.
    pub(crate) fn encoded_bytes_max(&self) -> usize {
        LIMIT_BYTES_MAX
            + 4 * ID_BYTES_MAX
            + self.each.len() * (HOLD_BYTES_MAX + ID_BYTES_MAX)
            + self.ended.len() * (ENDED_BYTES_MAX + ID_BYTES_MAX)
            + self.id_bytes
            + 1
            + self.changes.positions.len() * POSITION_BYTES_MAX
            + self.changes.gone.iter().map(|id| ID_BYTES_MAX + id.bytes.len()).sum::<usize>()
    }

    /// Decodes holds.
    pub(crate) fn read(bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        take::<Self>(bytes)?.decoded(None, Vec::new(), clock)
    }

    /// Whether the copy is one of changes, or accompanies the changes of its counter.
    pub(crate) fn accompanies_changes(&self) -> bool {
        self.is_partial() || !self.changes.positions.is_empty()
    }

    /// Decodes a copy of the changes since an earlier copy, or one that accompanies the changes of a counter.
    pub(crate) fn read_changes(bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        let (holds, gone, positions) = take::<(Self, _, _)>(bytes)?;
        holds.decoded(gone, positions, clock)
    }

    fn decoded(
        self,
        gone: Option<Vec<HoldId>>,
        positions: Vec<Option<u16>>,
        clock: DecodeClock,
    ) -> Result<Self, DecodeError> {
        let is_valid = self.each.len() <= HOLDS_MAX
            && self.each.iter().all(|hold| hold.ttl <= HOLD_TTL_MAX)
            && gone.as_ref().is_none_or(|gone| gone.len() <= HOLDS_MAX)
            && (positions.is_empty() || positions.len() == self.each.len());
        if !is_valid {
            return Err(DecodeError::Malformed);
        }
        let instant = |age: Timestamp| clock.instant(Age::from_bits(age.as_nanos()));
        let last = self.ended.values().map(|ended| ended.change.0).max().unwrap_or_default();
        let is_partial = gone.is_some();
        let gone = gone.unwrap_or_default();
        let changes = HoldChanges { last, copied: None, gone, is_partial, positions };
        let mut holds = Self { changes, ..self.with_bytes_of_ids() };
        holds.forget_oldest();
        Ok(holds.moved(instant, |end| clock.window_end(end)))
    }
}
