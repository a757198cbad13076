//! Files that only this program reads: those that are replaced as a whole, and bearer tokens.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use tollgate_counter::files;

/// The maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// Replaces the file at `path`, so that there is always a complete one: `write` fills a temporary file in its folder,
/// which only its owner can read and which is then renamed. A symbolic link is replaced; a pipe or a device is refused.
pub fn replace<E: From<io::Error>>(path: &Path, write: impl FnOnce(File) -> Result<(), E>) -> Result<(), E> {
    require_replaceable(path)?;
    let temporary = with_suffix(path, "new");
    let written = write(create(&temporary)?).and_then(|()| Ok(fs::rename(&temporary, path)?));
    if written.is_err() {
        // A partial file only takes space. If it cannot be removed, the next write reports it.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Renames an unusable file for inspection and returns the new path.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    require_replaceable(path)?;
    let aside = with_suffix(path, "bad");
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Creates an empty file that only its owner can read. An existing file or symbolic link is removed, never followed.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A regular file or a symbolic link can be replaced, a device or a pipe never.
fn require_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => Ok(()),
        Ok(about) => files::require_regular(&about),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The path of a file beside the one at `path`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Reads the token in the file at `path`: 1 to 4096 visible ASCII characters on one line. Files of tokens are read at
/// each use, so that the token can be replaced.
pub fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    // One byte more than allowed, to detect tokens that are too long, and the end of the line.
    let bytes = files::read_prefix(path, TOKEN_BYTES_MAX as u64 + 3)?;
    let token = bytes.trim_ascii();
    if (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic) {
        return Ok(token.to_vec());
    }
    let what = format!("not a token of 1 to {TOKEN_BYTES_MAX} visible ASCII characters on one line");
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn write(path: &Path) -> io::Result<()> {
        replace(path, |mut file| file.write_all(b"new"))
    }

    #[test]
    fn temporary_file_replaces_symbolic_link_and_leaves_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let [path, temporary, target] = ["file", "file.new", "target"].map(|name| folder.path().join(name));
        fs::write(&target, "untouched").unwrap();
        symlink(&target, &temporary).unwrap();
        write(&path).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert!(!temporary.exists());
    }

    #[test]
    fn file_written_after_a_left_over_one_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let [path, temporary] = ["file", "file.new"].map(|name| folder.path().join(name));
        fs::write(&temporary, "left over").unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o666)).unwrap();
        write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn failed_write_leaves_the_file_and_no_temporary_one() {
        let folder = tempfile::tempdir().unwrap();
        let [path, temporary] = ["file", "file.new"].map(|name| folder.path().join(name));
        write(&path).unwrap();
        replace(&path, |_| Err(io::Error::other("full"))).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!temporary.exists());
    }

    #[test]
    fn pipe_and_folder_are_neither_replaced_nor_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, directory] = ["pipe", "directory"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::create_dir(&directory).unwrap();
        for (path, what) in [(pipe, "a named pipe"), (directory, "a directory")] {
            let expected = format!("it is {what}, not a regular file");
            assert_eq!(write(&path).unwrap_err().to_string(), expected);
            assert_eq!(set_aside(&path).unwrap_err().to_string(), expected);
            assert!(!with_suffix(&path, "new").exists());
        }
    }
}
