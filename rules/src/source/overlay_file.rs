//! Reads the overlay file and reads it again when it changes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;
use tollgate_counter::files;
use tracing::{error, info};

use crate::{
    active_rules::ActiveRules,
    diagnostics::{Location, Problem, Problems, RuleOrigin},
    file_watch::{FileComparison, FileWatch, WatchedFiles, read_blocking},
    overlay::Overlay,
    source::file_events::FileEvents,
    yaml,
};

/// The active overlay, for the loader of the rules; `None` before the first valid one.
pub type OverlayReceiver = watch::Receiver<Option<Arc<Overlay>>>;

/// An overlay file.
#[derive(Debug)]
pub struct OverlayFile {
    path: PathBuf,
    events: FileEvents,
    active_rules: Arc<ActiveRules>,
    overlay: watch::Sender<Option<Arc<Overlay>>>,
}

impl OverlayFile {
    /// A watch of the overlay file at `path`, and the receiver of its contents.
    pub fn watch(path: PathBuf, active_rules: Arc<ActiveRules>) -> (FileWatch<Self>, OverlayReceiver) {
        let (overlay, receiver) = watch::channel(None);
        let events = FileEvents::watching(&path);
        (FileWatch::new(Self { path, events, active_rules, overlay }), receiver)
    }
}

impl WatchedFiles for OverlayFile {
    type Contents = Result<Vec<u8>, String>;
    type Error = Problems;

    async fn wait(&mut self, last: FileComparison, poll_interval: Duration) {
        self.events.wait(last, poll_interval).await;
    }

    async fn read(&mut self) -> Option<(Self::Contents, u128)> {
        let path = self.path.clone();
        let read = move || files::read(&path, yaml::BYTES_MAX as u64).map_err(|error| error.to_string());
        read_blocking(read).await
    }

    async fn load(&mut self, contents: Self::Contents) -> Option<Result<(), Problems>> {
        let path = self.path.display().to_string();
        let unreadable = |reason| {
            let location = Location::whole(RuleOrigin::file(&path));
            let mut problems = Problems::default();
            problems.push(Problem { location, what: format!("cannot be read: {reason}") });
            problems
        };
        let overlay = contents.map_err(unreadable).and_then(|bytes| Overlay::read(&path, bytes));
        Some(overlay.map(|overlay| {
            info!(%path, rules = overlay.rules.len(), "a new overlay is active");
            self.active_rules.set_overlay_problems(None);
            self.overlay.send_replace(Some(Arc::new(overlay)));
        }))
    }

    fn refused(&mut self, problems: Problems) {
        let path = self.path.display();
        let list = problems.to_string();
        error!(%path, problems = problems.len(), list, "cannot load the overlay; the previous one stays");
        self.active_rules.set_overlay_problems(Some(Arc::new(problems)));
    }

    fn recovered(&mut self) {
        self.active_rules.set_overlay_problems(None);
    }
}
