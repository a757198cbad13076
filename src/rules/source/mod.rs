//! The sources of rules: files, or a control plane over xDS. Each yields documents with the locations of their nodes;
//! everything after that is the same for all sources.

#[cfg(feature = "server")]
use std::sync::Arc;
#[cfg(feature = "watch")]
use std::{path::PathBuf, time::Duration};

#[cfg(feature = "server")]
use crate::{
    rules::{ActiveRules, loader::Loader, source::overlay_file::OverlayFile},
    time::Clock,
};

#[cfg(feature = "watch")]
mod file_events;
mod files;
#[cfg(feature = "watch")]
mod mount;
#[cfg(feature = "server")]
mod overlay_file;
#[cfg(feature = "watch")]
mod watch;
#[cfg(feature = "server")]
pub mod xds;

pub use files::load;
#[cfg(feature = "server")]
pub(crate) use files::load_trial;
#[cfg(feature = "watch")]
pub use watch::Watcher;

/// The source of the rules, and whether they are needed.
#[cfg(feature = "server")]
#[derive(Clone, Debug)]
pub struct Settings {
    /// The source.
    pub source: SourceSettings,
    /// Whether the replica is ready only once rules are loaded.
    pub required: bool,
}

/// The source of the rules.
#[cfg(feature = "server")]
#[derive(Clone, Debug)]
pub enum SourceSettings {
    /// Rule files.
    Files(FileSettings),
    /// A control plane, and a local file that adds to its rules.
    Xds(Box<xds::Settings>, Option<FileSettings>),
}

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
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll_interval: Self::POLL_INTERVAL }
    }
}

#[cfg(feature = "server")]
impl SourceSettings {
    /// Loads the rules and follows their changes, for as long as it is polled. `stats` counts what a control plane
    /// sends.
    pub async fn run(self, clock: Clock, active_rules: Arc<ActiveRules>, stats: Arc<xds::Stats>) {
        match self {
            Self::Files(settings) => Watcher::new(settings, clock, active_rules).run().await,
            Self::Xds(settings, overlay) => {
                let mut loader = Loader::new(settings.url.clone(), clock, active_rules.clone());
                let Some(FileSettings { path, poll_interval }) = overlay else {
                    return xds::follow(*settings, loader, None, stats).await;
                };
                let (mut file, mut overlays) = OverlayFile::watch(path, active_rules);
                // Before any rules, so that none are active without it.
                file.compare().await;
                loader.set_overlay(overlays.borrow_and_update().clone());
                tokio::join!(file.run(poll_interval), xds::follow(*settings, loader, Some(overlays), stats));
            }
        }
    }
}
