//! Snapshots: counters on disk, so that they survive a restart.
//!
//! A snapshot consists of a header, the data of each slot with its version, in any order, and a checksum. Its instants
//! are those of the clock that wrote it. If the clock shows less when the snapshot is read, all instants are moved back
//! with it, so that no key is locked out.

use std::{
    fs::File,
    hash::Hasher,
    io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write},
    path::Path,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use siphasher::sip::SipHasher13;
use tollgate_counter::{descriptor::Secret, files, packed_counter::DecodeClock, time::Timestamp};
use tollgate_net::private_file;
use tollgate_rules::BackgroundPriority;
use tollgate_store::{EncodedSlot, Epoch, Memory, Slot, SlotCopy, StoredSlot};

use crate::persistence::parallel::map_in_any_order;

/// The first bytes: the format and its version.
const MAGIC: [u8; 16] = *b"tollgate snap 06";
/// The bytes of the checksum.
const SUM_BYTES: u64 = 8;
/// The size of one read or write: the kernel occupies the core while it copies.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a snapshot is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The format or version is not supported.
    #[error("unsupported format or version")]
    UnsupportedVersion,
    /// The file is damaged or truncated.
    #[error("damaged or truncated")]
    Damaged,
    /// The snapshot was abandoned, because a newer one is to be written.
    #[error("superseded by another one")]
    Superseded,
}

/// The header of a snapshot.
#[derive(Serialize, Deserialize)]
struct SnapshotHeader {
    taken_at: Timestamp,
    secret: [u8; 16],
    // The number of all slots; empty ones are left out.
    slots: u32,
}

/// The header of a slot's data. `None` follows the last one.
#[derive(Serialize, Deserialize)]
struct SlotHeader {
    slot: Slot,
    epoch: Epoch,
    seq: u64,
    // In bytes.
    length: u64,
}

/// What was read of a snapshot, without its slots.
pub(super) struct SnapshotSummary {
    /// The secret of the snapshot's keys.
    pub(super) secret: Secret,
    /// The number of counters.
    pub(super) counters: usize,
    /// The instant at which they were stored; `None` if they are of another number of slots.
    pub(super) taken_at: Option<Timestamp>,
}

/// Replaces the snapshot at `path` by all counters, unless `is_superseded` returns true meanwhile. Only its owner can
/// read it, because it contains the secret. `copy` copies a slot, whose lock is held meanwhile.
pub(super) fn write(
    memory: &Memory,
    secret: &Secret,
    copy: impl Fn(Slot) -> SlotCopy,
    (now, priority): (Timestamp, BackgroundPriority),
    is_superseded: impl Fn() -> bool,
    path: &Path,
) -> Result<(), SnapshotError> {
    private_file::replace(path, |file| {
        let file = BufWriter::with_capacity(CHUNK_BYTES, file);
        let mut output = ChecksumWriter { file, hash: SipHasher13::new() };
        output.write_all(&MAGIC)?;
        // A power of two up to 65,536, so it fits.
        let slots = memory.slots() as u32;
        output.put(&Some(SnapshotHeader { taken_at: now, secret: secret.to_bytes(), slots }))?;
        // Callers wait for the lock of a slot, so copies are made by this thread, which has their priority.
        let copies = memory.each_slot().map(copy);
        map_in_any_order(
            priority,
            copies,
            |copy| copy(now).encode(now),
            |encoded| {
                if is_superseded() {
                    return Err(SnapshotError::Superseded);
                }
                Ok(output.put_slot(encoded)?)
            },
        )?;
        output.put::<Option<SlotHeader>>(&None)?;
        let ChecksumWriter { mut file, hash } = output;
        file.write_all(&hash.finish().to_le_bytes())?;
        Ok(file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?)
    })
}

