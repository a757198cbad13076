//! The files of rules. They yield documents with the locations of their nodes, as a control plane does; everything after
//! that is the same.

#[cfg(feature = "watch")]
use std::{path::PathBuf, time::Duration};

#[cfg(feature = "watch")]
mod file_events;
mod files;
#[cfg(feature = "watch")]
mod mount;
#[cfg(feature = "watch")]
mod overlay_file;
#[cfg(feature = "watch")]
mod watch;

pub use files::load;
pub use files::load_trial;
#[cfg(feature = "watch")]
pub use overlay_file::{OverlayFile, OverlayReceiver};
#[cfg(feature = "watch")]
pub use watch::Watcher;

/// Where rule files or an overlay are, and how often they are read.
#[cfg(feature = "watch")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// A rule file, a directory of rule files, or an overlay file.
    pub path: PathBuf,
    /// The interval between comparisons of the files with what is active; at least 50 ms.
    pub poll_interval: Duration,
}

#[cfg(feature = "watch")]
impl FileSettings {
    /// The default interval.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(3);

    /// The rules at `path` with the default interval.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll_interval: Self::POLL_INTERVAL }
    }
}
