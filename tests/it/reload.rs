//! Rules follow every kind of change of their files, and stay active if a file is invalid.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;
use tokio::{task::JoinHandle, time};
use tollgate_counter::time::{Clock, Timestamp};
use tollgate_rules::{ActiveRules, FileSettings, Watcher};

use crate::log::Log;

/// Longer than any awaited condition takes.
const TIMEOUT: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);

fn version(number: u64) -> String {
    format!(
        "domain: shop\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: {number}}}}}]\n"
    )
}

/// The number that [`version`] gave to the active rules.
fn active_limit(active_rules: &ActiveRules) -> Option<u64> {
    let rules = active_rules.current();
    let rule = rules.rules()?.domain("shop")?.rules().next()?;
    Some(rule.displayed_limit.requests_per_unit)
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            time::sleep(Duration::from_millis(2)).await;
        }
    };
    time::timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

/// A running watcher, and the directory of its files.
struct RunningWatcher {
    directory: TempDir,
    active_rules: Arc<ActiveRules>,
    task: JoinHandle<()>,
}

impl RunningWatcher {
    /// Watches `path` in a directory that `prepare` fills.
    async fn start(path: &str, poll_interval: Duration, prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let settings = FileSettings { path: directory.path().join(path), poll_interval };
        let active_rules = Arc::new(ActiveRules::default());
        let watcher = Watcher::new(settings, Clock::manual(Timestamp::from_nanos(7)), active_rules.clone());
        let task = tokio::spawn(watcher.run());
        let running = Self { directory, active_rules, task };
        let is_tried = || {
            let status = running.active_rules.status();
            status.generation > 0 || status.load_errors > 0
        };
        wait_for("the first rules", is_tried).await;
        running
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn expect_limit(&self, number: u64, change: &str) {
        wait_for(&format!("{number} by {change}"), || active_limit(&self.active_rules) == Some(number)).await;
    }
}

impl Drop for RunningWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A watcher that reads its files only when the test calls it.
struct ManualWatcher {
    directory: TempDir,
    active_rules: Arc<ActiveRules>,
    clock: Clock,
    watcher: Watcher,
}

impl ManualWatcher {
    async fn start(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (active_rules, clock) =
            (Arc::new(ActiveRules::default()), Clock::manual(Timestamp::from_nanos(7)));
        let path = directory.path().join("limits.yaml");
        fs::write(&path, text).unwrap();
        let mut watcher = Watcher::new(FileSettings::new(path), clock.clone(), active_rules.clone());
        assert!(watcher.poll().await);
        Self { directory, active_rules, clock, watcher }
    }

    async fn write(&mut self, text: &str) {
        fs::write(self.directory.path().join("limits.yaml"), text).unwrap();
        self.watcher.poll().await;
    }
}

/// Updates a volume like the kubelet: writes a new directory and renames a link to it over the old link.
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
async fn config_map_swapped_100_times_is_applied_each_time() {
    let running = RunningWatcher::start(".", HOUR, |volume| swap_config_map(volume, 0)).await;
    for number in 1..=100 {
        swap_config_map(running.directory.path(), number);
        running.expect_limit(number, "swap").await;
    }
    assert_eq!(running.active_rules.status().load_errors, 0);
}

#[tokio::test]
async fn single_file_of_config_map_is_followed() {
    let running = RunningWatcher::start("limits.yaml", HOUR, |volume| swap_config_map(volume, 0)).await;
    for number in 1..=5 {
        swap_config_map(running.directory.path(), number);
        running.expect_limit(number, "swap").await;
    }
}

/// Changes a file in every way that editors and tools use, and waits for each change.
async fn every_kind_of_change_is_applied(running: RunningWatcher) {
    let path = running.path("rules/limits.yaml");
    running.expect_limit(0, "start").await;
    fs::write(&path, version(1)).unwrap();
    running.expect_limit(1, "writing in place").await;
    replace(&path, &version(2));
    running.expect_limit(2, "renaming over it").await;
    fs::remove_file(&path).unwrap();
    fs::write(&path, version(3)).unwrap();
    running.expect_limit(3, "deleting and creating it").await;
    fs::rename(&path, path.with_extension("yaml~")).unwrap();
    fs::write(&path, version(4)).unwrap();
    running.expect_limit(4, "an editor that keeps a backup").await;
    let file = fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, version(5).as_bytes()).unwrap();
    running.expect_limit(5, "an editor that truncates and writes").await;
    fs::write(running.path("elsewhere.yaml"), version(6)).unwrap();
    symlink(running.path("elsewhere.yaml"), running.path("link")).unwrap();
    fs::rename(running.path("link"), &path).unwrap();
    running.expect_limit(6, "a link renamed over it").await;
    fs::remove_file(&path).unwrap();
    wait_for("the loss is noticed", || running.active_rules.status().last_error.is_some()).await;
    assert_eq!(active_limit(&running.active_rules), Some(6), "the rules of a removed file stay active");
    fs::write(&path, version(7)).unwrap();
    running.expect_limit(7, "bringing it back").await;
    assert_eq!(running.active_rules.status().last_error, None);
}

