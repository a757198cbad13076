//! Contents in bytes, for another replica.
//!
//! A byte for the version, one that says whether it is all that the slot holds, and the lead that the clock of its
//! instants gave up, if one is in force; then records until the end: the key in 16 bytes, a tag for what is kept under it, a
//! length and so many bytes. A record with a tag that is not known is kept as it is and written again as it was.

use crate::{
    descriptor::Key,
    store::{
        Contents, Extras,
        cell::{Age, Cell, Read, put},
        contents::{Extent, Extra},
        memory::Lead,
    },
    time::Timestamp,
};

/// What contents begin with.
const VERSION: u8 = 2;
/// The tag of consumption that is still to be absorbed: a cell, and perhaps the one that it started from. Tags below
/// are those of cells.
const EXTRA: u8 = 128;
/// The tag of a key that has no counter any more: nothing.
const GONE: u8 = 129;
/// The most bytes that a length takes: seven bits in each.
const LENGTH_MAX: usize = usize::BITS.div_ceil(7) as usize;

/// Why bytes are no contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// They are of another version, or something else altogether.
    #[error("these are no contents of this version")]
    Foreign,
    /// They are cut off or damaged.
    #[error("these contents are damaged")]
    Malformed,
}

impl Contents {
    /// All of it in bytes, but for what is idle. Instants are told by their distance from `now`.
    pub fn encode(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.extent as u8];
        let lead = self.lead.map(|lead| (Age::of(lead.at, now), Age::of(lead.until, now)));
        bytes.extend(put(&lead));
        let mut gone: Vec<Key> = self.gone.iter().copied().collect();
        for (key, cell) in &self.counters {
            if now < cell.idle_at() {
                let (tag, cell) = cell.write(now);
                put_record(&mut bytes, *key, tag, &cell);
            } else if self.extent == Extent::Some {
                gone.push(*key);
            }
        }
        gone.into_iter().for_each(|key| put_record(&mut bytes, key, GONE, &[]));
        for (key, each) in &self.extras.by_key {
            for extra in each.iter().filter(|extra| now < extra.cell.idle_at()) {
                put_record(&mut bytes, *key, EXTRA, &extra.write(now));
            }
        }
        for ((key, tag), each) in &self.unknown {
            each.iter().for_each(|unknown| put_record(&mut bytes, *key, *tag, unknown));
        }
        bytes
    }

    /// What was encoded, with its instants at their distance from `now`. It counts in no memory limit yet: see
    /// [`Memory::within_limit`](crate::store::Memory::within_limit).
    pub fn decode(bytes: &[u8], now: Timestamp) -> Result<Self, Unreadable> {
        let rest = bytes.strip_prefix(&[VERSION]).ok_or(Unreadable::Foreign)?;
        let (extent, rest) = rest.split_first().ok_or(Unreadable::Malformed)?;
        let extents = [Extent::Some, Extent::All];
        let extent = *extents.get(usize::from(*extent)).ok_or(Unreadable::Malformed)?;
        let (lead, mut rest): (Option<(Age, Age)>, _) =
            postcard::take_from_bytes(rest).map_err(|_| Unreadable::Malformed)?;
        let lead = lead.map(|(at, until)| Lead { at: at.instant(now), until: until.instant(now) });
        let mut contents = Self { extent, lead, ..Self::default() };
        while !rest.is_empty() {
            let (high, after) = rest.split_first_chunk().ok_or(Unreadable::Malformed)?;
            let (low, after) = after.split_first_chunk().ok_or(Unreadable::Malformed)?;
            let key = Key::from_halves(u64::from_le_bytes(*high), u64::from_le_bytes(*low));
            let (tag, body, after) = tagged(after).ok_or(Unreadable::Malformed)?;
            contents.read(key, tag, body, now)?;
            rest = after;
        }
        Ok(contents)
    }

    fn read(&mut self, key: Key, tag: u8, body: &[u8], now: Timestamp) -> Result<(), Unreadable> {
        let record = match tag {
            EXTRA => Record::extra(body, now),
            GONE if body.is_empty() => Record::Gone,
            GONE => Record::Malformed,
            _ => Record::counter(tag, body, now),
        };
        match record {
            Record::Gone => drop(self.gone.insert(key)),
            Record::Counter(cell) => drop(self.counters.insert(key, cell)),
            Record::Extra(extra) => self.extras.push(key, extra),
            Record::Unknown => self.unknown.entry((key, tag)).or_default().push(body.into()),
            Record::Malformed => return Err(Unreadable::Malformed),
        }
        Ok(())
    }
}

