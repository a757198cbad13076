//! The passwords of the store, from files that are watched.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tracing::{error, info};

use crate::{
    file_watch::{FileWatch, Found, SETTLE, State, fingerprint},
    files,
};

/// The most bytes of a file with a password.
const BYTES_MAX: u64 = 64 * 1024;

/// The passwords of the store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Passwords {
    /// For the servers.
    pub server: Option<String>,
    /// For the sentinels.
    pub sentinel: Option<String>,
}

/// The files of the passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordFiles {
    /// For the servers.
    pub server: Option<PathBuf>,
    /// For the sentinels.
    pub sentinel: Option<PathBuf>,
    /// The interval between comparisons with the passwords in use.
    pub poll_interval: Duration,
}

/// Why a password cannot be read. The setting is named by the caller.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}", path = path.display())]
pub struct PasswordError {
    path: PathBuf,
    reason: String,
}

impl PasswordFiles {
    /// Reads the passwords.
    pub fn read(&self) -> Result<Passwords, PasswordError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(read_password).transpose();
        Ok(Passwords { server: read(&self.server)?, sentinel: read(&self.sentinel)? })
    }

    /// Sends changed passwords until the receivers are gone.
    pub async fn watch(self, passwords: watch::Sender<Passwords>) {
        let read = move |files: Self| async move {
            let read = spawn_blocking(move || files.read().map_err(|error| error.to_string())).await.ok()?;
            let content =
                read.as_ref().map(|passwords| (passwords.server.clone(), passwords.sentinel.clone()));
            let fingerprint = fingerprint(&content.map_err(String::as_str));
            Some((read, fingerprint))
        };
        let first = Ok::<_, &str>(passwords.borrow().clone()).map(|first| (first.server, first.sentinel));
        let mut watch = FileWatch::with_active(fingerprint(&first));
        while !passwords.is_closed() {
            sleep(self.poll_interval.max(SETTLE)).await;
            let found = watch.poll(|_| read(self.clone())).await;
            let Some(Found { contents, fingerprint, state: State::New }) = found else { continue };
            match contents {
                Ok(changed) => {
                    passwords.send_replace(changed);
                    info!("read new passwords of the shared store");
                    watch.accept(fingerprint);
                }
                Err(error) => {
                    error!(error, "kept the previous passwords of the shared store");
                    watch.refuse(fingerprint);
                }
            }
        }
    }
}

/// The content of a file without the end of its line.
fn read_password(path: &Path) -> Result<String, PasswordError> {
    let failed = |reason: String| PasswordError { path: path.to_owned(), reason };
    let bytes = files::read(path, BYTES_MAX).map_err(|error: io::Error| failed(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("not UTF-8".to_owned()))?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() { Err(failed("no password in it".to_owned())) } else { Ok(password.to_owned()) }
}

/// Shows no password.
impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passwords(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn files(path: PathBuf) -> PasswordFiles {
        PasswordFiles { server: Some(path), sentinel: None, poll_interval: Duration::from_millis(60) }
    }

    #[test]
    fn password_is_the_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, " a b\r\n").unwrap();
        assert_eq!(files(path.clone()).read().unwrap().server.unwrap(), " a b");
        fs::write(&path, "\n").unwrap();
        let error = files(path.clone()).read().unwrap_err().to_string();
        assert!(error.ends_with("password: no password in it"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(files(path).read().is_err());
    }

    // While time is paused, it passes only when no read is under way.
    #[tokio::test(start_paused = true)]
    async fn changed_password_is_sent_and_unusable_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "one").unwrap();
        let files = files(path.clone());
        let (sender, mut received) = watch::channel(files.read().unwrap());
        let watching = tokio::spawn(files.watch(sender));
        fs::write(&path, "").unwrap();
        // Several polls.
        sleep(Duration::from_secs(1)).await;
        assert!(!received.has_changed().unwrap());
        fs::write(&path, "two").unwrap();
        received.changed().await.unwrap();
        assert_eq!(received.borrow_and_update().server.as_deref(), Some("two"));
        watching.abort();
    }
}
