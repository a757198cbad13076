//! Reads regular files with a size bound and without blocking.
//!
//! A path in a setting can name a pipe, a device or a kernel file that blocks its reader. Such a file must not block
//! a thread, so all files named by settings are read here.

use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;

/// The size of one read: the kernel occupies the core while it copies.
const CHUNK_BYTES: u64 = 64 << 10;

/// Reads the regular file at `path`, which may be a symbolic link. Fails for files of more than `bytes_max` bytes and
/// for any other kind of file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open_up_to(path, bytes_max)?;
    // Kernel files have no length, and a file may grow, so the bytes are counted as well.
    let bytes = read_open(file, bytes_max.saturating_add(1))?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= bytes_max);
    if fits { Ok(bytes) } else { Err(too_large(bytes_max)) }
}

/// Opens the regular file at `path`, as [`read`] does, and returns its length: 0 for kernel files, which have none.
pub fn open_up_to(path: &Path, bytes_max: u64) -> io::Result<(File, u64)> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length <= bytes_max { Ok((file, length)) } else { Err(too_large(bytes_max)) }
}

/// Reads at most the first `bytes_max` bytes of the regular file at `path`.
pub fn read_prefix(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_open(open(path)?, bytes_max)
}

/// Opens a regular file.
fn open(path: &Path) -> io::Result<File> {
    // Checked before opening too: opening a device can have side effects.
    require_regular(&fs::metadata(path)?)?;
    // `O_NONBLOCK`: the path may point to a pipe by now, and some kernel files are regular and block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    require_regular(&file.metadata()?)?;
    Ok(file)
}

fn read_open(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len().min(bytes_max)).unwrap_or_default();
    let mut file = file.take(bytes_max);
    let mut bytes = Vec::with_capacity(length);
    while file.by_ref().take(CHUNK_BYTES).read_to_end(&mut bytes)? != 0 {}
    Ok(bytes)
}

fn too_large(bytes_max: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {bytes_max} bytes"))
}

/// Fails with the kind of the file unless it is a regular file.
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
    fn irregular_file_is_refused_with_its_kind() {
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
    fn symbolic_link_is_followed_to_regular_files_only() {
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
    fn file_beyond_the_bound_is_refused_and_others_are_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for length in
            [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 1]
        {
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

    #[test]
    fn file_that_is_too_large_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // A terabyte without blocks on the disk: no machine of a test can hold half of it.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, 1 << 39).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn kernel_file_without_length_is_read_to_its_end() {
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }
}
