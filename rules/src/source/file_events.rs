//! File system events near watched files.
//!
//! Events only trigger an earlier comparison of contents, which are compared every few seconds anyway: events are lost
//! when a watched file is replaced, and symbolic link targets raise none.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{sync::Notify, time::sleep};

use crate::file_watch::{FileComparison, SETTLE};

/// Notifies of file system events near watched files.
#[derive(Debug)]
pub(super) struct FileEvents {
    path: PathBuf,
    changed: Arc<Notify>,
    // Kept alive: dropping it stops the events.
    watcher: notify::Result<RecommendedWatcher>,
}

impl FileEvents {
    /// Watches the directory of a file. For a directory it also watches the parent, in which the directory may be
    /// replaced.
    pub(super) fn watching(path: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        let watched = path.to_owned();
        let is_directory = path.is_dir();
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| may_change(&watched, is_directory, &event)) {
                notify.notify_one();
            }
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            let nearest = if is_directory { path } else { parent };
            watcher.watch(nearest, RecursiveMode::NonRecursive)?;
            if is_directory {
                // Optional: without permission for the parent, polling finds a replaced directory.
                let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
            }
            Ok(watcher)
        });
        Self { path: path.to_owned(), changed, watcher }
    }

    /// Why there are no events.
    pub(super) fn error(&self) -> Option<&notify::Error> {
        self.watcher.as_ref().err()
    }

    /// Waits for an event, for `time_max` at most. A directory may have been replaced by the last change: then it is
    /// watched again, and another comparison finds at once what changed before the new watch.
    pub(super) async fn wait(&mut self, last: FileComparison, time_max: Duration) {
        if last == FileComparison::Changed || self.watcher.is_err() {
            *self = Self::watching(&self.path);
        }
        if last == FileComparison::Changed {
            return;
        }
        // Events come in bursts; the pause bounds the number of polls per second. An event meanwhile is not lost.
        sleep(SETTLE).await;
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep(time_max.saturating_sub(SETTLE)) => {}
        }
    }
}

/// Whether an event may change the rules at `path`. For a file every event in its directory counts: it may be a symbolic
/// link.
fn may_change(path: &Path, is_directory: bool, event: &notify::Event) -> bool {
    // Reads by this process raise access events.
    if event.kind.is_access() {
        return false;
    }
    let is_near = |near: &PathBuf| near.starts_with(path) || near.file_name() == path.file_name();
    !is_directory || event.paths.is_empty() || event.paths.iter().any(is_near)
}
