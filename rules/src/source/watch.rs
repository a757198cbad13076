//! Reloads the rules when their files change, and warns of files that are mounted individually, which never change.
//!
//! Kubernetes updates the files of a volume through a symbolic link in their directory. A file mounted individually
//! (`subPath`) keeps the content that it had when the container started.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinHandle;
use tollgate_counter::time::Clock;
use tracing::warn;

use crate::{
    active_rules::{ActiveRules, PreparedRules},
    background::run_in_background,
    contents::Contents,
    diagnostics::Problems,
    file_watch::{FileComparison, FileWatch, WatchedFiles},
    loader::RuleLoader,
    source::{self, FileSettings, file_events::FileEvents},
};

/// Loads the rules and reloads them when their files change.
#[derive(Debug)]
pub struct Watcher {
    watch: FileWatch<RuleFiles>,
    poll_interval: Duration,
}

/// What a compilation yields; `None` if it was not finished.
type Compiled = Option<Result<PreparedRules, Problems>>;

/// The rule files.
#[derive(Debug)]
struct RuleFiles {
    path: PathBuf,
    loader: RuleLoader,
    // `None` until the files are followed.
    events: Option<FileEvents>,
    // A file that cannot change while the process runs, if there is one.
    individual_mount: Option<PathBuf>,
    // Contents that are compiled while it is not known yet whether they stay.
    ahead: Option<(Arc<Contents>, JoinHandle<Compiled>)>,
    // The fingerprint of what was last compiled ahead.
    last_ahead: Option<u128>,
}

impl Watcher {
    /// A watcher that updates `active_rules`.
    pub fn new(settings: FileSettings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        let FileSettings { path, poll_interval } = settings;
        let loader = RuleLoader::new(path.display().to_string(), clock, active_rules);
        let files =
            RuleFiles { path, loader, events: None, individual_mount: None, ahead: None, last_ahead: None };
        Self { watch: FileWatch::new(files), poll_interval }
    }

    /// Loads the rules and reloads them, for as long as it is polled.
    pub async fn run(mut self) {
        let files = &mut self.watch.files;
        let events = FileEvents::watching(&files.path);
        files.warn_of_individual_mounts().await;
        if let Some(error) = events.error() {
            warn!(path = %files.path.display(), %error, "no file events; rules are only polled");
        }
        files.events = Some(events);
        files.report_unseen_changes();
        self.watch.run(self.poll_interval).await;
    }

    /// Compares the files with the active rules and loads them on a change. Returns whether they changed.
    pub async fn poll(&mut self) -> bool {
        self.watch.compare().await == FileComparison::Changed
    }
}

impl WatchedFiles for RuleFiles {
    type Contents = Arc<Contents>;
    type Error = Arc<Problems>;

    async fn wait(&mut self, last: FileComparison, poll_interval: Duration) {
        self.ahead = None;
        self.loader.begin();
        if let Some(events) = &mut self.events {
            events.wait(last, poll_interval).await;
        }
        self.report_unseen_changes();
    }

    async fn read(&mut self) -> Option<(Arc<Contents>, u128)> {
        let path = self.path.clone();
        let read = move || {
            let files = source::read(&path);
            let fingerprint = files.fingerprint();
            (Arc::new(files), fingerprint)
        };
        let ((contents, fingerprint), priority) = run_in_background(self.loader.priority(), read).await?;
        self.loader.step_ran_at(priority);
        self.compile_ahead(&contents, fingerprint);
        Some((contents, fingerprint))
    }

    async fn load(&mut self, contents: Arc<Contents>) -> Option<Result<(), Arc<Problems>>> {
        let ahead = self.ahead.take().filter(|(ahead, _)| *ahead == contents);
        let compiled = match ahead {
            Some((_, compiled)) => compiled.await.ok()?,
            None => self.loader.compile(contents).await,
        };
        Some(self.loader.activate(compiled?, None))
    }

    fn recovered(&mut self) {
        self.loader.recover(None);
    }
}

impl RuleFiles {
    /// Begins to compile contents before it is known whether they stay, once for each, and one at a time.
    fn compile_ahead(&mut self, contents: &Arc<Contents>, fingerprint: u128) {
        let is_busy = self.ahead.as_ref().is_some_and(|(_, compiled)| !compiled.is_finished());
        if is_busy || self.last_ahead.replace(fingerprint) == Some(fingerprint) {
            return;
        }
        let compiled = tokio::spawn(self.loader.compile(contents.clone()));
        self.ahead = Some((contents.clone(), compiled));
    }

