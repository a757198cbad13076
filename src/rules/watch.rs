//! Reloads the rules when their files change.
//!
//! The file contents are compared every few seconds. File system events only trigger an earlier comparison: they are
//! lost when a watched file is replaced, and symbolic link targets raise none.

use std::{path::Path, path::PathBuf, sync::Arc, time::Duration};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{sync::Notify, time::sleep};
use tracing::{error, info, warn};

use crate::{
    rules::{
        ActiveRules, Problem, Problems, Rules,
        background::{Priority, run_in_background, run_in_background_once},
        mount,
        source::{self, RuleFiles},
    },
    time::Clock,
};

/// The time for which files must not change before they are considered completely written.
const SETTLE: Duration = Duration::from_millis(50);
/// The maximum number of reads while waiting for the files to settle.
const SETTLE_READS_MAX: usize = 20;
/// The number of checks, and the pause between them, whether replaced rules are still in use. The product is longer
/// than any request that asks another replica.
const DROP_TRIES_MAX: usize = 200;
const DROP_PAUSE: Duration = Duration::from_millis(5);
/// Files of up to this total size are read and compiled within about 2 ms, at normal priority.
const BYTES_AT_ONCE: usize = 64 * 1024;
/// The maximum number of problems in one log line.
const LOGGED_MAX: usize = 20;

/// The source of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A rule file, or a directory of rule files.
    pub path: PathBuf,
    /// The interval between comparisons of the files with the active rules; at least 50 ms.
    pub poll_interval: Duration,
}

impl Settings {
    /// The default interval.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(3);

    /// The rules at `path` with the default interval.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll_interval: Self::POLL_INTERVAL }
    }
}

/// Loads the rules and reloads them when their files change.
#[derive(Debug)]
pub struct Watcher {
    settings: Settings,
    clock: Clock,
    active_rules: Arc<ActiveRules>,
    // Fingerprints of the contents compiled last and of the active rules.
    seen: Option<u128>,
    in_force: Option<u128>,
    // The total size of the files at the last change.
    bytes: usize,
}

impl Watcher {
    /// A watcher that updates `active_rules`.
    pub fn new(settings: Settings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        Self { settings, clock, active_rules, seen: None, in_force: None, bytes: 0 }
    }

    /// Runs until `shutdown` is ready.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let watch = async {
            let mut events = FileEvents::watching(&self.settings.path);
            self.warn_of_individual_mounts().await;
            if let Err(error) = &events.watcher {
                warn!(path = %self.settings.path.display(), %error, "no file events; rules are only polled");
            }
            loop {
                if self.poll().await {
                    // The directory may have been replaced. Another comparison finds what changed before the new
                    // watch.
                    events = FileEvents::watching(&self.settings.path);
                    continue;
                }
                if events.watcher.is_err() {
                    events = FileEvents::watching(&self.settings.path);
                }
                events.wait(self.settings.poll_interval).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = watch => {}
        }
    }

    /// Compares the files with the active rules and loads them on a change. Returns whether they changed.
    pub async fn poll(&mut self) -> bool {
        let Some((files, fingerprint)) = self.settled().await else { return false };
        (self.seen, self.bytes) = (Some(fingerprint), files.bytes());
        if self.in_force == Some(fingerprint) {
            self.active_rules.recover();
            info!(path = %self.settings.path.display(), "the rule files match the active rules again");
            return true;
        }
        let (active_rules, clock, recovered) =
            (self.active_rules.clone(), self.clock.clone(), self.active_rules.status().last_error.is_some());
        let priority = self.priority();
        let compiled = match run_in_background(priority, move || files.compile()).await {
            Some(Ok(rules)) => {
                run_in_background_once(priority, move || active_rules.replace(rules, clock.now()))
                    .await
                    .map(Ok)
            }
            Some(Err(problems)) => Some(Err(problems)),
            None => None,
        };
        match compiled {
            Some(Ok(previous)) => {
                self.in_force = Some(fingerprint);
                self.log_loaded(recovered);
                run_in_background_once(priority, move || previous.map(drop_when_unused)).await;
            }
            Some(Err(problems)) => self.reject(problems),
            // Reached after a panic or at the end of the runtime; the next poll tries again.
            None => self.seen = None,
        }
        true
    }

    /// Large reloads run at `SCHED_IDLE` so that they do not delay requests. Small ones, and the first load, run at
    /// normal priority.
    fn priority(&self) -> Priority {
        if self.bytes > BYTES_AT_ONCE && self.active_rules.current().is_some() {
            Priority::Idle
        } else {
            Priority::Normal
        }
    }

    /// The contents of the files and their fingerprint, if they are new and unchanged for `SETTLE`: a file may be
    /// half written.
    async fn settled(&self) -> Option<(RuleFiles, u128)> {
        let (mut before, mut fingerprint) = self.read(None).await?;
        for _ in 0..SETTLE_READS_MAX {
            if self.seen == Some(fingerprint) {
                return None;
            }
            sleep(SETTLE).await;
            let (files, next) = self.read(Some((before, fingerprint))).await?;
            if next == fingerprint {
                return Some((files, fingerprint));
            }
            (before, fingerprint) = (files, next);
        }
        None
    }

    /// The current contents of the files and their fingerprint, which is taken from `before` if the contents are
    /// equal.
    async fn read(&self, before: Option<(RuleFiles, u128)>) -> Option<(RuleFiles, u128)> {
        let path = self.settings.path.clone();
        let read = move || {
            let files = source::read(&path);
            let known = before.as_ref().filter(|(before, _)| *before == files);
            let fingerprint = known.map_or_else(|| files.fingerprint(), |(_, fingerprint)| *fingerprint);
            (files, fingerprint)
        };
        run_in_background(self.priority(), read).await
    }

    fn log_loaded(&self, recovered: bool) {
        let path = self.settings.path.display();
        let (rules, generation) = (self.active_rules.current(), self.active_rules.status().generation);
        let Some(rules) = &*rules else { return };
        if !rules.warnings().is_empty() {
            let list = listed(rules.warnings().iter());
            warn!(%path, warnings = rules.warnings().len(), list, "the rules have warnings");
        }
        let (hash, number) = (rules.hash(), rules.len());
        info!(%path, generation, hash, rules = number, recovered, "new rules are active");
    }

    fn reject(&self, problems: Problems) {
        let path = self.settings.path.display();
        let (number, list) = (problems.len(), listed(problems.iter()));
        match self.active_rules.status().hash {
            Some(hash) => {
                error!(%path, problems = number, list, hash, "cannot load the rules; the previous rules stay active")
            }
            None => {
                error!(%path, problems = number, list, "cannot load the rules; no rules are active")
            }
        }
        self.active_rules.fail(Arc::new(problems), self.clock.now());
    }

    /// Warns about files that cannot change while this process runs.
    async fn warn_of_individual_mounts(&self) {
        let Some((files, _)) = self.read(None).await else { return };
        let files: Vec<PathBuf> = files.sources.iter().map(|source| PathBuf::from(&*source.path)).collect();
        let mounts =
            run_in_background(self.priority(), || std::fs::read_to_string("/proc/self/mountinfo").ok())
                .await
                .flatten();
        for path in mount::individually_mounted(&mounts.unwrap_or_default(), &files) {
            let hint = "mount the whole volume instead of a subPath of it";
            warn!(path = %path.display(), hint, "this rule file is a mount of its own; changes to it cannot be seen");
        }
    }
}

