//! The wire format of slot data.
//!
//! A version byte, a byte for the extent and the lead of the sender's clock, if any; then records until the end: the
//! key in 16 bytes, a tag, a length and the fields. Records with unknown tags are retained and written unchanged.

use tollgate_counter::{
    descriptor::Key,
    packed_counter::{Age, Decoded, NUMBER_BYTES_MAX, PackedCounter, number_bytes, put},
    time::Timestamp,
};

use crate::{
    PendingUsage, SlotData,
    holds::{DecodedHolds, Holds},
    lead::Lead,
    slot_data::{SlotDataExtent, pending_usage::CounterUsage},
};

/// The first byte.
const VERSION: u8 = 3;
/// The tag of pending usage: a packed counter, and optionally the one that it started from. Smaller tags are those of
/// packed counters.
const PENDING: u8 = 128;
/// The tag of a removed key, without fields.
const REMOVED: u8 = 129;
/// The tag of all holds of a key.
const HOLDS: u8 = 130;
/// The tag of the holds of a key that have changed since an earlier copy, or that accompany the changes of their
/// counter.
const CHANGED_HOLDS: u8 = 131;
/// The maximum encoded size of a length, with seven bits in each byte.
const LENGTH_MAX: usize = usize::BITS.div_ceil(7) as usize;
/// The encoded size of what comes before the records, at most: the version, the extent, and the lead.
const HEADER_BYTES_MAX: usize = 3 + 2 * NUMBER_BYTES_MAX;
/// The encoded size of most counters, in bytes.
const RECORD_BYTES_USUAL: usize = 32;
/// The encoded size of a record without its fields and their length.
const RECORD_BYTES: usize = 17;

/// Why slot data cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotDecodeError {
    /// The version is not supported.
    #[error("unsupported version of slot data")]
    UnsupportedVersion,
    /// The data is truncated or damaged.
    #[error("damaged slot data")]
    Malformed,
}

impl SlotData {
    /// Encodes everything that is not idle. Instants are relative to `now`.
    pub fn encode(&self, now: Timestamp) -> Vec<u8> {
        self.encode_with(std::iter::empty(), now)
    }

    /// Encodes everything that is not idle, with more counters. Instants are relative to `now`.
    pub(crate) fn encode_with<'c>(
        &'c self,
        more: impl ExactSizeIterator<Item = (Key, &'c PackedCounter)>,
        now: Timestamp,
    ) -> Vec<u8> {
        let counters = self.counters.len() + more.len();
        let mut bytes = Vec::with_capacity(HEADER_BYTES_MAX + counters * RECORD_BYTES_USUAL);
        bytes.extend([VERSION, self.extent as u8]);
        let lead = self.lead.map(|lead| (Age::new(lead.at, now), Age::new(lead.until, now)));
        bytes.extend(put(&lead));
        let mut removed: Vec<Key> = self.removed.iter().copied().collect();
        let mut fields = Vec::new();
        for (key, packed) in self.counters.iter().map(|(key, packed)| (*key, packed)).chain(more) {
            if now < packed.idle_at() {
                fields.clear();
                let tag = packed.write(now, &mut fields);
                put_record(&mut bytes, key, tag, &fields);
            } else if self.extent == SlotDataExtent::Some {
                removed.push(key);
            }
        }
        removed.into_iter().for_each(|key| put_record(&mut bytes, key, REMOVED, &[]));
        for (key, holds) in &self.holds {
            let tag = if holds.accompanies_changes() { CHANGED_HOLDS } else { HOLDS };
            put_record(&mut bytes, *key, tag, &holds.write(now));
        }
        for (key, each) in &self.pending.by_key {
            for usage in each.iter().filter(|usage| now < usage.packed.idle_at()) {
                put_record(&mut bytes, *key, PENDING, &usage.write(now));
            }
        }
        for ((key, tag), each) in &self.unknown {
            each.iter().for_each(|unknown| put_record(&mut bytes, *key, *tag, unknown));
        }
        bytes
    }