/// Reads a snapshot of at most `bytes_max` bytes at `now`, and passes its slots to `put`, on several threads; `None` if
/// there is no file. A snapshot of another number of slots than `slots` has only a secret. If there is an error, some
/// slots may have been passed to `put`.
pub(super) fn read(
    path: &Path,
    bytes_max: u64,
    slots: usize,
    now: Timestamp,
    put: impl Fn(StoredSlot) + Sync,
) -> Result<Option<SnapshotSummary>, SnapshotError> {
    let (mut file, length) = match files::open_up_to(path, bytes_max) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    verify(&mut file, length)?;
    file.rewind()?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, file.take(length - SUM_BYTES));
    input.read_exact(&mut [0; MAGIC.len()])?;
    let header = take::<SnapshotHeader>(&mut input)?.ok_or(SnapshotError::Damaged)?;
    let secret = Secret::from_bytes(header.secret);
    let mut counters = 0;
    if header.slots as usize != slots {
        return Ok(Some(SnapshotSummary { secret, counters, taken_at: None }));
    }
    let clock = DecodeClock { now: header.taken_at.min(now), behind: header.taken_at.nanos_since(now) };
    let decode = |section: Result<(SlotHeader, Vec<u8>), SnapshotError>| {
        let (SlotHeader { slot, epoch, seq, .. }, data) = section?;
        let stored = EncodedSlot { slot, epoch, seq, data }.decode(clock);
        let stored = stored.map_err(|_| SnapshotError::UnsupportedVersion)?;
        let counters = stored.data.len();
        put(stored);
        Ok::<_, SnapshotError>(counters)
    };
    let sections = std::iter::from_fn(|| section(&mut input, slots).transpose());
    map_in_any_order(BackgroundPriority::Normal, sections, decode, |read| {
        counters += read?;
        Ok::<_, SnapshotError>(())
    })?;
    Ok(Some(SnapshotSummary { secret, counters, taken_at: Some(header.taken_at) }))
}

/// Fails unless the file begins with the magic bytes of this version and ends with the right checksum.
fn verify(file: &mut File, length: u64) -> Result<(), SnapshotError> {
    let mut input = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut magic = [0; MAGIC.len()];
    let is_magic = (&mut input).take(MAGIC.len() as u64).read(&mut magic)? == MAGIC.len() && magic == MAGIC;
    if !is_magic {
        return Err(SnapshotError::UnsupportedVersion);
    }
    let rest = length.checked_sub(MAGIC.len() as u64 + SUM_BYTES).ok_or(SnapshotError::Damaged)?;
    let mut hashed = ChecksumWriter { file: io::sink(), hash: SipHasher13::new() };
    hashed.write_all(&MAGIC)?;
    io::copy(&mut (&mut input).take(rest), &mut hashed)?;
    let mut sum = [0; SUM_BYTES as usize];
    input.read_exact(&mut sum)?;
    if hashed.hash.finish() == u64::from_le_bytes(sum) { Ok(()) } else { Err(SnapshotError::Damaged) }
}

/// Reads the next section; `None` after the last one.
fn section(input: &mut impl Read, slots: usize) -> Result<Option<(SlotHeader, Vec<u8>)>, SnapshotError> {
    let Some(section) = take::<SlotHeader>(input)? else { return Ok(None) };
    if section.slot.index() >= slots || section.epoch > Epoch::MAX {
        return Err(SnapshotError::Damaged);
    }
    let mut bytes = Vec::new();
    if input.take(section.length).read_to_end(&mut bytes)? as u64 != section.length {
        return Err(SnapshotError::Damaged);
    }
    Ok(Some((section, bytes)))
}

/// Reads what [`ChecksumWriter::put`] has written.
fn take<T: DeserializeOwned>(input: &mut impl Read) -> Result<Option<T>, SnapshotError> {
    let mut length = [0];
    input.read_exact(&mut length)?;
    let mut bytes = [0; u8::MAX as usize];
    let bytes = &mut bytes[..usize::from(length[0])];
    input.read_exact(bytes)?;
    // The checksum is right, so the record is of another version.
    postcard::from_bytes(bytes).map_err(|_| SnapshotError::UnsupportedVersion)
}

/// A writer that computes a checksum.
struct ChecksumWriter<W> {
    file: W,
    hash: SipHasher13,
}

