//! The last good rules of a URL on disk, for a start without the server.
//!
//! The file is a rule file behind a comment line with the address as a hash, the `ETag`, the time and a checksum.

use std::{
    io::{self, ErrorKind, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use tollgate_counter::{files, time::Timestamp};
use tollgate_net::private_file;
use tollgate_rules::hash_of;

use crate::url::address::Address;

/// The begin of the first line; the version is that of the format.
const BEGIN: &str = "# tollgate copy 1 ";
/// The maximum size of a copy: that of a rule file, and of the first line.
const BYTES_MAX: u64 = (16 << 20) + (16 << 10);

/// A document that was active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy<B> {
    pub(super) etag: Option<String>,
    /// When the server had the document.
    pub(super) kept_at: Timestamp,
    pub(super) bytes: B,
}

/// Why a copy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("damaged, truncated or of another version")]
    Damaged,
    #[error("it is of another URL")]
    OtherAddress,
}

/// What precedes the document.
#[derive(Serialize, Deserialize)]
struct CopyHeader {
    address: String,
    etag: Option<String>,
    kept_at: u64,
    checksum: String,
}

/// Reads the copy at `path` of the rules at `address`; `None` if there is no file.
pub(super) fn read(path: &Path, address: &Address) -> Result<Option<Copy<Vec<u8>>>, CopyError> {
    match files::read(path, BYTES_MAX) {
        Ok(bytes) => decode(&bytes, address).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the copy at `path`.
pub(super) fn write(path: &Path, address: &Address, copy: &Copy<impl AsRef<[u8]>>) -> io::Result<()> {
    private_file::replace(path, |mut file| {
        file.write_all(&encode(copy, address)?)?;
        file.sync_all()
    })
}

pub(super) fn encode(copy: &Copy<impl AsRef<[u8]>>, address: &Address) -> io::Result<Vec<u8>> {
    let header = CopyHeader {
        address: hash([address.secret_text().as_bytes()]),
        etag: copy.etag.clone(),
        kept_at: copy.kept_at.as_nanos(),
        checksum: checksum(copy),
    };
    let mut bytes = format!("{BEGIN}{}\n", serde_json::to_string(&header)?).into_bytes();
    bytes.extend_from_slice(copy.bytes.as_ref());
    Ok(bytes)
}

pub(super) fn decode(bytes: &[u8], address: &Address) -> Result<Copy<Vec<u8>>, CopyError> {
    let rest = bytes.strip_prefix(BEGIN.as_bytes()).ok_or(CopyError::Damaged)?;
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or(CopyError::Damaged)?;
    let line = &rest[..end];
    let document = &rest[end + 1..];
    let header: CopyHeader = serde_json::from_slice(line).map_err(|_| CopyError::Damaged)?;
    let kept_at = Timestamp::from_nanos(header.kept_at);
    let copy = Copy { etag: header.etag, kept_at, bytes: document.to_vec() };
    if checksum(&copy) != header.checksum {
        return Err(CopyError::Damaged);
    }
    let is_of_address = header.address == hash([address.secret_text().as_bytes()]);
    if is_of_address { Ok(copy) } else { Err(CopyError::OtherAddress) }
}

fn checksum(copy: &Copy<impl AsRef<[u8]>>) -> String {
    let kept_at = copy.kept_at.as_nanos().to_le_bytes();
    hash([&kept_at[..], copy.etag.as_deref().unwrap_or_default().as_bytes(), copy.bytes.as_ref()])
}

/// The hash of these parts in hexadecimal digits.
fn hash<const N: usize>(parts: [&[u8]; N]) -> String {
    format!("{:032x}", hash_of(parts.into_iter()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    fn copy() -> Copy<Vec<u8>> {
        let etag = Some("\"a\\\"".to_owned());
        Copy { etag, kept_at: Timestamp::from_nanos(7), bytes: b"domain: shop\n".to_vec() }
    }

    #[test]
    fn copy_is_read_as_written_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.yaml");
        let at = address("https://host/rules.yaml?sig=secret");
        assert!(read(&path, &at).unwrap().is_none());
        write(&path, &at, &copy()).unwrap();
        assert_eq!(read(&path, &at).unwrap(), Some(copy()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("\ndomain: shop\n") && !text.contains("secret"), "{text}");
        let other = read(&path, &address("https://host/rules.yaml?sig=other"));
        assert!(matches!(other, Err(CopyError::OtherAddress)));
    }

    #[test]
    fn copy_with_any_byte_changed_or_cut_is_damaged() {
        let at = address("https://host/");
        let bytes = encode(&copy(), &at).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            // The hash of the address is not part of the checksum: its change makes another address.
            let decoded = decode(&changed, &at);
            assert!(decoded.is_err(), "byte {index}");
            assert!(matches!(decode(&bytes[..index], &at), Err(CopyError::Damaged)), "cut at {index}");
        }
    }
}
