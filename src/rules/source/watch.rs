//! Reloads the rules when their files change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tracing::warn;

use crate::{
    file_watch::{FileWatch, Found, State},
    rules::{
        ActiveRules,
        background::{Priority, run_in_background},
        contents::Contents,
        loader::Loader,
        source::{FileSettings, file_events::FileEvents, files, mount},
    },
    time::Clock,
};

/// Loads the rules and reloads them when their files change.
#[derive(Debug)]
pub struct Watcher {
    settings: FileSettings,
    loader: Loader,
    watch: FileWatch,
}

impl Watcher {
    /// A watcher that updates `active_rules`.
    pub fn new(settings: FileSettings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        let loader = Loader::new(settings.path.display().to_string(), clock, active_rules);
        Self { settings, loader, watch: FileWatch::default() }
    }

    /// Loads the rules and reloads them, for as long as it is polled.
    pub async fn run(mut self) {
        let mut events = FileEvents::watching(&self.settings.path);
        self.warn_of_individual_mounts().await;
        if let Some(error) = events.error() {
            warn!(path = %self.settings.path.display(), %error, "no file events; rules are only polled");
        }
        loop {
            if self.poll().await {
                // The directory may have been replaced. Another comparison finds what changed before the new
                // watch.
                events = FileEvents::watching(&self.settings.path);
                continue;
            }
            if events.error().is_some() {
                events = FileEvents::watching(&self.settings.path);
            }
            events.wait(self.settings.poll_interval).await;
        }
    }

    /// Compares the files with the active rules and loads them on a change. Returns whether they changed.
    pub async fn poll(&mut self) -> bool {
        let (path, priority) = (self.settings.path.clone(), self.loader.priority());
        let found = self.watch.poll(|before| read(&path, priority, before)).await;
        let Some(Found { contents, fingerprint, state }) = found else { return false };
        match state {
            State::New => match self.loader.load(&Arc::new(contents), None).await {
                Some(Ok(())) => self.watch.accept(fingerprint),
                Some(Err(_)) => self.watch.refuse(fingerprint),
                // The next poll tries again.
                None => {}
            },
            // The same files have the same problems.
            State::Refused => return false,
            State::Active => self.loader.recover(None),
        }
        true
    }

    /// Warns about files that cannot change while this process runs.
    async fn warn_of_individual_mounts(&self) {
        let Some((files, _)) = read(&self.settings.path, self.loader.priority(), None).await else { return };
        let files: Vec<PathBuf> = files.sources.iter().map(|source| PathBuf::from(source.path())).collect();
        let mounts = run_in_background(self.loader.priority(), || {
            std::fs::read_to_string("/proc/self/mountinfo").ok()
        })
        .await
        .flatten();
        for path in mount::individually_mounted(&mounts.unwrap_or_default(), &files) {
            let hint = "mount the whole volume instead of a subPath of it";
            warn!(path = %path.display(), hint, "this rule file is a mount of its own; changes to it cannot be seen");
        }
    }
}

/// The contents of the rule files and their fingerprint, which is taken from `before` if the contents are equal.
fn read(
    path: &Path,
    priority: Priority,
    before: Option<(Contents, u128)>,
) -> impl Future<Output = Option<(Contents, u128)>> + use<> {
    let path = path.to_owned();
    let read = move || {
        let files = files::read(&path);
        let known = before.as_ref().filter(|(before, _)| *before == files);
        let fingerprint = known.map_or_else(|| files.fingerprint(), |(_, fingerprint)| *fingerprint);
        (files, fingerprint)
    };
    run_in_background(priority, read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_files_get_idle_priority_once_rules_are_active() {
        let (file, active_rules) =
            (tempfile::NamedTempFile::new().unwrap(), Arc::new(ActiveRules::default()));
        let mut watcher = Watcher::new(
            FileSettings::of(file.path()),
            Clock::manual(crate::time::Timestamp::EPOCH),
            active_rules,
        );
        for (comment, before, after) in
            [(64 * 1024, Priority::Normal, Priority::Idle), (0, Priority::Idle, Priority::Normal)]
        {
            assert_eq!(watcher.loader.priority(), before);
            let text = format!("domain: d\n#{}\n", "-".repeat(comment));
            std::fs::write(file.path(), text).unwrap();
            assert!(watcher.poll().await);
            assert_eq!(watcher.loader.priority(), after, "{comment} bytes");
        }
    }
}
