//! Counters on disk, so that they outlive their process.
//!
//! A snapshot is a header, the contents of each slot with their version, and a checksum over all. Its instants are
//! those of the clock that wrote it; one that is read on a machine whose clock shows less is moved back with it, so
//! that nobody is locked out.

use std::{
    fs::{self, File, OpenOptions},
    hash::Hasher,
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::{
    descriptor::Secret,
    store::{Contents, Memory, Slot},
    time::Timestamp,
};

/// What a snapshot begins with: its format and the version of it.
const MAGIC: [u8; 16] = *b"tollgate snap 04";

/// Why a snapshot is not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is of another format or version.
    #[error("this is no snapshot of this version")]
    Foreign,
    /// It is damaged, or was not written to its end.
    #[error("it is damaged or torn")]
    Torn,
}

/// What comes before the slots.
#[derive(Serialize, Deserialize)]
struct Header {
    taken_at: Timestamp,
    secret: [u8; 16],
    // How many there are; those that hold nothing are left out.
    slots: u32,
}

/// What comes before the contents of a slot. The last is followed by none.
#[derive(Serialize, Deserialize)]
struct Section {
    slot: Slot,
    epoch: u64,
    seq: u64,
    // In bytes.
    length: u64,
}

/// What a slot held when a snapshot was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The slot.
    pub slot: Slot,
    /// How often it had changed hands; 0 where it was not shared.
    pub epoch: u64,
    /// How often it had changed since.
    pub seq: u64,
    /// Its contents.
    pub contents: Contents,
}

/// What a snapshot holds: the secret that its keys were hashed with, and of how many slots which held what.
pub(super) struct Snapshot {
    pub(super) secret: Secret,
    pub(super) slots: usize,
    pub(super) stored: Vec<Stored>,
}

/// Writes all counters to `path`: beside it first, then in its place, so that there is always a whole one. `epoch`
/// says how often a slot has changed hands.
pub(super) fn write(
    memory: &Memory,
    secret: &Secret,
    epoch: impl Fn(Slot) -> u64,
    now: Timestamp,
    path: &Path,
) -> Result<(), SnapshotError> {
    let beside = with_suffix(path, "new");
    // The secret is in it, so it is the owner's alone.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    let mut sealed = Sealing { file: BufWriter::new(file), hash: SipHasher13::new() };
    sealed.write_all(&MAGIC)?;
    // A power of two up to 65,536, so it fits.
    let slots = memory.slots() as u32;
    sealed.put(&Some(Header { taken_at: now, secret: secret.to_bytes(), slots }))?;
    for slot in memory.each_slot() {
        // Asked first: what changes hands meanwhile is at most taken for older than it is.
        let epoch = epoch(slot);
        let Some(copy) = memory.snapshot(slot, now) else { continue };
        let bytes = copy.contents.encode(now);
        sealed.put(&Some(Section { slot, epoch, seq: copy.seq, length: bytes.len() as u64 }))?;
        sealed.write_all(&bytes)?;
    }
    sealed.put::<Option<Section>>(&None)?;
    let Sealing { mut file, hash } = sealed;
    file.write_all(&hash.finish().to_le_bytes())?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(fs::rename(&beside, path)?)
}

/// Reads a snapshot as of `now`; `None` where there is no file.
pub(super) fn read(path: &Path, now: Timestamp) -> Result<Option<Snapshot>, SnapshotError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => BufReader::new(file).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::Foreign)?;
    let (rest, sum) = rest.split_last_chunk::<8>().ok_or(SnapshotError::Torn)?;
    let mut hash = SipHasher13::new();
    hash.write(&MAGIC);
    hash.write(rest);
    if hash.finish() != u64::from_le_bytes(*sum) {
        return Err(SnapshotError::Torn);
    }
    let (header, mut rest) = take::<Header>(rest)?;
    let header = header.ok_or(SnapshotError::Torn)?;
    let ahead = header.taken_at.nanos_since(now);
    let mut stored = Vec::new();
    while let (Some(Section { slot, epoch, seq, length }), after) = take::<Section>(rest)? {
        let length = usize::try_from(length).map_err(|_| SnapshotError::Torn)?;
        let (bytes, after) = after.split_at_checked(length).ok_or(SnapshotError::Torn)?;
        let contents = Contents::decode(bytes, header.taken_at).map_err(|_| SnapshotError::Foreign)?;
        stored.push(Stored { slot, epoch, seq, contents: contents.earlier(ahead) });
        rest = after;
    }
    let (secret, slots) = (Secret::from_bytes(header.secret), header.slots as usize);
    Ok(Some(Snapshot { secret, slots, stored }))
}

/// Moves a snapshot that cannot be used out of the way, for whoever wants to look at it; where it is now.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = with_suffix(path, "bad");
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn take<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<(Option<T>, &'b [u8]), SnapshotError> {
    // The sum was right, so only another version's records are unreadable.
    postcard::take_from_bytes(bytes).map_err(|_| SnapshotError::Foreign)
}

/// Writes, and hashes what it writes.
struct Sealing {
    file: BufWriter<File>,
    hash: SipHasher13,
}

impl Sealing {
    fn put<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        postcard::to_io(value, self).map(drop).map_err(io::Error::other)
    }
}

impl Write for Sealing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.write(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
