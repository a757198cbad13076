//! The encoded form of side data: a record with a tag for each kind.

use tollgate_counter::{
    packed_counter::{DecodeClock, DecodeError},
    time::Timestamp,
};

use crate::{
    holds::Holds,
    side_data::{SideData, UnknownRecord, own::OwnLimit, pending::CounterUsage},
};

/// The smallest tag of side data. Smaller ones are those of packed counters.
pub(crate) const SIDE_DATA_MIN: u8 = PENDING;
/// The tag of pending usage: a packed counter, and optionally the one that it started from.
const PENDING: u8 = 128;
/// The tag of all holds.
const HOLDS: u8 = 130;
/// The tag of holds that have changed since an earlier copy, or that accompany the changes of their counter.
const CHANGED_HOLDS: u8 = 131;
/// The tag of a limit of its own.
pub const OWN_LIMIT_TAG: u8 = 132;

impl SideData {
    /// Writes a record for each kind that is not idle.
    pub(crate) fn write(&self, now: Timestamp, mut put: impl FnMut(u8, &[u8])) {
        let Self { holds, pending, leased: _, grant: _, own, unknown } = self;
        if let Some(own) = own.as_ref().filter(|own| !own.is_over(now)) {
            put(OWN_LIMIT_TAG, &own.write(now));
        }
        if let Some(holds) = holds {
            put(if holds.accompanies_changes() { CHANGED_HOLDS } else { HOLDS }, &holds.write(now));
        }
        for usage in pending.iter().filter(|usage| !usage.is_idle(now)) {
            put(PENDING, &usage.write(now));
        }
        for UnknownRecord { tag, fields } in unknown {
            put(*tag, fields);
        }
    }

    /// The sizes of the records at any instant without their tags, in bytes, at most.
    pub(crate) fn encoded_bytes_max(&self) -> impl Iterator<Item = usize> {
        let Self { holds, pending, leased: _, grant: _, own, unknown } = self;
        let own = own.iter().map(|own| own.encoded_bytes_max());
        let holds = holds.iter().map(|holds| holds.encoded_bytes_max());
        let pending = pending.iter().map(CounterUsage::encoded_bytes_max);
        own.chain(holds).chain(pending).chain(unknown.iter().map(|record| record.fields.len()))
    }

    /// Decodes a record of [`SideData::write`] into this side data. An unknown one is left to the caller.
    pub(crate) fn read(&mut self, tag: u8, fields: &[u8], clock: DecodeClock) -> Result<(), DecodeError> {
        match tag {
            HOLDS => self.holds = Some(Box::new(Holds::read(fields, clock)?)),
            CHANGED_HOLDS => self.holds = Some(Box::new(Holds::read_changes(fields, clock)?)),
            OWN_LIMIT_TAG => self.own = Some(Box::new(OwnLimit::read(fields, clock)?)),
            PENDING => self.pending.push(CounterUsage::read(fields, clock)?),
            _ => return Err(DecodeError::Unknown),
        }
        Ok(())
    }

    /// Retains a record that this version does not know.
    pub(crate) fn add_unknown(&mut self, tag: u8, fields: &[u8]) {
        self.unknown.push(UnknownRecord { tag, fields: fields.into() });
    }
}
