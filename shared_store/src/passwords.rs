//! The passwords of the store: from settings, or from files that are watched.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::watch;
use tollgate_counter::files;
use tollgate_rules::file_watch::{FileWatch, WatchedFiles, fingerprint, read_blocking};
use tracing::{error, info};

/// The most bytes of a file with a password.
const BYTES_MAX: u64 = 64 * 1024;

/// The passwords of the store.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Passwords {
    /// For the servers.
    pub server: Option<String>,
    /// For the sentinels.
    pub sentinel: Option<String>,
}

/// Where the passwords of the store come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordSources {
    /// For the servers.
    pub server: Option<PasswordSource>,
    /// For the sentinels.
    pub sentinel: Option<PasswordSource>,
    /// The interval between comparisons of the files with the passwords in use.
    pub poll_interval: Duration,
}

/// Where a password comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordSource {
    /// The first line of a file, which is read again when it changes.
    File(PathBuf),
    /// The password itself, which is never displayed.
    Text(String),
}

/// Why a password cannot be read. The setting is named by the caller.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}", path = path.display())]
pub struct PasswordError {
    path: PathBuf,
    reason: String,
}

impl PasswordSources {
    /// Reads the passwords.
    pub fn read(&self) -> Result<Passwords, PasswordError> {
        let read = |source: &Option<PasswordSource>| source.as_ref().map(PasswordSource::read).transpose();
        Ok(Passwords { server: read(&self.server)?, sentinel: read(&self.sentinel)? })
    }

    /// Sends changed passwords until the receivers are gone.
    pub async fn watch(self, passwords: watch::Sender<Passwords>) {
        let active = fingerprint(&Ok::<_, String>(passwords.borrow().clone()));
        let (poll_interval, files) =
            (self.poll_interval, SentPasswords { sources: self, passwords: passwords.clone() });
        tokio::select! {
            () = passwords.closed() => {}
            () = FileWatch::with_active(files, active).run(poll_interval) => {}
        }
    }
}

impl PasswordSource {
    fn read(&self) -> Result<String, PasswordError> {
        match self {
            Self::File(path) => read_password(path),
            Self::Text(password) => Ok(password.clone()),
        }
    }
}

/// Shows no password.
impl std::fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}

/// The sources of the passwords, and the passwords in use.
struct SentPasswords {
    sources: PasswordSources,
    passwords: watch::Sender<Passwords>,
}

impl WatchedFiles for SentPasswords {
    type Contents = Result<Passwords, String>;
    type Error = String;

    async fn read(&mut self) -> Option<(Self::Contents, u128)> {
        let sources = self.sources.clone();
        read_blocking(move || sources.read().map_err(|error| error.to_string())).await
    }

    async fn load(&mut self, contents: Self::Contents) -> Option<Result<(), String>> {
        Some(contents.map(|changed| {
            self.passwords.send_replace(changed);
            info!("read new passwords of the shared store");
        }))
    }

    fn refused(&mut self, error: String) {
        error!(error, "kept the previous passwords of the shared store");
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

    fn of_file(path: PathBuf) -> PasswordSources {
        let server = Some(PasswordSource::File(path));
        PasswordSources { server, sentinel: None, poll_interval: Duration::from_millis(60) }
    }

    #[test]
    fn given_password_is_read_and_never_shown() {
        let given = PasswordSources {
            server: Some(PasswordSource::Text("secret".to_owned())),
            sentinel: Some(PasswordSource::File("/run/password".into())),
            poll_interval: Duration::ZERO,
        };
        let shown = format!("{given:?}");
        assert!(shown.contains("Text(..)") && shown.contains("/run/password"), "{shown}");
        assert_eq!(given.server.unwrap().read().unwrap(), "secret");
    }

    #[test]
    fn password_is_the_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, " a b\r\n").unwrap();
        assert_eq!(of_file(path.clone()).read().unwrap().server.unwrap(), " a b");
        fs::write(&path, "\n").unwrap();
        let error = of_file(path.clone()).read().unwrap_err().to_string();
        assert!(error.ends_with("password: no password in it"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(of_file(path).read().is_err());
    }

    // While time is paused, it passes only when no read is under way.
    #[tokio::test(start_paused = true)]
    async fn changed_password_is_sent_and_unusable_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "one").unwrap();
        let sources = of_file(path.clone());
        let (sender, mut received) = watch::channel(sources.read().unwrap());
        let watching = tokio::spawn(sources.watch(sender));
        fs::write(&path, "").unwrap();
        // Several polls.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!received.has_changed().unwrap());
        fs::write(&path, "two").unwrap();
        received.changed().await.unwrap();
        assert_eq!(received.borrow_and_update().server.as_deref(), Some("two"));
        watching.abort();
    }
}