fn one_file(directory: &Path) {
    fs::create_dir(directory.join("rules")).unwrap();
    fs::write(directory.join("rules/limits.yaml"), version(0)).unwrap();
}

#[tokio::test]
async fn every_kind_of_change_to_watched_file_is_applied() {
    every_kind_of_change_is_applied(RunningWatcher::start("rules/limits.yaml", HOUR, one_file).await).await;
}

#[tokio::test]
async fn every_kind_of_change_in_watched_directory_is_applied() {
    every_kind_of_change_is_applied(RunningWatcher::start("rules", HOUR, one_file).await).await;
}

#[tokio::test]
async fn replaced_directory_is_followed() {
    let running = RunningWatcher::start("rules", HOUR, one_file).await;
    for number in 1..=3 {
        fs::create_dir(running.path("next")).unwrap();
        fs::write(running.path("next/limits.yaml"), version(number)).unwrap();
        fs::rename(running.path("rules"), running.path("old")).unwrap();
        fs::rename(running.path("next"), running.path("rules")).unwrap();
        running.expect_limit(number, "another directory").await;
        fs::remove_dir_all(running.path("old")).unwrap();
        fs::write(running.path("rules/limits.yaml"), version(100 + number)).unwrap();
        running.expect_limit(100 + number, "a change in it").await;
    }
}

#[tokio::test]
async fn change_without_event_is_found_by_polling() {
    let running = RunningWatcher::start("rules/limits.yaml", Duration::from_millis(20), |directory| {
        fs::create_dir_all(directory.join("rules")).unwrap();
        fs::create_dir_all(directory.join("far/away")).unwrap();
        fs::write(directory.join("far/away/x.yaml"), version(0)).unwrap();
        symlink(directory.join("far/away/x.yaml"), directory.join("rules/limits.yaml")).unwrap();
    })
    .await;
    fs::write(running.path("far/away/x.yaml"), version(1)).unwrap();
    running.expect_limit(1, "writing where the link leads").await;
}

#[tokio::test]
async fn half_written_file_keeps_old_rules_until_complete() {
    let running = RunningWatcher::start("rules", HOUR, one_file).await;
    running.expect_limit(0, "start").await;
    let whole = version(1);
    let half = &whole[..whole.len() / 2];
    fs::write(running.path("rules/limits.yaml"), half).unwrap();
    wait_for("an error", || running.active_rules.status().load_errors == 1).await;
    assert_eq!(active_limit(&running.active_rules), Some(0));
    fs::write(running.path("rules/limits.yaml"), &whole).unwrap();
    running.expect_limit(1, "the other half").await;
}

#[tokio::test]
async fn emptied_file_keeps_old_rules_and_counts_one_error() {
    let mut manual = ManualWatcher::start(&version(0)).await;
    manual.write("").await;
    for _ in 0..10 {
        assert!(!manual.watcher.poll().await);
    }
    let status = manual.active_rules.status();
    assert_eq!((active_limit(&manual.active_rules), status.load_errors, status.generation), (Some(0), 1, 1));
    let problem = status.last_error.unwrap().problems.to_string();
    assert!(
        problem.ends_with("limits.yaml:1:1: the file holds no rules; a rule file has at least a `domain`")
    );
    manual.write(&version(1)).await;
    assert_eq!(
        (active_limit(&manual.active_rules), manual.active_rules.status().last_error),
        (Some(1), None)
    );
}

#[tokio::test]
async fn invalid_rules_at_start_leave_none_and_status_has_location() {
    let mut manual = ManualWatcher::start("domain: shop\ndescriptors:\n  - kee: a\n").await;
    assert!(manual.active_rules.current().rules().is_none());
    let status = manual.active_rules.status();
    assert_eq!((status.generation, status.load_errors, status.hash), (0, 1, None));
    let problems = status.last_error.unwrap().problems.to_string();
    assert!(problems.contains("limits.yaml:3:5: unknown key `kee`; did you mean `key`?"), "{problems}");
    manual.write(&version(1)).await;
    assert_eq!((active_limit(&manual.active_rules), manual.active_rules.status().generation), (Some(1), 1));
}