    /// Warns about files that cannot change while this process runs.
    async fn warn_of_individual_mounts(&mut self) {
        let Some((files, _)) = self.read().await else { return };
        let files: Vec<PathBuf> = files.sources.iter().map(|source| PathBuf::from(source.path())).collect();
        let mounts = run_in_background(self.loader.priority(), || {
            std::fs::read_to_string("/proc/self/mountinfo").ok()
        })
        .await
        .and_then(|(mounts, _)| mounts);
        for path in individually_mounted(&mounts.unwrap_or_default(), &files) {
            let hint = "mount the whole volume instead of a subPath of it";
            warn!(path = %path.display(), hint, "this rule file is a mount of its own; changes to it cannot be seen");
            self.individual_mount = Some(path.to_owned());
        }
    }

    /// Tells operators of the state of the watch.
    fn report_unseen_changes(&self) {
        let mounted = self.individual_mount.as_ref();
        let mounted = mounted.map(|path| format!("{} is a mount of its own", path.display()));
        let no_events = || {
            let error = self.events.as_ref()?.error()?;
            Some(format!("there are no file events for {}: {error}", self.path.display()))
        };
        self.loader.set_unseen_changes(mounted.or_else(no_events));
    }
}

/// The `files` that are mount points, given the text of `/proc/self/mountinfo`.
pub(crate) fn individually_mounted<'f>(mountinfo: &str, files: &'f [PathBuf]) -> Vec<&'f Path> {
    let mounts: Vec<PathBuf> = mountinfo.lines().filter_map(mount_point).collect();
    let is_mount = |file: &&PathBuf| std::path::absolute(file).is_ok_and(|file| mounts.contains(&file));
    files.iter().filter(is_mount).map(PathBuf::as_path).collect()
}

/// The fifth field of a line, in which special characters such as spaces are escaped as three octal digits.
fn mount_point(line: &str) -> Option<PathBuf> {
    let field = line.split(' ').nth(4)?;
    let mut pieces = field.split('\\');
    let mut point = pieces.next()?.to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(3)?;
        point.push(char::from(u8::from_str_radix(code, 8).ok()?));
        point.push_str(rest);
    }
    Some(point.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::BackgroundPriority;

    #[tokio::test]
    async fn large_files_get_idle_priority_once_rules_are_active() {
        let (file, active_rules) =
            (tempfile::NamedTempFile::new().unwrap(), Arc::new(ActiveRules::default()));
        let mut watcher = Watcher::new(
            FileSettings::new(file.path()),
            Clock::manual(tollgate_counter::time::Timestamp::EPOCH),
            active_rules,
        );
        for (comment, before, after) in [
            (64 * 1024, BackgroundPriority::Normal, BackgroundPriority::Idle),
            (0, BackgroundPriority::Idle, BackgroundPriority::Normal),
        ] {
            assert_eq!(watcher.watch.files.loader.priority(), before);
            let text = format!("domain: d\n#{}\n", "-".repeat(comment));
            std::fs::write(file.path(), text).unwrap();
            assert!(watcher.poll().await);
            assert_eq!(watcher.watch.files.loader.priority(), after, "{comment} bytes");
        }
    }

    #[tokio::test]
    async fn load_looks_for_an_idle_core_until_a_step_finds_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("domain: d\n#{}\n", "-".repeat(64 * 1024))).unwrap();
        let clock = Clock::manual(tollgate_counter::time::Timestamp::EPOCH);
        let mut watcher = Watcher::new(FileSettings::new(file.path()), clock, Arc::default());
        assert!(watcher.poll().await);
        let files = &mut watcher.watch.files;
        for (ran_at, next) in [
            (BackgroundPriority::Idle, BackgroundPriority::Idle),
            (BackgroundPriority::Normal, BackgroundPriority::Normal),
        ] {
            files.loader.step_ran_at(ran_at);
            assert_eq!(files.loader.priority(), next);
        }
        files.loader.step_ran_at(BackgroundPriority::Normal);
        assert_eq!(files.loader.priority(), BackgroundPriority::Normal);
        files.loader.begin();
        assert_eq!(files.loader.priority(), BackgroundPriority::Idle);
    }

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
31 22 8:1 /pods/1/volume-subpaths/rules/app/0 /etc/tollgate/limits.yaml ro,relatime - ext4 /dev/sda1 rw
32 22 8:1 /pods/1/volumes/rules /etc/rules ro,relatime - ext4 /dev/sda1 rw
33 22 8:1 /x /etc/with\\040space.yaml ro - ext4 /dev/sda1 rw
";

    #[test]
    fn individually_mounted_file_is_told_from_file_in_mounted_directory() {
        let files = ["/etc/tollgate/limits.yaml", "/etc/rules/limits.yaml", "/etc/with space.yaml"]
            .map(PathBuf::from);
        assert_eq!(individually_mounted(MOUNTS, &files), [files[0].as_path(), files[2].as_path()]);
    }
}
