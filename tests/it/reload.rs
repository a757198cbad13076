//! Rules follow their files, however the files are changed, and stay where the files are wrong.

#![allow(clippy::unwrap_used, reason = "what a test unwraps, it asserts")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{task::JoinHandle, time};
use tollgate::{
    rules::{ActiveRules, Settings, Watcher},
    time::{Clock, Timestamp},
};

/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);

fn version(number: u64) -> String {
    format!(
        "domain: shop\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: {number}}}}}]\n"
    )
}

/// The number that the rules in force were given by [`version`].
fn in_force(active_rules: &ActiveRules) -> Option<u64> {
    let rules = active_rules.current();
    let rule = rules.as_ref()?.domain("shop")?.rules().next()?;
    Some(rule.displayed_limit.requests_per_unit)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            time::sleep(Duration::from_millis(2)).await;
        }
    };
    time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// A watcher that runs, and the directory it has its files in.
struct Live {
    directory: TempDir,
    active_rules: Arc<ActiveRules>,
    task: JoinHandle<()>,
}

impl Live {
    /// Watches `path` in a directory that `prepare` fills.
    async fn start(path: &str, poll_interval: Duration, prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let settings = Settings { path: directory.path().join(path), poll_interval };
        let active_rules = Arc::new(ActiveRules::default());
        let watcher = Watcher::new(settings, Clock::manual(Timestamp::from_nanos(7)), active_rules.clone());
        let task = tokio::spawn(watcher.run(std::future::pending()));
        let live = Self { directory, active_rules, task };
        until("the first rules", || live.active_rules.status() != Default::default()).await;
        live
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn applies(&self, number: u64, change: &str) {
        until(&format!("{number} by {change}"), || in_force(&self.active_rules) == Some(number)).await;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A watcher that looks when told to.
struct Still {
    directory: TempDir,
    active_rules: Arc<ActiveRules>,
    clock: Clock,
    watcher: Watcher,
}

impl Still {
    async fn start(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (active_rules, clock) =
            (Arc::new(ActiveRules::default()), Clock::manual(Timestamp::from_nanos(7)));
        let path = directory.path().join("limits.yaml");
        fs::write(&path, text).unwrap();
        let mut watcher = Watcher::new(Settings::of(path), clock.clone(), active_rules.clone());
        assert!(watcher.poll().await);
        Self { directory, active_rules, clock, watcher }
    }

    async fn write(&mut self, text: &str) {
        fs::write(self.directory.path().join("limits.yaml"), text).unwrap();
        self.watcher.poll().await;
    }
}

/// What the kubelet does: a new directory with the files, and a link to it that is renamed over the old one.
fn swap_config_map(volume: &Path, number: u64) {
    let fresh = volume.join(format!("..2026_{number}"));
    fs::create_dir(&fresh).unwrap();
    fs::write(fresh.join("limits.yaml"), version(number)).unwrap();
    symlink(fresh.file_name().unwrap(), volume.join("..data_tmp")).unwrap();
    let old = fs::read_link(volume.join("..data"));
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    match old {
        Ok(old) => fs::remove_dir_all(volume.join(old)).unwrap(),
        Err(_) => symlink("..data/limits.yaml", volume.join("limits.yaml")).unwrap(),
    }
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("tmp");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn a_config_map_swapped_100_times_is_applied_each_time() {
    let live = Live::start(".", HOUR, |volume| swap_config_map(volume, 0)).await;
    for number in 1..=100 {
        swap_config_map(live.directory.path(), number);
        live.applies(number, "swap").await;
    }
    assert_eq!(live.active_rules.status().load_errors, 0);
}

#[tokio::test]
async fn a_file_of_a_config_map_is_followed_too() {
    let live = Live::start("limits.yaml", HOUR, |volume| swap_config_map(volume, 0)).await;
    for number in 1..=5 {
        swap_config_map(live.directory.path(), number);
        live.applies(number, "swap").await;
    }
}

/// Changes a file in every way that people and tools do, and waits for each.
async fn every_kind_of_change_is_applied(live: Live) {
    let path = live.path("rules/limits.yaml");
    live.applies(0, "start").await;
    fs::write(&path, version(1)).unwrap();
    live.applies(1, "writing in place").await;
    replace(&path, &version(2));
    live.applies(2, "renaming over it").await;
    fs::remove_file(&path).unwrap();
    fs::write(&path, version(3)).unwrap();
    live.applies(3, "deleting and creating it").await;
    fs::rename(&path, path.with_extension("yaml~")).unwrap();
    fs::write(&path, version(4)).unwrap();
    live.applies(4, "an editor that keeps a backup").await;
    let file = fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, version(5).as_bytes()).unwrap();
    live.applies(5, "an editor that truncates and writes").await;
    fs::write(live.path("elsewhere.yaml"), version(6)).unwrap();
    symlink(live.path("elsewhere.yaml"), live.path("link")).unwrap();
    fs::rename(live.path("link"), &path).unwrap();
    live.applies(6, "a link renamed over it").await;
    fs::remove_file(&path).unwrap();
    until("the loss is noticed", || live.active_rules.status().last_error.is_some()).await;
    assert_eq!(in_force(&live.active_rules), Some(6), "what is lost stays in force");
    fs::write(&path, version(7)).unwrap();
    live.applies(7, "bringing it back").await;
    assert_eq!(live.active_rules.status().last_error, None);
}

fn one_file(directory: &Path) {
    fs::create_dir(directory.join("rules")).unwrap();
    fs::write(directory.join("rules/limits.yaml"), version(0)).unwrap();
}

#[tokio::test]
async fn every_kind_of_change_to_a_watched_file_is_applied_at_its_event() {
    every_kind_of_change_is_applied(Live::start("rules/limits.yaml", HOUR, one_file).await).await;
}

#[tokio::test]
async fn every_kind_of_change_in_a_watched_directory_is_applied_at_its_event() {
    every_kind_of_change_is_applied(Live::start("rules", HOUR, one_file).await).await;
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_followed() {
    let live = Live::start("rules", HOUR, one_file).await;
    for number in 1..=3 {
        fs::create_dir(live.path("next")).unwrap();
        fs::write(live.path("next/limits.yaml"), version(number)).unwrap();
        fs::rename(live.path("rules"), live.path("old")).unwrap();
        fs::rename(live.path("next"), live.path("rules")).unwrap();
        live.applies(number, "another directory").await;
        fs::remove_dir_all(live.path("old")).unwrap();
        fs::write(live.path("rules/limits.yaml"), version(100 + number)).unwrap();
        live.applies(100 + number, "a change in it").await;
    }
}

#[tokio::test]
async fn a_change_without_an_event_is_seen_by_polling() {
    let live = Live::start("rules/limits.yaml", Duration::from_millis(20), |directory| {
        fs::create_dir_all(directory.join("rules")).unwrap();
        fs::create_dir_all(directory.join("far/away")).unwrap();
        fs::write(directory.join("far/away/x.yaml"), version(0)).unwrap();
        symlink(directory.join("far/away/x.yaml"), directory.join("rules/limits.yaml")).unwrap();
    })
    .await;
    fs::write(live.path("far/away/x.yaml"), version(1)).unwrap();
    live.applies(1, "writing where the link leads").await;
}

#[tokio::test]
async fn a_half_written_file_changes_nothing_until_it_is_complete() {
    let live = Live::start("rules", HOUR, one_file).await;
    live.applies(0, "start").await;
    let whole = version(1);
    let half = &whole[..whole.len() / 2];
    fs::write(live.path("rules/limits.yaml"), half).unwrap();
    until("an error", || live.active_rules.status().load_errors == 1).await;
    assert_eq!(in_force(&live.active_rules), Some(0));
    fs::write(live.path("rules/limits.yaml"), &whole).unwrap();
    live.applies(1, "the other half").await;
}

#[tokio::test]
async fn an_emptied_file_keeps_the_old_rules_and_is_one_error() {
    let mut still = Still::start(&version(0)).await;
    still.write("").await;
    for _ in 0..10 {
        assert!(!still.watcher.poll().await);
    }
    let status = still.active_rules.status();
    assert_eq!((in_force(&still.active_rules), status.load_errors, status.generation), (Some(0), 1, 1));
    let problem = status.last_error.unwrap().problems.to_string();
    assert!(
        problem.ends_with("limits.yaml:1:1: the file holds no rules; a rule file has at least a `domain`")
    );
    still.write(&version(1)).await;
    assert_eq!((in_force(&still.active_rules), still.active_rules.status().last_error), (Some(1), None));
}

#[tokio::test]
async fn without_valid_rules_at_the_start_there_are_none_and_the_status_says_where_the_fault_is() {
    let mut still = Still::start("domain: shop\ndescriptors:\n  - kee: a\n").await;
    assert!(still.active_rules.current().is_none());
    let status = still.active_rules.status();
    assert_eq!((status.generation, status.load_errors, status.hash), (0, 1, None));
    let problems = status.last_error.unwrap().problems.to_string();
    assert!(problems.contains("limits.yaml:3:5: unknown key `kee`; did you mean `key`?"), "{problems}");
    still.write(&version(1)).await;
    assert_eq!((in_force(&still.active_rules), still.active_rules.status().generation), (Some(1), 1));
}

#[tokio::test]
async fn a_missing_file_is_loaded_once_it_is_there() {
    let live = Live::start("rules/limits.yaml", Duration::from_millis(20), |_| {}).await;
    assert_eq!(live.active_rules.status().load_errors, 1);
    one_file(live.directory.path());
    live.applies(0, "creating it").await;
}

#[tokio::test]
async fn errors_are_counted_from_0_and_once_for_each_content() {
    let mut still = Still::start(&version(0)).await;
    assert_eq!(still.active_rules.status().load_errors, 0);
    let twice = "domain: shop\ndescriptors: [{key: a}, {key: a}]\n";
    still.write(twice).await;
    still.write(twice).await;
    assert_eq!(still.active_rules.status().load_errors, 1);
    still.write("domain: [").await;
    assert_eq!(still.active_rules.status().load_errors, 2);
}

/// The lines logged while it lives, by this thread.
pub struct Log {
    lines: Arc<Mutex<Vec<u8>>>,
    // While there are several, threads that log nothing cannot declare an event uninteresting for all.
    _other: tracing::Dispatch,
    _guard: tracing::subscriber::DefaultGuard,
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub fn start() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || Lines(writer.clone()));
        let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        tracing::callsite::rebuild_interest_cache();
        Self { lines, _other, _guard }
    }

    pub fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.lines.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn each_content_is_one_line_in_the_log_however_often_it_is_looked_at() {
    let log = Log::start();
    let mut still = Still::start(&version(0)).await;
    let begun = log.take();
    assert!(begun.len() == 1 && begun[0].contains("new rules are active"), "{begun:?}");
    still.write("domain: shop\ndescriptors: [{key: a}, {key: a}, {kez: b}]\n").await;
    for _ in 0..3 {
        still.watcher.poll().await;
    }
    let broken = log.take();
    assert!(
        broken.len() == 1 && broken[0].contains("ERROR") && broken[0].contains("problems=3"),
        "{broken:?}"
    );
    assert!(broken[0].contains("limits.yaml:2:25: `shop.a` is already given"), "{broken:?}");
    still.write(&version(1)).await;
    still.watcher.poll().await;
    let repaired = log.take();
    assert!(repaired.len() == 1 && repaired[0].contains("recovered=true"), "{repaired:?}");
}

#[tokio::test]
async fn content_that_is_as_before_changes_nothing_but_an_error() {
    let mut still = Still::start(&version(0)).await;
    let before = still.active_rules.status();
    still.clock.set(Timestamp::from_nanos(9));
    still.write(&version(0)).await;
    assert_eq!(still.active_rules.status(), before);
    still.write("broken: [").await;
    assert!(still.active_rules.status().last_error.is_some());
    still.write(&version(0)).await;
    let after = still.active_rules.status();
    assert_eq!((after.last_error, after.generation, after.loaded_at), (None, 1, before.loaded_at));
}

#[tokio::test]
async fn a_day_without_any_event_leaves_the_rules_in_force() {
    let mut still = Still::start(&version(0)).await;
    let before = still.active_rules.status();
    still.clock.set(Timestamp::EPOCH.plus(24 * HOUR.as_nanos() as u64));
    assert!(!still.watcher.poll().await);
    assert_eq!((still.active_rules.status(), in_force(&still.active_rules)), (before, Some(0)));
}

#[tokio::test]
async fn a_value_that_reads_like_a_boolean_is_text() {
    let text =
        "domain: shop\ndescriptors: [{key: a, value: true, rate_limit: {unit: day, requests_per_unit: 3}}]\n";
    let still = Still::start(text).await;
    let rules = still.active_rules.current();
    let path =
        rules.as_ref().unwrap().domains().flat_map(|domain| domain.rules()).next().unwrap().path.clone();
    assert_eq!(path, "shop.a_true");
}

#[tokio::test]
async fn the_watcher_ends_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    one_file(directory.path());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let settings = Settings::of(directory.path().join("rules"));
    let watcher = Watcher::new(settings, Clock::manual(Timestamp::EPOCH), Arc::new(ActiveRules::default()));
    let task = tokio::spawn(watcher.run(async move { stopped.await.unwrap_or_default() }));
    stop.send(()).unwrap();
    time::timeout(PATIENCE, task).await.unwrap().unwrap();
}
