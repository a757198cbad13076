//! Snapshots: counters on disk, so that they survive a restart.
//!
//! A snapshot consists of a header, the data of each slot with its version, and a checksum. Its instants are those of
//! the clock that wrote it. If the clock shows less when the snapshot is read, all instants are moved back with it, so
//! that no key is locked out.

use std::{
    fs::File,
    hash::Hasher,
    io::{self, BufWriter, ErrorKind, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tollgate_limiter::{
    descriptor::Secret,
    files,
    store::{Epoch, Memory, Slot, SlotData, SlotSource, StoredSlot},
    time::Timestamp,
};

use crate::private_file;

/// The first bytes: the format and its version.
const MAGIC: [u8; 16] = *b"tollgate snap 05";

/// Why a snapshot is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The format or version is not supported.
    #[error("unsupported format or version")]
    UnsupportedVersion,
    /// It is damaged or truncated.
    #[error("damaged or truncated")]
    Damaged,
}

/// The header of a snapshot.
#[derive(Serialize, Deserialize)]
struct Header {
    taken_at: Timestamp,
    secret: [u8; 16],
    // The number of all slots; empty ones are left out.
    slots: u32,
}

/// The header of a slot's data. `None` follows the last one.
#[derive(Serialize, Deserialize)]
struct Section {
    slot: Slot,
    epoch: Epoch,
    seq: u64,
    // In bytes.
    length: u64,
}

/// A snapshot: the secret of its keys, the number of slots and the stored slots.
pub(super) struct Snapshot {
    pub(super) secret: Secret,
    pub(super) slots: usize,
    pub(super) stored: Vec<StoredSlot>,
}

/// Replaces the snapshot at `path` by all counters. Only its owner can read it, because it contains the secret. `source`
/// returns where the counters of a slot are.
pub(super) fn write(
    memory: &Memory,
    secret: &Secret,
    source: impl Fn(Slot) -> SlotSource,
    now: Timestamp,
    path: &Path,
) -> Result<(), SnapshotError> {
    private_file::replace(path, |file| write_to(file, memory, secret, source, now))
}

fn write_to(
    file: File,
    memory: &Memory,
    secret: &Secret,
    source: impl Fn(Slot) -> SlotSource,
    now: Timestamp,
) -> Result<(), SnapshotError> {
    let mut output = ChecksumWriter { file: BufWriter::new(file), hash: SipHasher13::new() };
    output.write_all(&MAGIC)?;
    // A power of two up to 65,536, so it fits.
    let slots = memory.slots() as u32;
    output.put(&Some(Header { taken_at: now, secret: secret.to_bytes(), slots }))?;
    for slot in memory.each_slot() {
        // The epoch first: if the owner changes meanwhile, the copy is only taken for older than it is.
        let Some(StoredSlot { epoch, seq, data, .. }) = memory.stored(slot, source(slot), now) else {
            continue;
        };
        let bytes = data.encode(now);
        output.put(&Some(Section { slot, epoch, seq, length: bytes.len() as u64 }))?;
        output.write_all(&bytes)?;
    }
    output.put::<Option<Section>>(&None)?;
    let ChecksumWriter { mut file, hash } = output;
    file.write_all(&hash.finish().to_le_bytes())?;
    Ok(file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?)
}

/// Reads a snapshot of at most `bytes_max` bytes at `now`; `None` if there is no file.
pub(super) fn read(path: &Path, bytes_max: u64, now: Timestamp) -> Result<Option<Snapshot>, SnapshotError> {
    let bytes = match files::read(path, bytes_max) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::UnsupportedVersion)?;
    let (rest, sum) = rest.split_last_chunk::<8>().ok_or(SnapshotError::Damaged)?;
    let mut hash = SipHasher13::new();
    hash.write(&MAGIC);
    hash.write(rest);
    if hash.finish() != u64::from_le_bytes(*sum) {
        return Err(SnapshotError::Damaged);
    }
    let (header, mut rest) = take::<Header>(rest)?;
    let header = header.ok_or(SnapshotError::Damaged)?;
    let ahead = header.taken_at.nanos_since(now);
    let mut stored = Vec::new();
    while let (Some(Section { slot, epoch, seq, length }), after) = take::<Section>(rest)? {
        if slot.index() >= header.slots as usize || epoch > Epoch::MAX {
            return Err(SnapshotError::Damaged);
        }
        let length = usize::try_from(length).map_err(|_| SnapshotError::Damaged)?;
        let (bytes, after) = after.split_at_checked(length).ok_or(SnapshotError::Damaged)?;
        let data = SlotData::decode(bytes, header.taken_at).map_err(|_| SnapshotError::UnsupportedVersion)?;
        stored.push(StoredSlot { slot, epoch, seq, data: data.shifted_back(ahead) });
        rest = after;
    }
    let (secret, slots) = (Secret::from_bytes(header.secret), header.slots as usize);
    Ok(Some(Snapshot { secret, slots, stored }))
}

fn take<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<(Option<T>, &'b [u8]), SnapshotError> {
    // The checksum is right, so the record is of another version.
    postcard::take_from_bytes(bytes).map_err(|_| SnapshotError::UnsupportedVersion)
}

/// A writer that computes a checksum.
struct ChecksumWriter<W> {
    file: W,
    hash: SipHasher13,
}

impl<W: Write> ChecksumWriter<W> {
    fn put<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        // Not directly into the file: postcard would report a full disk as a full buffer of its own.
        let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
        self.write_all(&bytes)
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.write(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn slot_or_epoch_out_of_range_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let read_back = |slot, epoch| {
            let mut output = ChecksumWriter { file: Vec::new(), hash: SipHasher13::new() };
            output.write_all(&MAGIC).unwrap();
            output.put(&Some(Header { taken_at: Timestamp::EPOCH, secret: [0; 16], slots: 16 })).unwrap();
            let data = SlotData::default().encode(Timestamp::EPOCH);
            output.put(&Some(Section { slot, epoch, seq: 0, length: data.len() as u64 })).unwrap();
            output.write_all(&data).unwrap();
            output.put::<Option<Section>>(&None).unwrap();
            fs::write(&path, [output.file, output.hash.finish().to_le_bytes().to_vec()].concat()).unwrap();
            read(&path, 1_000, Timestamp::EPOCH).map(|snapshot| snapshot.unwrap().stored.len())
        };
        assert_eq!(read_back(Slot(15), Epoch::MAX).unwrap(), 1);
        for (slot, epoch) in [(Slot(16), Epoch(1)), (Slot(1), Epoch(Epoch::MAX.0 + 1))] {
            assert!(matches!(read_back(slot, epoch), Err(SnapshotError::Damaged)), "{slot:?} {epoch:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_is_reported_as_such() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut output = ChecksumWriter { file: full, hash: SipHasher13::new() };
        let header = Header { taken_at: Timestamp::EPOCH, secret: [0; 16], slots: 1 };
        assert_eq!(output.put(&Some(header)).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
