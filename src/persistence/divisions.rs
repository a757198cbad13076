//! How limits are divided over clients that decide by themselves, in a file beside the last snapshot of a process.
//!
//! The next process goes on with it. It removes the file at its start, because what it grants itself is not in there.

use std::{
    fs,
    hash::Hasher,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tollgate_cluster::PROTOCOL_VERSION;
use tollgate_counter::{files, time::Timestamp};
use tollgate_net::private_file;
use tollgate_store::{Slot, divider::SlotDivisions};
use tracing::{error, info};

/// The divisions of slots, encoded as in the messages between replicas.
#[derive(Serialize, Deserialize)]
struct StoredDivisions {
    version: u32,
    // The instant of the snapshot.
    taken_at: Timestamp,
    each: Vec<(Slot, SlotDivisions)>,
}

/// Writes the divisions of the counters in the snapshot at `path`, which was taken at this instant.
pub(super) fn write(path: &Path, taken_at: Timestamp, each: Vec<(Slot, SlotDivisions)>) -> io::Result<()> {
    let stored = StoredDivisions { version: PROTOCOL_VERSION, taken_at, each };
    let mut bytes = postcard::to_stdvec(&stored).map_err(io::Error::other)?;
    bytes.extend_from_slice(&checksum(&bytes));
    private_file::replace(&file_of(path), |mut file| {
        file.write_all(&bytes)?;
        file.sync_all()
    })
}

/// Removes the divisions beside the snapshot at `path`, and returns them if they are those of its counters, which were
/// stored at the instant `taken_at`.
pub(super) fn take(
    path: &Path,
    bytes_max: u64,
    taken_at: Option<Timestamp>,
) -> Option<Vec<(Slot, SlotDivisions)>> {
    let path = file_of(path);
    let read = files::read(&path, bytes_max);
    match fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(problem) => {
            error!(path = %path.display(), %problem, "cannot remove the divisions of limits: they are not used");
            return None;
        }
    }
    let divisions =
        read.ok().and_then(|bytes| decode(&bytes)).filter(|stored| Some(stored.taken_at) == taken_at);
    let used = divisions.is_some();
    info!(path = %path.display(), used, "read the divisions of limits");
    divisions.map(|stored| stored.each)
}

fn decode(bytes: &[u8]) -> Option<StoredDivisions> {
    let (bytes, sum) = bytes.split_last_chunk()?;
    let stored = (checksum(bytes) == *sum).then(|| postcard::from_bytes::<StoredDivisions>(bytes).ok())??;
    (stored.version == PROTOCOL_VERSION).then_some(stored)
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mut hash = SipHasher13::new();
    hash.write(bytes);
    hash.finish().to_le_bytes()
}

fn file_of(snapshot: &Path) -> PathBuf {
    private_file::with_suffix(snapshot, "divisions")
}

#[cfg(test)]
mod tests {
    use tollgate_counter::time::SECOND;

    use super::*;

    #[test]
    fn divisions_are_used_once_whole_and_with_their_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let taken_at = Timestamp::from_nanos(1_790_000_000 * SECOND);
        let written = |change: fn(&mut Vec<u8>)| {
            write(&path, taken_at, vec![(Slot(7), SlotDivisions::default())]).unwrap();
            let mut bytes = fs::read(file_of(&path)).unwrap();
            change(&mut bytes);
            fs::write(file_of(&path), bytes).unwrap();
        };
        let read = |at| take(&path, 1_000, at).map(|each| each.len());
        written(|_| {});
        assert_eq!([read(Some(taken_at)), read(Some(taken_at))], [Some(1), None]);
        for at in [None, Some(taken_at.plus(1))] {
            written(|_| {});
            assert_eq!(read(at), None);
        }
        let changes: [fn(&mut Vec<u8>); 3] = [|bytes| bytes[3] ^= 1, |bytes| bytes.truncate(9), Vec::clear];
        for change in changes {
            written(change);
            assert_eq!(read(Some(taken_at)), None);
        }
    }
}