impl<W: Write> ChecksumWriter<W> {
    /// Writes a record of less than 256 bytes after its length.
    fn put<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        // Not directly into the file: postcard would report a full disk as a full buffer of its own.
        let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
        self.write_all(&[u8::try_from(bytes.len()).map_err(io::Error::other)?])?;
        self.write_all(&bytes)
    }

    fn put_slot(&mut self, encoded: Option<EncodedSlot>) -> io::Result<()> {
        let Some(EncodedSlot { slot, epoch, seq, data }) = encoded else { return Ok(()) };
        self.put(&Some(SlotHeader { slot, epoch, seq, length: data.len() as u64 }))?;
        self.write_all(&data)
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
    use std::{
        collections::BTreeMap,
        fs::{self, OpenOptions},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use tollgate_counter::{
        algorithm::{
            Limit, Operation,
            laws::{every_limit, with_penalty},
        },
        descriptor::KeyText,
        time::SECOND,
    };
    use tollgate_store::{Check, LimitOrigin, OnFull, OnRefusal, SlotData};

    use super::*;

    #[test]
    fn slot_or_epoch_out_of_range_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let read_back = |slot, epoch| {
            let mut output = ChecksumWriter { file: Vec::new(), hash: SipHasher13::new() };
            output.write_all(&MAGIC).unwrap();
            output
                .put(&Some(SnapshotHeader { taken_at: Timestamp::EPOCH, secret: [0; 16], slots: 16 }))
                .unwrap();
            let data = SlotData::default().encode(Timestamp::EPOCH);
            output.put(&Some(SlotHeader { slot, epoch, seq: 0, length: data.len() as u64 })).unwrap();
            output.write_all(&data).unwrap();
            output.put::<Option<SlotHeader>>(&None).unwrap();
            fs::write(&path, [output.file, output.hash.finish().to_le_bytes().to_vec()].concat()).unwrap();
            let read_slots = AtomicUsize::new(0);
            let put = |_: StoredSlot| {
                read_slots.fetch_add(1, Ordering::Relaxed);
            };
            read(&path, 1_000, 16, Timestamp::EPOCH, put).map(|_| read_slots.into_inner())
        };
        assert_eq!(read_back(Slot(15), Epoch::MAX).unwrap(), 1);
        for (slot, epoch) in [(Slot(16), Epoch(1)), (Slot(1), Epoch(Epoch::MAX.0 + 1))] {
            assert!(matches!(read_back(slot, epoch), Err(SnapshotError::Damaged)), "{slot:?} {epoch:?}");
        }
    }

    /// The data of each slot in a snapshot of counters that were used since `now`.
    fn slots_of_snapshot(now: Timestamp) -> BTreeMap<usize, Vec<u8>> {
        const DAY: u64 = 24 * 3_600 * SECOND;
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::from_bytes([5; 16]);
        let memory = Memory::new(1 << 24, OnFull::Deny);
        let path = folder.path().join("counters");
        // Windows, and parts of windows, begin at the same instants under any clock.
        let is_window = |limit: &Limit| limit.window().is_some() || matches!(limit, Limit::SlidingWindow(_));
        let plain = every_limit(10, DAY).into_iter().filter(|limit| !is_window(limit));
        for limit in plain.flat_map(|limit| [limit.clone(), with_penalty(limit, DAY)]) {
            let key = KeyText::new(&format!("{limit:?}")).key(&[], &secret);
            for hits in [4, 11, 11] {
                let operation = Operation::Charge(hits);
                let check = Check {
                    key,
                    limit: &limit,
                    operation,
                    on_refusal: OnRefusal::TakeBack,
                    origin: LimitOrigin::Rule,
                };
                memory.apply_single(&check, now.plus(hits)).unwrap();
            }
        }
        let written_at = (now.plus(SECOND), BackgroundPriority::Normal);
        write(&memory, &secret, |slot| memory.copy(slot, Epoch(1)), written_at, || false, &path).unwrap();
        let mut input = File::open(&path).unwrap();
        input.seek(io::SeekFrom::Start(MAGIC.len() as u64)).unwrap();
        assert_eq!(take::<SnapshotHeader>(&mut input).unwrap().unwrap().taken_at, written_at.0);
        let sections = std::iter::from_fn(|| section(&mut input, memory.slots()).unwrap());
        sections.map(|(section, bytes)| (section.slot.index(), bytes)).collect()
    }

    #[test]
    fn slots_in_a_snapshot_have_ages_and_no_instants() {
        const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
        let slots = slots_of_snapshot(NOW);
        assert!(slots.len() > 5, "{}", slots.len());
        assert_eq!(slots, slots_of_snapshot(NOW.plus(7 * 24 * 3_600 * SECOND)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_is_reported_as_such() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut output = ChecksumWriter { file: full, hash: SipHasher13::new() };
        let header = SnapshotHeader { taken_at: Timestamp::EPOCH, secret: [0; 16], slots: 1 };
        assert_eq!(output.put(&Some(header)).unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
