//! Detects files that are mounted individually, which never change.
//!
//! Kubernetes updates the files of a volume through a symbolic link in their directory. A file mounted individually
//! (`subPath`) keeps the content that it had when the container started.

use std::path::{Path, PathBuf};

/// The `files` that are mount points, given the text of `/proc/self/mountinfo`.
pub(crate) fn individually_mounted<'f>(mountinfo: &str, files: &'f [PathBuf]) -> Vec<&'f Path> {
    let mounts: Vec<PathBuf> = mountinfo.lines().filter_map(mount_point).collect();
    let is_mount = |file: &&PathBuf| std::path::absolute(file).is_ok_and(|file| mounts.contains(&file));
    files.iter().filter(is_mount).map(PathBuf::as_path).collect()
}

/// The fifth field of a line, in which special characters such as spaces are escaped as three octal digits.
fn mount_point(line: &str) -> Option<PathBuf> {
    let field = line.split(' ').nth(4)?;
    let mut pieces = field.split('\\');
    let mut point = pieces.next()?.to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(3)?;
        point.push(char::from(u8::from_str_radix(code, 8).ok()?));
        point.push_str(rest);
    }
    Some(point.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
31 22 8:1 /pods/1/volume-subpaths/rules/app/0 /etc/tollgate/limits.yaml ro,relatime - ext4 /dev/sda1 rw
32 22 8:1 /pods/1/volumes/rules /etc/rules ro,relatime - ext4 /dev/sda1 rw
33 22 8:1 /x /etc/with\\040space.yaml ro - ext4 /dev/sda1 rw
";

    #[test]
    fn individually_mounted_file_is_told_from_file_in_mounted_directory() {
        let files = ["/etc/tollgate/limits.yaml", "/etc/rules/limits.yaml", "/etc/with space.yaml"]
            .map(PathBuf::from);
        assert_eq!(individually_mounted(MOUNTS, &files), [files[0].as_path(), files[2].as_path()]);
    }
}
