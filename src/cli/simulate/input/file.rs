//! Opens recorded traffic: a file or the standard input, plain or compressed.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::Arc,
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::cli::simulate::progress::Progress;

/// The size of reads.
const BUFFER_BYTES: usize = 256 << 10;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The text of a file; `-` is the standard input. Content that is compressed with gzip or zstd is decompressed.
pub(in crate::cli::simulate) fn open(
    path: &Path,
    progress: &Arc<Progress>,
) -> Result<Box<dyn BufRead + Send>, String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    if path == Path::new("-") {
        return text(Counted { bytes: io::stdin(), progress: progress.clone() }).map_err(named);
    }
    let file = File::open(path).map_err(named)?;
    let about = file.metadata().map_err(named)?;
    if about.is_dir() {
        return Err(format!(
            "{}: this is a directory; name a file, or - for the standard input",
            path.display()
        ));
    }
    progress.begin(about.len());
    text(Counted { bytes: file, progress: progress.clone() }).map_err(named)
}

fn text(bytes: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
    let start = bytes.fill_buf()?;
    let (is_gzip, is_zstd) = (start.starts_with(GZIP), start.starts_with(ZSTD));
    Ok(if is_gzip {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(bytes)))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, Frames { bytes: Some(bytes), frame: None }))
    } else {
        Box::new(bytes)
    })
}

/// All frames of a text that is compressed with zstd.
struct Frames<R: BufRead> {
    // `None` while a frame is read.
    bytes: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(into)?;
                if read > 0 || into.is_empty() {
                    return Ok(read);
                }
            }
            if let Some(ended) = self.frame.take() {
                self.bytes = Some(ended.into_inner());
            }
            let Some(mut bytes) = self.bytes.take() else { return Ok(0) };
            if bytes.fill_buf()?.is_empty() {
                self.bytes = Some(bytes);
                return Ok(0);
            }
            self.frame = Some(StreamingDecoder::new(bytes).map_err(io::Error::other)?);
        }
    }
}

/// Counts the bytes that are read, before they are decompressed.
struct Counted<R> {
    bytes: R,
    progress: Arc<Progress>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(into)?;
        self.progress.add_bytes(read as u64);
        Ok(read)
    }
}
