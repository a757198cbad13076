//! The wire format of slot data.
//!
//! A version byte, a byte for the extent and the lead of the sender's clock, if any; then records until the end: the
//! key in 16 bytes, a tag, a length and the fields. Records with unknown tags are retained and written unchanged.

use tollgate_counter::{
    descriptor::Key,
    packed_counter::{
        Age, DecodeClock, DecodeError, NUMBER_BYTES_MAX, PackedCounter, number_bytes, put, put_tagged, tagged,
    },
    time::{Lead, Timestamp},
};

use crate::{
    side_data::codec::SIDE_DATA_MIN,
    slot_data::{SlotData, SlotDataExtent},
};

/// The first byte.
const VERSION: u8 = 3;
/// The tag of a removed key, without fields. Smaller tags than [`SIDE_DATA_MIN`] are those of packed counters, all others
/// are of side data.
const REMOVED: u8 = 129;
/// The encoded size of what comes before the records, at most: the version, the extent, and the lead.
const HEADER_BYTES_MAX: usize = 3 + 2 * NUMBER_BYTES_MAX;
/// The encoded size of most counters, in bytes.
const RECORD_BYTES_USUAL: usize = 32;
/// The encoded size of a record without its fields and their length.
const RECORD_BYTES: usize = 17;

impl SlotData {
    /// Encodes everything that is not idle. Instants are relative to `now`.
    pub fn encode(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES_MAX + self.counters.len() * RECORD_BYTES_USUAL);
        bytes.extend([VERSION, self.extent as u8]);
        let lead = self.lead.map(|lead| (Age::new(lead.at, now), Age::new(lead.until, now)));
        bytes.extend(put(&lead));
        let mut removed: Vec<Key> = Vec::new();
        let mut fields = Vec::new();
        for (key, packed) in &self.counters {
            if let Some(packed) = packed.as_ref().filter(|packed| now < packed.idle_at()) {
                fields.clear();
                let tag = packed.write(now, &mut fields);
                put_record(&mut bytes, *key, tag, &fields);
            } else if self.extent == SlotDataExtent::Some {
                removed.push(*key);
            }
        }
        removed.into_iter().for_each(|key| put_record(&mut bytes, key, REMOVED, &[]));
        for (key, side_data) in &self.side_data {
            side_data.write(now, |tag, fields| put_record(&mut bytes, *key, tag, fields));
        }
        bytes
    }

    /// The size of the encoded data at any instant, in bytes, at most.
    pub fn encoded_bytes_max(&self) -> usize {
        let record = |fields: usize| RECORD_BYTES + number_bytes(fields as u64) + fields;
        let counters = self.counters.values();
        let counters =
            counters.map(|packed| record(packed.as_ref().map_or(0, PackedCounter::encoded_bytes_max)));
        let side_data = self.side_data.values().flat_map(|side_data| side_data.encoded_bytes_max());
        HEADER_BYTES_MAX + counters.chain(side_data.map(record)).sum::<usize>()
    }

    /// Decodes slot data, with its instants by this clock. Data of another version is unknown. It is not counted in a
    /// memory limit yet: see [`Memory::within_limit`](crate::Memory::within_limit).
    pub fn decode(bytes: &[u8], clock: impl Into<DecodeClock>) -> Result<Self, DecodeError> {
        let clock = clock.into();
        let rest = bytes.strip_prefix(&[VERSION]).ok_or(DecodeError::Unknown)?;
        let (extent, rest) = rest.split_first().ok_or(DecodeError::Malformed)?;
        let extents = [SlotDataExtent::Some, SlotDataExtent::All];
        let extent = *extents.get(usize::from(*extent)).ok_or(DecodeError::Malformed)?;
        let (lead, mut rest): (Option<(Age, Age)>, _) =
            postcard::take_from_bytes(rest).map_err(|_| DecodeError::Malformed)?;
        let lead = lead.map(|(at, until)| Lead { at: clock.instant(at), until: clock.instant(until) });
        let mut data = Self { extent, lead, ..Self::default() };
        data.counters.reserve(counters_in(rest));
        while !rest.is_empty() {
            let (key, tag, body, after) = record(rest).ok_or(DecodeError::Malformed)?;
            data.read(key, tag, body, clock)?;
            rest = after;
        }
        Ok(data)
    }

    fn read(&mut self, key: Key, tag: u8, body: &[u8], clock: DecodeClock) -> Result<(), DecodeError> {
        let decoded = match tag {
            REMOVED if body.is_empty() => {
                self.counters.insert(key, None);
                Ok(())
            }
            REMOVED => Err(DecodeError::Malformed),
            SIDE_DATA_MIN.. => self.side_data.entry(key).or_default().read(tag, body, clock),
            _ => PackedCounter::read(tag, body, clock).and_then(|packed| match self.extent {
                SlotDataExtent::All if packed.is_partial() => Err(DecodeError::Malformed),
                SlotDataExtent::All | SlotDataExtent::Some => {
                    self.counters.insert(key, Some(packed));
                    Ok(())
                }
            }),
        };
        decoded.or_else(|error| match error {
            DecodeError::Unknown => {
                self.side_data.entry(key).or_default().add_unknown(tag, body);
                Ok(())
            }
            DecodeError::Malformed => Err(error),
        })
    }
}

/// Splits off what [`put_record`] has written.
fn record(bytes: &[u8]) -> Option<(Key, u8, &[u8], &[u8])> {
    let (high, rest) = bytes.split_first_chunk()?;
    let (low, rest) = rest.split_first_chunk()?;
    let (tag, body, rest) = tagged(rest)?;
    Some((Key::from_halves(u64::from_le_bytes(*high), u64::from_le_bytes(*low)), tag, body, rest))
}

/// The number of counters in these records, removed ones included, at most: a map that grows would move them several
/// times.
fn counters_in(mut records: &[u8]) -> usize {
    let mut counters = 0;
    while let Some((_, tag, _, rest)) = record(records) {
        counters += usize::from(tag < SIDE_DATA_MIN || tag == REMOVED);
        records = rest;
    }
    counters
}

fn put_record(bytes: &mut Vec<u8>, key: Key, tag: u8, body: &[u8]) {
    bytes.extend(key.high().to_le_bytes());
    bytes.extend(key.low().to_le_bytes());
    put_tagged(bytes, tag, body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tollgate_counter::time::SECOND;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = SlotData::decode(&bytes, NOW);
            let with_version: Vec<u8> = [VERSION, 1, 0].into_iter().chain(bytes).collect();
            let _ = SlotData::decode(&with_version, NOW);
        }

        #[test]
        fn record_with_unknown_tag_is_written_unchanged(
            halves in any::<(u64, u64)>(), tag in 12..SIDE_DATA_MIN, body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = vec![VERSION, 1, 0];
            put_record(&mut bytes, Key::from_halves(halves.0, halves.1), tag, &body);
            let data = SlotData::decode(&bytes, NOW).unwrap();
            prop_assert_eq!(data.len(), 1);
            prop_assert_eq!(data.encode(NOW.plus(SECOND)), bytes);
        }
    }

    #[test]
    fn unsupported_version_is_distinguished_from_damage() {
        assert_eq!(SlotData::decode(&[], NOW), Err(DecodeError::Unknown));
        assert_eq!(SlotData::decode(&[VERSION + 1], NOW), Err(DecodeError::Unknown));
        for damaged in [&[VERSION][..], &[VERSION, 2], &[VERSION, 0], &[VERSION, 0, 2], &[VERSION, 0, 0, 0]] {
            assert_eq!(SlotData::decode(damaged, NOW), Err(DecodeError::Malformed));
        }
    }
}
