//! Regular files, read within a bound and without waiting.
//!
//! A path in a setting can name a pipe, a device or a file of the kernel that blocks its reader. Such a file must not
//! hold a thread, so every file that a setting names is read here.

use std::{
    fs::{self, FileType, Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// The bytes of one read: the kernel keeps the core while it copies.
const PIECE: u64 = 64 << 10;

/// The content of the regular file at `path`, which may be a symbolic link to it. More than `bytes_max` bytes and any
/// other kind of file are errors.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let bytes = read_prefix(path, bytes_max.saturating_add(1))?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= bytes_max);
    let too_large =
        || io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {bytes_max} bytes"));
    if fits { Ok(bytes) } else { Err(too_large()) }
}

/// The same, but at most the first `bytes_max` bytes.
pub fn read_prefix(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Checked before it is opened too: to open a device can have an effect.
    require_regular(&fs::metadata(path)?)?;
    // `O_NONBLOCK`: the path may lead to a pipe by now, and some files of the kernel are regular and block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    require_regular(&file.metadata()?)?;
    let (mut file, mut bytes) = (file.take(bytes_max), Vec::new());
    while file.by_ref().take(PIECE).read_to_end(&mut bytes)? != 0 {}
    Ok(bytes)
}

/// An error that names the kind of file unless it is a regular one.
pub fn require_regular(about: &Metadata) -> io::Result<()> {
    let kind = about.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {}, not a regular file", name(kind))))
}

fn name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else {
        "of an unknown kind"
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{fs::symlink, net::UnixListener},
        process::Command,
    };

    use super::*;

    fn refusal(path: &Path) -> String {
        read(path, 1_000).unwrap_err().to_string()
    }

    #[test]
    fn every_other_kind_of_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket] = ["pipe", "socket"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(refusal(&pipe), "it is a named pipe, not a regular file");
        assert_eq!(refusal(&socket), "it is a socket, not a regular file");
        assert_eq!(refusal(folder.path()), "it is a directory, not a regular file");
        for device in ["/dev/zero", "/dev/null"] {
            assert_eq!(refusal(Path::new(device)), "it is a device, not a regular file");
        }
    }

    #[test]
    fn a_symbolic_link_is_read_as_the_file_that_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "content").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 7).unwrap(), b"content");
        fs::remove_file(&file).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::rename(&pipe, &file).unwrap();
        assert_eq!(refusal(&link), "it is a named pipe, not a regular file");
    }

    #[test]
    fn a_file_beyond_the_bound_is_refused_and_one_of_many_pieces_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 1] {
            let bytes: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            fs::write(&path, &bytes).unwrap();
            assert!(read(&path, length).unwrap() == bytes, "{length} bytes");
            assert_eq!(read_prefix(&path, length / 2).unwrap().len() as u64, length / 2);
            if let Some(less) = length.checked_sub(1) {
                let why = read(&path, less).unwrap_err().to_string();
                assert_eq!(why, format!("it is larger than {less} bytes"));
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_of_the_kernel_without_a_length_is_read_to_its_end() {
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }
}
