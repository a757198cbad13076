//! Opens recorded traffic: a file or the standard input.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read},
    path::Path,
    sync::Arc,
};

use crate::simulate::progress::Progress;

/// The size of reads.
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum size of a standard input that is read several times, as it comes: 256 MiB.
const RETAINED_BYTES_MAX: usize = 256 << 20;
/// The first bytes of compressed contents, and what decompresses them.
const COMPRESSED: [(&[u8], &str); 2] = [(&[0x1f, 0x8b], "zcat"), (&[0x28, 0xb5, 0x2f, 0xfd], "zstdcat")];

/// The text of a file.
pub(in crate::simulate) fn open(
    path: &Path,
    progress: &Arc<Progress>,
) -> Result<Box<dyn BufRead + Send>, String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(named)?;
    let about = file.metadata().map_err(named)?;
    if about.is_dir() {
        return Err(format!(
            "{}: this is a directory; name a file, or - for the standard input",
            path.display()
        ));
    }
    progress.begin(about.len());
    text(CountingReader { bytes: file, progress: progress.clone() }).map_err(named)
}

/// The text of the standard input, as that of a file: that which is `retained`, or what comes.
pub(in crate::simulate) fn open_standard_input(
    retained: Option<&Arc<[u8]>>,
    progress: &Arc<Progress>,
) -> Result<Box<dyn BufRead + Send>, String> {
    let progress = progress.clone();
    let text = match retained {
        None => text(CountingReader { bytes: io::stdin(), progress }),
        Some(retained) => {
            progress.begin(retained.len() as u64);
            text(CountingReader { bytes: Cursor::new(retained.clone()), progress })
        }
    };
    text.map_err(|error| format!("standard input: {error}"))
}

/// All bytes of an input that can be read once, or those before the stop.
pub(in crate::simulate) fn retain(mut bytes: impl Read, progress: &Progress) -> Result<Arc<[u8]>, String> {
    let mut all = Vec::new();
    let mut part = vec![0; BUFFER_BYTES];
    while !progress.is_stopped() {
        let read = match bytes.read(&mut part) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        if all.len() + read > RETAINED_BYTES_MAX {
            let why = "--suggest reads it several times, and keeps at most 256 MiB of it: name a file";
            return Err(why.to_owned());
        }
        all.extend_from_slice(&part[..read]);
        progress.add_bytes(read as u64);
    }
    Ok(all.into())
}

fn text(bytes: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
    let start = bytes.fill_buf()?;
    match COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic)) {
        Some((_, program)) => Err(io::Error::other(format!(
            "it is compressed; decompress it in a pipe: {program} FILE | tollgate simulate RULES -"
        ))),
        None => Ok(Box::new(bytes)),
    }
}

/// Counts the bytes that are read.
struct CountingReader<R> {
    bytes: R,
    progress: Arc<Progress>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(into)?;
        self.progress.add_bytes(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_beyond_its_bound_is_not_retained() {
        let progress = Progress::default();
        let retained = |length| retain(io::repeat(b'x').take(length), &progress).map(|all| all.len());
        assert_eq!(retained(RETAINED_BYTES_MAX as u64), Ok(RETAINED_BYTES_MAX));
        assert!(retained(RETAINED_BYTES_MAX as u64 + 1).is_err());
    }

    #[test]
    fn input_is_retained_up_to_the_stop() {
        let progress = Progress::default();
        assert_eq!(&*retain(&b"one"[..], &progress).unwrap(), b"one");
        progress.stop();
        assert_eq!(&*retain(io::repeat(b'x'), &progress).unwrap(), b"");
    }
}
