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
        Book, Problem, Problems, Rules,
        aside::{Way, aside, aside_once},
        mount,
        source::{self, Reading},
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
    book: Arc<Book>,
    // What was compiled last, and what is in force, by their fingerprints.
    seen: Option<u128>,
    in_force: Option<u128>,
    // How much the files held when they were last new.
    bytes: usize,
}

impl Watcher {
    /// A watcher that keeps `book` up to date.
    pub fn new(settings: Settings, clock: Clock, book: Arc<Book>) -> Self {
        Self { settings, clock, book, seen: None, in_force: None, bytes: 0 }
    }

    /// Watches until `shutdown` is ready.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let watch = async {
            let mut alarm = Alarm::watching(&self.settings.path);
            self.warn_of_mounts().await;
            if let Err(error) = &alarm.watcher {
                warn!(path = %self.settings.path.display(), %error, "no file events; rules are only polled");
            }
            loop {
                if self.look().await {
                    // The directory may be another one now. What happened before it is watched is seen by
                    // looking once more.
                    alarm = Alarm::watching(&self.settings.path);
                    continue;
                }
                if alarm.watcher.is_err() {
                    alarm = Alarm::watching(&self.settings.path);
                }
                alarm.wait(self.settings.poll_interval).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = watch => {}
        }
    }

    /// Compares the files with what is in force, and loads them where they changed. Says whether they did.
    pub async fn look(&mut self) -> bool {
        let Some((reading, fingerprint)) = self.settled().await else { return false };
        (self.seen, self.bytes) = (Some(fingerprint), reading.bytes());
        if self.in_force == Some(fingerprint) {
            self.book.recover();
            info!(path = %self.settings.path.display(), "the rule files are as they were; their rules are still in force");
            return true;
        }
        let (book, clock, recovered) =
            (self.book.clone(), self.clock.clone(), self.book.status().last_error.is_some());
        let way = self.way();
        let compiled = match aside(way, move || reading.compile()).await {
            Some(Ok(rules)) => aside_once(way, move || book.replace(rules, clock.now())).await.map(Ok),
            Some(Err(problems)) => Some(Err(problems)),
            None => None,
        };
        match compiled {
            Some(Ok(before)) => {
                self.in_force = Some(fingerprint);
                self.tell_of_new(recovered);
                aside_once(way, move || before.map(drop_unread)).await;
            }
            Some(Err(problems)) => self.refuse(problems),
            // Only a panic or the end of the runtime leads here; the next look tries again.
            None => self.seen = None,
        }
        true
    }

    /// Whoever is answered is not to wait for work on large files. What is done in a moment does not wait itself.
    fn way(&self) -> Way {
        if BYTES_AT_ONCE < self.bytes && self.book.snapshot().is_some() { Way::Given } else { Way::Kept }
    }

    /// What the files hold, and its fingerprint, if it is new and stays so for a moment: a file may be half written.
    async fn settled(&self) -> Option<(Reading, u128)> {
        let (mut before, mut fingerprint) = self.read(None).await?;
        for _ in 0..SETTLE_READS_MAX {
            if self.seen == Some(fingerprint) {
                return None;
            }
            sleep(SETTLE).await;
            let (reading, next) = self.read(Some((before, fingerprint))).await?;
            if next == fingerprint {
                return Some((reading, fingerprint));
            }
            (before, fingerprint) = (reading, next);
        }
        None
    }

    /// What the files hold now, and its fingerprint, which is known where it is the same as `before`.
    async fn read(&self, before: Option<(Reading, u128)>) -> Option<(Reading, u128)> {
        let path = self.settings.path.clone();
        let read = move || {
            let reading = source::read(&path);
            let known = before.as_ref().filter(|(before, _)| *before == reading);
            let fingerprint = known.map_or_else(|| reading.fingerprint(), |(_, fingerprint)| *fingerprint);
            (reading, fingerprint)
        };
        aside(self.way(), read).await
    }

    fn tell_of_new(&self, recovered: bool) {
        let path = self.settings.path.display();
        let (rules, generation) = (self.book.snapshot(), self.book.status().generation);
        let Some(rules) = &*rules else { return };
        if !rules.warnings().is_empty() {
            let list = listed(rules.warnings().iter());
            warn!(%path, warnings = rules.warnings().len(), list, "the rules may not say what is meant");
        }
        let (hash, number) = (rules.hash(), rules.len());
        info!(%path, generation, hash, rules = number, recovered, "new rules are in force");
    }

    fn refuse(&self, problems: Problems) {
        let path = self.settings.path.display();
        let (number, list) = (problems.len(), listed(problems.iter()));
        match self.book.status().hash {
            Some(hash) => {
                error!(%path, problems = number, list, hash, "the rules cannot be loaded; the old ones stay")
            }
            None => {
                error!(%path, problems = number, list, "the rules cannot be loaded; there are none in force")
            }
        }
        self.book.fail(Arc::new(problems), self.clock.now());
    }

    /// Warns of files that cannot change while this process runs.
    async fn warn_of_mounts(&self) {
        let Some((reading, _)) = self.read(None).await else { return };
        let files: Vec<PathBuf> = reading.sources.iter().map(|source| PathBuf::from(&*source.path)).collect();
        let mounts =
            aside(self.way(), || std::fs::read_to_string("/proc/self/mountinfo").ok()).await.flatten();
        for path in mount::mounted_alone(&mounts.unwrap_or_default(), &files) {
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
struct Alarm {
    rung: Arc<Notify>,
    // Held, because dropping it ends the events.
    watcher: notify::Result<RecommendedWatcher>,
}

impl Alarm {
    /// Watches the directory of a file; of a directory also the one above, where it may be replaced.
    fn watching(path: &Path) -> Self {
        let rung = Arc::new(Notify::new());
        let (bell, watched) = (rung.clone(), Watched { path: path.to_owned(), is_directory: path.is_dir() });
        let is_directory = watched.is_directory;
        let ring = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| watched.concerns(&event)) {
                bell.notify_one();
            }
        };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watcher = notify::recommended_watcher(ring).and_then(|mut watcher| {
            let nearest = if is_directory { path } else { above };
            watcher.watch(nearest, RecursiveMode::NonRecursive)?;
            if is_directory {
                // Not every process may read the directory above; then a replaced one is found by polling.
                watcher.watch(above, RecursiveMode::NonRecursive).ok();
            }
            Ok(watcher)
        });
        Self { rung, watcher }
    }

    /// Waits until it rings, at most `most`.
    async fn wait(&self, most: Duration) {
        tokio::select! {
            () = self.rung.notified() => {
                // Events come in bunches; so a busy directory is looked at a few times a second at most.
                sleep(SETTLE).await;
            }
            () = sleep(most.max(SETTLE)) => {}
        }
    }
}

/// What an alarm is about.
struct Watched {
    path: PathBuf,
    is_directory: bool,
}

impl Watched {
    /// Whether an event may mean other rules. Of a file everything beside it counts: it may be a link.
    fn concerns(&self, event: &notify::Event) -> bool {
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
        let (file, book) = (tempfile::NamedTempFile::new().unwrap(), Arc::new(Book::default()));
        let mut watcher =
            Watcher::new(Settings::of(file.path()), Clock::manual(crate::time::Timestamp::EPOCH), book);
        for (comment, before, after) in [(BYTES_AT_ONCE, Way::Kept, Way::Given), (0, Way::Given, Way::Kept)] {
            assert_eq!(watcher.way(), before);
            let text = format!("domain: d\n#{}\n", "-".repeat(comment));
            std::fs::write(file.path(), text).unwrap();
            assert!(watcher.look().await);
            assert_eq!(watcher.way(), after, "{comment} bytes");
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