    /// The size of the encoded data at any instant, in bytes, at most.
    pub fn encoded_bytes_max(&self) -> usize {
        let record = |fields: usize| RECORD_BYTES + number_bytes(fields as u64) + fields;
        let counters = self.counters.values().map(|packed| record(packed.encoded_bytes_max()));
        let removed = self.removed.len() * record(0);
        let holds = self.holds.values().map(|holds| record(holds.encoded_bytes_max()));
        let pending = self.pending.by_key.values().flatten();
        let pending = pending.map(|usage| record(usage.encoded_bytes_max()));
        let unknown = self.unknown.values().flatten().map(|unknown| record(unknown.len()));
        HEADER_BYTES_MAX + removed + counters.chain(holds).chain(pending).chain(unknown).sum::<usize>()
    }

    /// Decodes slot data, with its instants relative to `now`. It is not counted in a memory limit yet: see
    /// [`Memory::within_limit`](crate::Memory::within_limit).
    pub fn decode(bytes: &[u8], now: Timestamp) -> Result<Self, SlotDecodeError> {
        let rest = bytes.strip_prefix(&[VERSION]).ok_or(SlotDecodeError::UnsupportedVersion)?;
        let (extent, rest) = rest.split_first().ok_or(SlotDecodeError::Malformed)?;
        let extents = [SlotDataExtent::Some, SlotDataExtent::All];
        let extent = *extents.get(usize::from(*extent)).ok_or(SlotDecodeError::Malformed)?;
        let (lead, mut rest): (Option<(Age, Age)>, _) =
            postcard::take_from_bytes(rest).map_err(|_| SlotDecodeError::Malformed)?;
        let lead = lead.map(|(at, until)| Lead { at: at.instant(now), until: until.instant(now) });
        let mut data = Self { extent, lead, ..Self::default() };
        data.counters.reserve(counters_in(rest));
        while !rest.is_empty() {
            let (key, tag, body, after) = record(rest).ok_or(SlotDecodeError::Malformed)?;
            data.read(key, tag, body, now)?;
            rest = after;
        }
        Ok(data)
    }

    fn read(&mut self, key: Key, tag: u8, body: &[u8], now: Timestamp) -> Result<(), SlotDecodeError> {
        let is_known = match tag {
            REMOVED if body.is_empty() => {
                self.removed.insert(key);
                true
            }
            REMOVED => return Err(SlotDecodeError::Malformed),
            HOLDS => self.insert_holds(key, Holds::read(body, now))?,
            CHANGED_HOLDS => self.insert_holds(key, Holds::read_changes(body, now))?,
            PENDING => usage(body, now)?.map(|usage| self.pending.push(key, usage)).is_some(),
            _ => {
                let packed = counter(tag, body, now)?;
                if self.extent == SlotDataExtent::All
                    && packed.as_ref().is_some_and(PackedCounter::is_partial)
                {
                    return Err(SlotDecodeError::Malformed);
                }
                packed.map(|packed| drop(self.counters.insert(key, packed))).is_some()
            }
        };
        if !is_known {
            self.unknown.entry((key, tag)).or_default().push(body.into());
        }
        Ok(())
    }
}

impl SlotData {
    /// Inserts decoded holds; false if this version does not know a part of them.
    fn insert_holds(&mut self, key: Key, holds: DecodedHolds) -> Result<bool, SlotDecodeError> {
        match holds {
            DecodedHolds::Holds(holds) => {
                self.holds.insert(key, Box::new(holds));
                Ok(true)
            }
            DecodedHolds::Unknown => Ok(false),
            DecodedHolds::Malformed => Err(SlotDecodeError::Malformed),
        }
    }
}

/// Splits off what [`put_record`] has written.
fn record(bytes: &[u8]) -> Option<(Key, u8, &[u8], &[u8])> {
    let (high, rest) = bytes.split_first_chunk()?;
    let (low, rest) = rest.split_first_chunk()?;
    let (tag, body, rest) = tagged(rest)?;
    Some((Key::from_halves(u64::from_le_bytes(*high), u64::from_le_bytes(*low)), tag, body, rest))
}

