//! Opens recorded traffic: a file or the standard input.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
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

/// The text of the standard input, as that of a file. With `retained` it starts with what earlier calls have read.
pub(in crate::simulate) fn open_standard_input(
    retained: Option<&RetainedInput>,
    progress: &Arc<Progress>,
) -> Result<Box<dyn BufRead + Send>, String> {
    let progress = progress.clone();
    let text = match retained {
        None => text(CountingReader { bytes: io::stdin(), progress }),
        Some(retained) => {
            progress.begin(retained.len());
            text(CountingReader { bytes: retained.read_again(io::stdin()), progress })
        }
    };
    text.map_err(|error| format!("standard input: {error}"))
}

/// What was read of an input that can be read once.
#[derive(Clone, Debug, Default)]
pub(in crate::simulate) struct RetainedInput(Arc<Mutex<RetainedBytes>>);

#[derive(Debug, Default)]
struct RetainedBytes {
    bytes: Vec<u8>,
    // Whether these are all: a terminal could be read further.
    has_ended: bool,
}

/// Reads what is retained, and then keeps what it reads.
struct RetainedReader<R> {
    retained: RetainedInput,
    position: usize,
    bytes: R,
}

impl RetainedInput {
    fn with<T>(&self, act: impl FnOnce(&mut RetainedBytes) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn len(&self) -> u64 {
        self.with(|retained| retained.bytes.len() as u64)
    }

    fn read_again<R: Read>(&self, bytes: R) -> RetainedReader<R> {
        RetainedReader { retained: self.clone(), position: 0, bytes }
    }
}

impl<R: Read> Read for RetainedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (mut read, has_ended) = self.retained.with(|retained| {
            let mut rest = retained.bytes.get(self.position..).unwrap_or_default();
            rest.read(into).map(|read| (read, retained.has_ended))
        })?;
        if read == 0 && !has_ended && !into.is_empty() {
            read = self.bytes.read(into)?;
            self.retained.with(|retained| {
                if retained.bytes.len() + read > RETAINED_BYTES_MAX {
                    return Err(io::Error::other(
                        "--suggest reads it several times, and keeps at most 256 MiB of it: name a file",
                    ));
                }
                retained.bytes.extend_from_slice(&into[..read]);
                retained.has_ended = read == 0;
                Ok(())
            })?;
        }
        self.position += read;
        Ok(read)
    }
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
    fn kept_input_is_read_again_and_once_from_its_source() {
        let retained = RetainedInput::default();
        let read = |source: &[u8], length: u64| {
            let mut text = Vec::new();
            retained.read_again(source).take(length).read_to_end(&mut text).unwrap();
            text
        };
        assert_eq!(read(b"one", 3), b"one");
        assert_eq!(read(b"two", 9), b"onetwo");
        assert_eq!(read(b"further", 99), b"onetwo");
        assert_eq!(retained.len(), 6);
    }

    #[test]
    fn kept_input_beyond_its_bound_is_an_error() {
        let mut reader = RetainedInput::default().read_again(io::repeat(b'x'));
        let mut part = vec![0; BUFFER_BYTES];
        let all =
            std::iter::repeat_with(|| reader.read(&mut part)).take(RETAINED_BYTES_MAX / BUFFER_BYTES + 1);
        let read: Vec<_> = all.take_while(Result::is_ok).collect();
        assert_eq!(read.len(), RETAINED_BYTES_MAX / BUFFER_BYTES);
    }
}
