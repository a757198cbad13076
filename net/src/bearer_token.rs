//! Files with a bearer token, which are read at each use so that the token can be replaced.

use std::{io, path::Path};

use tollgate_counter::files;

/// The maximum length of a token, in bytes.
const BYTES_MAX: usize = 4096;

/// Reads the token in the file at `path`: 1 to 4096 visible ASCII characters on one line.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // One byte more than allowed, to detect tokens that are too long, and the end of the line.
    let bytes = files::read_prefix(path, BYTES_MAX as u64 + 3)?;
    let token = bytes.trim_ascii();
    if (1..=BYTES_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic) {
        return Ok(token.to_vec());
    }
    let what = format!("not a token of 1 to {BYTES_MAX} visible ASCII characters on one line");
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}
