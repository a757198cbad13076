//! Reads the overlay file and reads it again when it changes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;
use tracing::{error, info};

use crate::{
    file_watch::{FileWatch, Found, State, read_blocking},
    files,
    rules::{
        ActiveRules, Problems,
        diagnostics::{Location, Origin, Problem},
        overlay::Overlay,
        source::file_events::FileEvents,
    },
    yaml,
};

/// The overlay that is in force, for the loader of the rules; `None` before the first valid one.
pub(super) type OverlayReceiver = watch::Receiver<Option<Arc<Overlay>>>;

/// Follows an overlay file. A bad one keeps the previous one.
#[derive(Debug)]
pub(super) struct OverlayFile {
    path: PathBuf,
    poll_interval: Duration,
    active_rules: Arc<ActiveRules>,
    watch: FileWatch,
    overlay: watch::Sender<Option<Arc<Overlay>>>,
}

impl OverlayFile {
    pub(super) fn new(
        path: PathBuf,
        poll_interval: Duration,
        active_rules: Arc<ActiveRules>,
    ) -> (Self, OverlayReceiver) {
        let (overlay, receiver) = watch::channel(None);
        (Self { path, poll_interval, active_rules, watch: FileWatch::default(), overlay }, receiver)
    }

    /// Follows the file for as long as it is polled.
    pub(super) async fn run(mut self) {
        loop {
            let events = FileEvents::watching(&self.path);
            // What changed before the new watch is found now.
            self.poll().await;
            events.wait(self.poll_interval).await;
        }
    }

    /// Reads the file and compares it with the overlay in force.
    pub(super) async fn poll(&mut self) {
        let path = &self.path;
        let read = |_| {
            let path = path.clone();
            read_blocking(move || {
                files::read(&path, yaml::BYTES_MAX as u64).map_err(|error| error.to_string())
            })
        };
        let found = self.watch.poll(read).await;
        let Some(Found { contents, fingerprint, state }) = found else { return };
        match state {
            State::New => {}
            State::Refused => return,
            State::Active => {
                self.active_rules.set_overlay_problems(None);
                return;
            }
        }
        let path = self.path.display();
        match parsed(&path.to_string(), contents) {
            Ok(overlay) => {
                info!(%path, rules = overlay.rules.len(), "a new overlay is in force");
                self.watch.accept(fingerprint);
                self.active_rules.set_overlay_problems(None);
                self.overlay.send_replace(Some(Arc::new(overlay)));
            }
            Err(problems) => {
                let list = problems.to_string();
                error!(%path, problems = problems.len(), list, "cannot load the overlay; the previous one stays");
                self.watch.refuse(fingerprint);
                self.active_rules.set_overlay_problems(Some(Arc::new(problems)));
            }
        }
    }
}

type Contents = Result<Vec<u8>, String>;

fn parsed(path: &str, contents: Contents) -> Result<Overlay, Problems> {
    contents.map_or_else(
        |reason| {
            let location = Location::whole(Origin::file(path));
            let mut problems = Problems::default();
            problems.push(Problem { location, what: format!("cannot be read: {reason}") });
            Err(problems)
        },
        |bytes| Overlay::read(path, bytes),
    )
}
