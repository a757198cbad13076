//! Keeps the rules in force up to date with their files.
//!
//! What the files hold is compared every few seconds; that is the truth. Events of the file system only make it
//! look sooner: they are lost where a watched file is replaced, and never come for what a link leads to.

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

/// How long files must stay as they are before they count as written.
const SETTLE: Duration = Duration::from_millis(50);
/// How often in a row files are read to see whether they settle.
const SETTLE_READS_MAX: usize = 20;
/// How often it is looked whether anybody still reads rules that are no longer in force, and with which pauses:
/// longer than any request takes that asks another replica.
const DROP_TRIES_MAX: usize = 200;
const DROP_PAUSE: Duration = Duration::from_millis(5);
/// Files of so many bytes in all are read and compiled in a millisecond or two.
const BYTES_AT_ONCE: usize = 64 * 1024;
/// How many problems one line of the log lists.
const LOGGED_MAX: usize = 20;

/// Where the rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A rule file, or a directory of rule files.
    pub path: PathBuf,
    /// How often the files are compared with what is in force; at most 20 times a second.
    pub poll_interval: Duration,
}

impl Settings {
    /// The interval unless another is asked for.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(3);

    /// The rules under `path`, compared every 3 seconds.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll_interval: Self::POLL_INTERVAL }
    }
}

/// Loads the rules and replaces them when their files change.
#[derive(Debug)]
pub struct Watcher {
    settings: Settings,
    clock: Clock,
    active_rules: Arc<ActiveRules>,
    // What was compiled last, and what is in force, by their fingerprints.
    seen: Option<u128>,
    in_force: Option<u128>,
    // How much the files held when they were last new.
    bytes: usize,
}

impl Watcher {
    /// A watcher that keeps `active_rules` up to date.
    pub fn new(settings: Settings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        Self { settings, clock, active_rules, seen: None, in_force: None, bytes: 0 }
    }

    /// Watches until `shutdown` is ready.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let watch = async {
            let mut events = FileEvents::watching(&self.settings.path);
            self.warn_of_individual_mounts().await;
            if let Err(error) = &events.watcher {
                warn!(path = %self.settings.path.display(), %error, "no file events; rules are only polled");
            }
            loop {
                if self.poll().await {
                    // The directory may be another one now. What happened before it is watched is seen by
                    // looking once more.
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

    /// Compares the files with what is in force, and loads them where they changed. Says whether they did.
    pub async fn poll(&mut self) -> bool {
        let Some((files, fingerprint)) = self.settled().await else { return false };
        (self.seen, self.bytes) = (Some(fingerprint), files.bytes());
        if self.in_force == Some(fingerprint) {
            self.active_rules.recover();
            info!(path = %self.settings.path.display(), "the rule files are as they were; their rules are still in force");
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
            Some(Ok(before)) => {
                self.in_force = Some(fingerprint);
                self.log_loaded(recovered);
                run_in_background_once(priority, move || before.map(drop_unread)).await;
            }
            Some(Err(problems)) => self.reject(problems),
            // Only a panic or the end of the runtime leads here; the next look tries again.
            None => self.seen = None,
        }
        true
    }

    /// Whoever is answered is not to wait for work on large files. What is done in a moment does not wait itself.
    fn priority(&self) -> Priority {
        if BYTES_AT_ONCE < self.bytes && self.active_rules.current().is_some() {
            Priority::Idle
        } else {
            Priority::Normal
        }
    }

    /// What the files hold, and its fingerprint, if it is new and stays so for a moment: a file may be half written.
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

    /// What the files hold now, and its fingerprint, which is known where it is the same as `before`.
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
            warn!(%path, warnings = rules.warnings().len(), list, "the rules may not say what is meant");
        }
        let (hash, number) = (rules.hash(), rules.len());
        info!(%path, generation, hash, rules = number, recovered, "new rules are in force");
    }

    fn reject(&self, problems: Problems) {
        let path = self.settings.path.display();
        let (number, list) = (problems.len(), listed(problems.iter()));
        match self.active_rules.status().hash {
            Some(hash) => {
                error!(%path, problems = number, list, hash, "the rules cannot be loaded; the old ones stay")
            }
            None => {
                error!(%path, problems = number, list, "the rules cannot be loaded; there are none in force")
            }
        }
        self.active_rules.fail(Arc::new(problems), self.clock.now());
    }

    /// Warns of files that cannot change while this process runs.
    async fn warn_of_individual_mounts(&self) {
        let Some((files, _)) = self.read(None).await else { return };
        let files: Vec<PathBuf> = files.sources.iter().map(|source| PathBuf::from(&*source.path)).collect();
        let mounts =
            run_in_background(self.priority(), || std::fs::read_to_string("/proc/self/mountinfo").ok())
                .await
                .flatten();
        for path in mount::individually_mounted(&mounts.unwrap_or_default(), &files) {
            let hint = "mount the whole volume instead of a subPath of it";
            warn!(path = %path.display(), hint, "this rule file is mounted alone, so changes of it will not be seen");
        }
    }
}

/// Drops rules that are no longer in force once nobody reads them: to drop many takes a while, and a caller that
/// was the last to read them would have to.
fn drop_unread(rules: Arc<Rules>) {
    for _ in 0..DROP_TRIES_MAX {
        if Arc::strong_count(&rules) == 1 {
            break;
        }
        std::thread::sleep(DROP_PAUSE);
    }
}

/// The first few, for one line of the log.
fn listed<'p>(problems: impl Iterator<Item = &'p Problem>) -> String {
    problems.take(LOGGED_MAX).map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Rings when something happens beside the rule files.
struct FileEvents {
    changed: Arc<Notify>,
    // Held, because dropping it ends the events.
    watcher: notify::Result<RecommendedWatcher>,
}

impl FileEvents {
    /// Watches the directory of a file; of a directory also the one above, where it may be replaced.
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
                // Not every process may read the directory above; then a replaced one is found by polling.
                watcher.watch(parent, RecursiveMode::NonRecursive).ok();
            }
            Ok(watcher)
        });
        Self { changed, watcher }
    }

    /// Waits until it rings, at most `time_max`.
    async fn wait(&self, time_max: Duration) {
        tokio::select! {
            () = self.changed.notified() => {
                // Events come in bunches; so a busy directory is looked at a few times a second at most.
                sleep(SETTLE).await;
            }
            () = sleep(time_max.max(SETTLE)) => {}
        }
    }
}

/// What an alarm is about.
struct EventFilter {
    path: PathBuf,
    is_directory: bool,
}

impl EventFilter {
    /// Whether an event may mean other rules. Of a file everything beside it counts: it may be a link.
    fn matches(&self, event: &notify::Event) -> bool {
        // Our own reads raise events of access.
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
    async fn work_on_large_files_gives_way_once_rules_are_in_force() {
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
    fn rules_that_somebody_reads_are_not_left_to_him() {
        let rules = Arc::new(Rules::parse("test", "domain: d\n").unwrap());
        let (reader, left) = (rules.clone(), Arc::downgrade(&rules));
        let dropping = std::thread::spawn(move || drop_unread(rules));
        assert!(!dropping.is_finished(), "it waits for the reader");
        drop(reader);
        dropping.join().unwrap();
        assert_eq!(left.strong_count(), 0);
    }
}