/// What a record holds.
enum Record {
    Counter(Cell),
    Extra(Extra),
    Gone,
    Unknown,
    Malformed,
}

impl Record {
    fn counter(tag: u8, body: &[u8], now: Timestamp) -> Self {
        match Cell::read(tag, body, now) {
            Read::Cell(cell) => Self::Counter(cell),
            Read::Unknown => Self::Unknown,
            Read::Malformed => Self::Malformed,
        }
    }

    fn extra(body: &[u8], now: Timestamp) -> Self {
        let Some((tag, cell, rest)) = tagged(body) else { return Self::Malformed };
        let cell = match Cell::read(tag, cell, now) {
            Read::Cell(cell) => cell,
            Read::Unknown => return Self::Unknown,
            Read::Malformed => return Self::Malformed,
        };
        if rest.is_empty() {
            return Self::Extra(Extra { cell, base: None });
        }
        let Some((tag, base, [])) = tagged(rest) else { return Self::Malformed };
        match Cell::read(tag, base, now) {
            Read::Cell(base) => Self::Extra(Extra { cell, base: Some(base) }),
            Read::Unknown => Self::Unknown,
            Read::Malformed => Self::Malformed,
        }
    }
}

impl Extras {
    /// All of them in bytes, as [`Contents::encode`] has it.
    pub fn encode(&self, now: Timestamp) -> Vec<u8> {
        Contents { extras: self.clone(), ..Contents::default() }.encode(now)
    }

    /// What was encoded.
    pub fn decode(bytes: &[u8], now: Timestamp) -> Result<Self, Unreadable> {
        Contents::decode(bytes, now).map(|contents| contents.extras)
    }
}

impl Extra {
    fn write(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        for cell in [Some(&self.cell), self.base.as_ref()].into_iter().flatten() {
            let (tag, cell) = cell.write(now);
            put_tagged(&mut bytes, tag, &cell);
        }
        bytes
    }
}

fn put_record(bytes: &mut Vec<u8>, key: Key, tag: u8, body: &[u8]) {
    bytes.extend(key.high().to_le_bytes());
    bytes.extend(key.low().to_le_bytes());
    put_tagged(bytes, tag, body);
}

/// A tag, a length and as many bytes.
fn put_tagged(bytes: &mut Vec<u8>, tag: u8, body: &[u8]) {
    let mut length = [0; LENGTH_MAX];
    let length = postcard::to_slice(&body.len(), &mut length).expect("a length fits where the longest does");
    bytes.push(tag);
    bytes.extend_from_slice(length);
    bytes.extend_from_slice(body);
}

/// What [`put_tagged`] has put, and what follows it.
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
    use crate::time::SECOND;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Contents::decode(&bytes, NOW);
            let with_version: Vec<u8> = [VERSION, 1, 0].into_iter().chain(bytes).collect();
            let _ = Contents::decode(&with_version, NOW);
        }

        #[test]
        fn a_record_of_a_kind_that_is_not_known_is_written_as_it_was_read(
            halves in any::<(u64, u64)>(), tag in 10..EXTRA, body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = vec![VERSION, 1, 0];
            put_record(&mut bytes, Key::from_halves(halves.0, halves.1), tag, &body);
            let contents = Contents::decode(&bytes, NOW).unwrap();
            prop_assert_eq!(contents.len(), 1);
            prop_assert_eq!(contents.encode(NOW.plus(SECOND)), bytes);
        }
    }

    #[test]
    fn contents_of_another_version_are_told_from_damaged_ones() {
        assert_eq!(Contents::decode(&[], NOW), Err(Unreadable::Foreign));
        assert_eq!(Contents::decode(&[VERSION + 1], NOW), Err(Unreadable::Foreign));
        for damaged in [&[VERSION][..], &[VERSION, 2], &[VERSION, 0], &[VERSION, 0, 2], &[VERSION, 0, 0, 0]] {
            assert_eq!(Contents::decode(damaged, NOW), Err(Unreadable::Malformed));
        }
    }
}