/// Drops replaced rules after the last request has released them. Dropping many rules takes a while; otherwise the
/// last request to read them would pay for it.
fn drop_when_unused(rules: Arc<Rules>) {
    for _ in 0..DROP_TRIES_MAX {
        if Arc::strong_count(&rules) == 1 {
            break;
        }
        std::thread::sleep(DROP_PAUSE);
    }
}

/// The first problems, for one log line.
fn listed<'p>(problems: impl Iterator<Item = &'p Problem>) -> String {
    problems.take(LOGGED_MAX).map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Notifies of file system events near the rule files.
struct FileEvents {
    changed: Arc<Notify>,
    // Kept alive: dropping it stops the events.
    watcher: notify::Result<RecommendedWatcher>,
}

impl FileEvents {
    /// Watches the directory of a file. For a directory it also watches the parent, in which the directory may be
    /// replaced.
    fn watching(path: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let (notify, watched) =
            (changed.clone(), EventFilter { path: path.to_owned(), is_directory: path.is_dir() });
        let is_directory = watched.is_directory;
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| watched.matches(&event)) {
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
        Self { changed, watcher }
    }

    /// Waits for an event, for `time_max` at most.
    async fn wait(&self, time_max: Duration) {
        tokio::select! {
            () = self.changed.notified() => {
                // Events come in bursts; the pause bounds the number of polls per second.
                sleep(SETTLE).await;
            }
            () = sleep(time_max.max(SETTLE)) => {}
        }
    }
}

/// Selects the events that may concern the rule files.
struct EventFilter {
    path: PathBuf,
    is_directory: bool,
}

impl EventFilter {
    /// Whether an event may change the rules. For a file every event in its directory counts: it may be a symbolic
    /// link.
    fn matches(&self, event: &notify::Event) -> bool {
        // Reads by this process raise access events.
        if event.kind.is_access() {
            return false;
        }
        let is_near =
            |path: &PathBuf| path.starts_with(&self.path) || path.file_name() == self.path.file_name();
        !self.is_directory || event.paths.is_empty() || event.paths.iter().any(is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_files_get_idle_priority_once_rules_are_active() {
        let (file, active_rules) =
            (tempfile::NamedTempFile::new().unwrap(), Arc::new(ActiveRules::default()));
        let mut watcher = Watcher::new(
            Settings::of(file.path()),
            Clock::manual(crate::time::Timestamp::EPOCH),
            active_rules,
        );
        for (comment, before, after) in
            [(BYTES_AT_ONCE, Priority::Normal, Priority::Idle), (0, Priority::Idle, Priority::Normal)]
        {
            assert_eq!(watcher.priority(), before);
            let text = format!("domain: d\n#{}\n", "-".repeat(comment));
            std::fs::write(file.path(), text).unwrap();
            assert!(watcher.poll().await);
            assert_eq!(watcher.priority(), after, "{comment} bytes");
        }
    }

    #[test]
    fn replaced_rules_are_dropped_after_their_last_reader() {
        let rules = Arc::new(Rules::parse("test", "domain: d\n").unwrap());
        let (reader, left) = (rules.clone(), Arc::downgrade(&rules));
        let dropping = std::thread::spawn(move || drop_when_unused(rules));
        assert!(!dropping.is_finished(), "waits for the reader");
        drop(reader);
        dropping.join().unwrap();
        assert_eq!(left.strong_count(), 0);
    }
}