#[tokio::test]
async fn missing_file_is_loaded_once_it_exists() {
    let running = RunningWatcher::start("rules/limits.yaml", Duration::from_millis(20), |_| {}).await;
    assert_eq!(running.active_rules.status().load_errors, 1);
    one_file(running.directory.path());
    running.expect_limit(0, "creating it").await;
}

#[tokio::test]
async fn load_errors_are_counted_once_per_content() {
    let mut manual = ManualWatcher::start(&version(0)).await;
    assert_eq!(manual.active_rules.status().load_errors, 0);
    let twice = "domain: shop\ndescriptors: [{key: a}, {key: a}]\n";
    manual.write(twice).await;
    manual.write(twice).await;
    assert_eq!(manual.active_rules.status().load_errors, 1);
    manual.write("domain: [").await;
    assert_eq!(manual.active_rules.status().load_errors, 2);
}

#[tokio::test]
async fn each_file_content_is_logged_once() {
    let log = Log::text();
    let mut manual = ManualWatcher::start(&version(0)).await;
    let begun = log.take();
    assert!(begun.len() == 1 && begun[0].contains("new rules are active"), "{begun:?}");
    manual.write("domain: shop\ndescriptors: [{key: a}, {key: a}, {kez: b}]\n").await;
    for _ in 0..3 {
        manual.watcher.poll().await;
    }
    let broken = log.take();
    assert!(
        broken.len() == 1 && broken[0].contains("ERROR") && broken[0].contains("problems=3"),
        "{broken:?}"
    );
    assert!(broken[0].contains("limits.yaml:2:25: `shop.a` is already given"), "{broken:?}");
    manual.write(&version(1)).await;
    manual.watcher.poll().await;
    let repaired = log.take();
    assert!(repaired.len() == 1 && repaired[0].contains("recovered=true"), "{repaired:?}");
}

#[tokio::test]
async fn problems_at_the_start_are_logged_one_a_line_as_check_prints_them() {
    let log = Log::text();
    let manual = ManualWatcher::start("domain: shop\ndescriptors: [{key: a}, {key: a}, {kez: b}]\n").await;
    let lines = log.take();
    let problems = manual.active_rules.status().last_error.unwrap().problems;
    assert!(lines[0].contains("cannot load the rules; no rules are active"), "{lines:?}");
    assert_eq!((lines.len(), problems.len()), (4, 3));
    for (line, problem) in lines[1..].iter().zip(problems.iter()) {
        assert!(line.contains(&problem.to_string()), "{line}");
    }
}

#[tokio::test]
async fn unchanged_content_only_clears_an_error() {
    let mut manual = ManualWatcher::start(&version(0)).await;
    let before = manual.active_rules.status();
    manual.clock.set(Timestamp::from_nanos(9));
    manual.write(&version(0)).await;
    assert_eq!(manual.active_rules.status(), before);
    manual.write("broken: [").await;
    assert!(manual.active_rules.status().last_error.is_some());
    manual.write(&version(0)).await;
    let after = manual.active_rules.status();
    assert_eq!((after.last_error, after.generation, after.loaded_at), (None, 1, before.loaded_at));
}

#[tokio::test]
async fn day_without_events_keeps_rules_active() {
    let mut manual = ManualWatcher::start(&version(0)).await;
    let before = manual.active_rules.status();
    manual.clock.set(Timestamp::EPOCH.plus(24 * HOUR.as_nanos() as u64));
    assert!(!manual.watcher.poll().await);
    assert_eq!((manual.active_rules.status(), active_limit(&manual.active_rules)), (before, Some(0)));
}

#[tokio::test]
async fn value_that_looks_like_boolean_is_text() {
    let text =
        "domain: shop\ndescriptors: [{key: a, value: true, rate_limit: {unit: day, requests_per_unit: 3}}]\n";
    let manual = ManualWatcher::start(text).await;
    let rules = manual.active_rules.current();
    let path =
        rules.rules().unwrap().domains().flat_map(|domain| domain.rules()).next().unwrap().path.clone();
    assert_eq!(&*path, "shop.a_true");
}
