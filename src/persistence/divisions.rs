//! How limits were divided when the process ended, in a file beside its last snapshot.
//!
//! Without it nothing is known about what clients were granted, and all of it counts as used. The next process takes the
//! file once and removes it, because what it grants itself is not in there. The file belongs to one snapshot, whose
//! checksum it repeats.

use std::{
    fs::{self, File},
    hash::Hasher,
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use siphasher::sip::SipHasher13;
use tollgate_limiter::{divider::SlotDivisions, files, store::Slot};

use crate::private_file;

/// The first bytes: the format and its version.
const MAGIC: [u8; 16] = *b"tollgate quota 1";
/// The bytes of a checksum.
const SUM_BYTES: usize = 8;

/// The divisions of all slots that have some.
pub(super) type Divisions = Vec<(Slot, SlotDivisions)>;

/// Writes `divisions` beside the snapshot at `path`.
pub(super) fn write(path: &Path, divisions: &Divisions) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&sum_of_snapshot(path)?);
    bytes.extend(postcard::to_stdvec(divisions).map_err(io::Error::other)?);
    bytes.extend(sum(&bytes));
    private_file::replace(&beside(path), |mut file| {
        file.write_all(&bytes)?;
        file.sync_all()
    })
}

/// Takes what was written beside the snapshot at `path`, if that is still the same.
pub(super) fn take(path: &Path, bytes_max: u64) -> io::Result<Option<Divisions>> {
    let file = beside(path);
    let bytes = match files::read(&file, bytes_max) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return fs::remove_file(&file).and(Err(error)),
    };
    fs::remove_file(&file)?;
    let Some((rest, end)) = bytes.split_last_chunk::<SUM_BYTES>() else { return Ok(None) };
    let Some(rest) = rest.strip_prefix(&MAGIC).filter(|_| sum(rest) == *end) else { return Ok(None) };
    let Some((of, divisions)) = rest.split_first_chunk::<SUM_BYTES>() else { return Ok(None) };
    if *of != sum_of_snapshot(path)? {
        return Ok(None);
    }
    // Those of another version are not understood.
    Ok(postcard::from_bytes(divisions).ok())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".quotas");
    name.into()
}

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let mut hash = SipHasher13::new();
    hash.write(bytes);
    hash.finish().to_le_bytes()
}

/// The checksum at the end of a snapshot.
fn sum_of_snapshot(path: &Path) -> io::Result<[u8; SUM_BYTES]> {
    let (mut file, mut sum) = (File::open(path)?, [0; SUM_BYTES]);
    file.seek(SeekFrom::End(-(SUM_BYTES as i64)))?;
    file.read_exact(&mut sum)?;
    Ok(sum)
}
