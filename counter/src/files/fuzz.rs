//! Files for the fuzz targets of other modules.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

/// Writes `bytes` to a file that only its owner can read, in place of an earlier one of this process and name: the input
/// of a fuzz target for a component that reads files.
pub fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tollgate-fuzz-{}-{name}", std::process::id()));
    fs::write(&path, bytes).expect("the folder of temporary files is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    path
}