/// The number of counters in these records, at most: a map that grows would move them several times.
fn counters_in(mut records: &[u8]) -> usize {
    let mut counters = 0;
    while let Some((_, tag, _, rest)) = record(records) {
        counters += usize::from(tag < PENDING);
        records = rest;
    }
    counters
}

/// Decodes a packed counter; `None` if its tag is unknown.
fn counter(tag: u8, body: &[u8], now: Timestamp) -> Result<Option<PackedCounter>, SlotDecodeError> {
    match PackedCounter::read(tag, body, now) {
        Decoded::Counter(packed) => Ok(Some(packed)),
        Decoded::Unknown => Ok(None),
        Decoded::Malformed => Err(SlotDecodeError::Malformed),
    }
}

/// Decodes pending usage; `None` if a tag in it is unknown.
fn usage(body: &[u8], now: Timestamp) -> Result<Option<CounterUsage>, SlotDecodeError> {
    let (tag, packed, rest) = tagged(body).ok_or(SlotDecodeError::Malformed)?;
    let Some(packed) = counter(tag, packed, now)? else { return Ok(None) };
    if rest.is_empty() {
        return Ok(Some(CounterUsage { packed, base: None }));
    }
    let Some((tag, base, [])) = tagged(rest) else { return Err(SlotDecodeError::Malformed) };
    Ok(counter(tag, base, now)?.map(|base| CounterUsage { packed, base: Some(base) }))
}

impl PendingUsage {
    /// Encodes pending usage as [`SlotData::encode`] does.
    pub fn encode(&self, now: Timestamp) -> Vec<u8> {
        SlotData { pending: self.clone(), ..SlotData::default() }.encode(now)
    }

    /// Decodes pending usage.
    pub fn decode(bytes: &[u8], now: Timestamp) -> Result<Self, SlotDecodeError> {
        SlotData::decode(bytes, now).map(|data| data.pending)
    }
}

impl CounterUsage {
    fn encoded_bytes_max(&self) -> usize {
        let both = [Some(&self.packed), self.base.as_ref()].into_iter().flatten();
        let fields = both.map(PackedCounter::encoded_bytes_max);
        fields.map(|fields| 1 + number_bytes(fields as u64) + fields).sum()
    }

    fn write(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut fields = Vec::new();
        for packed in [Some(&self.packed), self.base.as_ref()].into_iter().flatten() {
            fields.clear();
            let tag = packed.write(now, &mut fields);
            put_tagged(&mut bytes, tag, &fields);
        }
        bytes
    }
}

fn put_record(bytes: &mut Vec<u8>, key: Key, tag: u8, body: &[u8]) {
    bytes.extend(key.high().to_le_bytes());
    bytes.extend(key.low().to_le_bytes());
    put_tagged(bytes, tag, body);
}

/// Writes a tag, a length and the fields.
fn put_tagged(bytes: &mut Vec<u8>, tag: u8, body: &[u8]) {
    let mut length = [0; LENGTH_MAX];
    let length =
        postcard::to_slice(&body.len(), &mut length).expect("the buffer has the maximum size of a length");
    bytes.push(tag);
    bytes.extend_from_slice(length);
    bytes.extend_from_slice(body);
}

/// Splits off what [`put_tagged`] has written.
fn tagged(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = postcard::take_from_bytes(rest).ok()?;
    let (body, rest) = rest.split_at_checked(length)?;
    Some((*tag, body, rest))
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
            halves in any::<(u64, u64)>(), tag in 12..PENDING, body in prop::collection::vec(any::<u8>(), 0..200),
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
        assert_eq!(SlotData::decode(&[], NOW), Err(SlotDecodeError::UnsupportedVersion));
        assert_eq!(SlotData::decode(&[VERSION + 1], NOW), Err(SlotDecodeError::UnsupportedVersion));
        for damaged in [&[VERSION][..], &[VERSION, 2], &[VERSION, 0], &[VERSION, 0, 2], &[VERSION, 0, 0, 0]] {
            assert_eq!(SlotData::decode(damaged, NOW), Err(SlotDecodeError::Malformed));
        }
    }
}
