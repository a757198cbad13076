//! Rules from a URL: a rule file that is asked for again and again, with its `ETag`.
//!
//! What cannot be fetched or loaded leaves the active rules, as for files. The last good document is retained on disk.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::{task::spawn_blocking, time::sleep};
use tollgate_counter::{
    metrics::MetricCounter,
    resilience::Backoff,
    time::{Clock, Timestamp},
};
use tollgate_net::{
    certificates::{rfc3339, unix_time},
    private_file,
};
use tollgate_rules::{
    ActiveRules, Contents, Location, Problem, Problems, RuleInput, RuleLoader, RuleOrigin,
    file_watch::{FileComparison, FileWatch, WatchedFiles},
};
use tracing::{error, warn};

use crate::url::{
    copy::{Copy, CopyError},
    fetch::fetch,
};

pub(crate) mod address;
mod copy;
mod fetch;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod value;

pub use address::Address;
pub use fetch::{Fetched, UrlSettings};
pub use value::{UrlTemplate, UrlValues};

/// Follows the rules at a URL, for as long as it is polled.
pub(super) async fn follow(
    settings: UrlSettings,
    clock: Clock,
    active_rules: Arc<ActiveRules>,
    stats: Arc<UrlStats>,
) {
    let interval = settings.interval;
    let loader = RuleLoader::new(settings.address.to_string(), clock.clone(), active_rules);
    let backoff = Backoff::new(RETRY_MIN.min(interval), interval);
    let state = DocumentState::default();
    let mut file = RemoteFile { settings, clock, loader, stats, backoff, latest: None, state };
    file.read_copy().await;
    FileWatch::new(file).run(interval).await;
}

/// The delay after a request without an answer; further ones are twice as long, up to the interval.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The time for the first answer, if there is a copy that can be used instead.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// The part of the interval that is left out at most, at random, so that replicas do not ask at the same moments.
const JITTER: f64 = 0.2;

/// A rule file at a URL.
#[derive(Debug)]
struct RemoteFile {
    settings: UrlSettings,
    clock: Clock,
    loader: RuleLoader,
    stats: Arc<UrlStats>,
    backoff: Backoff,
    /// What the server has, as far as is known.
    latest: Option<FetchedDocument>,
    state: DocumentState,
}

/// What is known about the latest document.
#[derive(Debug, Default)]
struct DocumentState {
    /// The last request had no answer.
    is_failed: bool,
    /// The copy and when it was written, until rules are active. It is loaded if the server has no rules.
    spare: Option<(FetchedDocument, Timestamp)>,
    /// When the copy was written, while it is being loaded instead of an answer.
    copy_in_use: Option<Timestamp>,
    /// The fingerprint of the active document.
    active: Option<u128>,
    /// The fingerprint of the document in the copy.
    kept: Option<u128>,
    /// The last attempt to write a copy failed.
    is_copy_failed: bool,
}

/// A document with what identifies it.
#[derive(Clone, Debug)]
struct FetchedDocument {
    contents: Arc<Contents>,
    fingerprint: u128,
    etag: Option<String>,
}

impl RemoteFile {
    /// Makes the copy the latest document. One that cannot be used is reported, and set aside if it is damaged.
    async fn read_copy(&mut self) {
        let Some(path) = self.settings.copy.clone() else { return };
        let address = self.settings.address.clone();
        let read = move || {
            let read = copy::read(&path, &address);
            read.map_err(|error| {
                let is_damaged = matches!(error, CopyError::Damaged);
                let aside = is_damaged.then(|| private_file::set_aside(&path));
                (path, error, aside)
            })
        };
        match spawn_blocking(read).await {
            Ok(Ok(Some(Copy { etag, kept_at, bytes }))) => {
                let document = self.document(bytes, etag);
                self.state.kept = Some(document.fingerprint);
                self.latest = Some(document.clone());
                self.state.spare = Some((document, kept_at));
            }
            Ok(Ok(None)) => {}
            Ok(Err((path, error, aside))) => {
                self.stats.copy_errors.increase();
                log_unusable(&path, &error, aside);
            }
            // A bug, which was logged.
            Err(_panic) => self.stats.copy_errors.increase(),
        }
    }

    fn document(&self, bytes: Vec<u8>, etag: Option<String>) -> FetchedDocument {
        let source = RuleInput::file(&self.settings.address.to_string(), bytes);
        let contents = Contents { sources: vec![source], problems: Problems::default() };
        FetchedDocument { fingerprint: contents.fingerprint(), contents: Arc::new(contents), etag }
    }

    /// The copy, if it was not loaded yet, or the reason as the problem of contents that cannot be loaded.
    fn without_answer(&mut self, reason: String) -> (Arc<Contents>, u128) {
        if let Some((document, kept_at)) = self.state.spare.take() {
            self.warn_of_copy(kept_at, &reason);
            self.state.copy_in_use = Some(kept_at);
            return (document.contents, document.fingerprint);
        }
        let location = Location::whole(RuleOrigin::file(&self.settings.address.to_string()));
        let mut problems = Problems::default();
        problems.push(Problem { location, what: format!("cannot be fetched: {reason}") });
        let contents = Contents { sources: Vec::new(), problems };
        let fingerprint = contents.fingerprint();
        (Arc::new(contents), fingerprint)
    }

    fn warn_of_copy(&self, kept_at: Timestamp, reason: &str) {
        let source = self.settings.address.to_string();
        let kept_at = rfc3339(unix_time(kept_at));
        warn!(source, reason, kept_at, "the server has no rules that can be used; the copy is loaded");
    }

    /// Loads the copy after `refused`, which then are refused once more, so that their problems are the current ones.
    async fn load_spare(
        &mut self,
        (document, kept_at): (FetchedDocument, Timestamp),
        refused: &Arc<Contents>,
    ) -> Option<Result<(), Arc<Problems>>> {
        self.warn_of_copy(kept_at, "they have problems");
        if let Some(Ok(())) = self.loader.load(&document.contents, None).await {
            self.state.active = Some(document.fingerprint);
            self.stats.loaded_copy(kept_at);
        }
        self.loader.load(refused, None).await
    }

    /// The latest document is active, and the server has it, unless it is a copy that is used instead.
    async fn is_active(&mut self, copy_in_use: Option<Timestamp>) {
        match copy_in_use {
            Some(kept_at) => self.stats.loaded_copy(kept_at),
            None => {
                self.stats.confirmed(self.clock.wall());
                self.keep().await;
            }
        }
    }

    /// Writes the latest document to the copy, if it is not there. A failed attempt is repeated with the next answer.
    async fn keep(&mut self) {
        let (Some(path), Some(FetchedDocument { contents, fingerprint, etag })) =
            (self.settings.copy.clone(), &self.latest)
        else {
            return;
        };
        if self.state.kept == Some(*fingerprint) {
            return;
        }
        let address = self.settings.address.clone();
        let contents = contents.clone();
        let etag = etag.clone();
        let kept_at = self.clock.wall();
        let fingerprint = *fingerprint;
        let write = move || {
            let bytes = contents.sources.first().map(RuleInput::bytes).unwrap_or_default();
            copy::write(&path, &address, &Copy { etag, kept_at, bytes })
        };
        let reason = match spawn_blocking(write).await {
            Ok(Ok(())) => {
                (self.state.kept, self.state.is_copy_failed) = (Some(fingerprint), false);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.stats.copy_errors.increase();
        if !self.state.is_copy_failed {
            let path = self.settings.copy.as_deref().unwrap_or(Path::new("")).display();
            error!(%path, reason, "cannot write the copy of the rules; the previous one stays");
        }
        self.state.is_copy_failed = true;
    }
}

impl WatchedFiles for RemoteFile {
    type Contents = Arc<Contents>;
    type Error = Arc<Problems>;
    // An answer is whole or an error.
    const READS_ARE_WHOLE: bool = true;

    async fn wait(&mut self, _last: FileComparison, interval: Duration) {
        let delay = if self.state.is_failed {
            self.backoff.next_delay(rand::random())
        } else {
            interval.mul_f64(1.0 - JITTER * rand::random::<f64>())
        };
        sleep(delay).await;
    }

    async fn read(&mut self) -> Option<(Arc<Contents>, u128)> {
        let time_max = match self.state.spare {
            Some(_) => self.settings.timeout.min(FIRST_TIMEOUT),
            None => self.settings.timeout,
        };
        let etag = self.latest.as_ref().and_then(|latest| latest.etag.as_deref());
        let fetched = fetch(&self.settings, &self.clock, etag, time_max).await;
        self.state.is_failed = fetched.is_err();
        match fetched {
            Ok(Fetched::Unchanged) => self.stats.unchanged.increase(),
            Ok(Fetched::Absent) => {
                self.stats.failed.increase();
                self.state.is_failed = true;
                return Some(self.without_answer(format!("the server answered {}", StatusCode::NOT_FOUND)));
            }
            Ok(Fetched::Document { bytes, etag }) => {
                let document = self.document(bytes, etag);
                let is_other =
                    self.latest.as_ref().is_none_or(|latest| latest.fingerprint != document.fingerprint);
                let counter = if is_other { &self.stats.changed } else { &self.stats.unchanged };
                counter.increase();
                self.latest = Some(document);
            }
            Err(reason) => {
                self.stats.failed.increase();
                return Some(self.without_answer(reason));
            }
        }
        self.backoff.reset();
        let (contents, fingerprint) =
            self.latest.as_ref().map(|latest| (latest.contents.clone(), latest.fingerprint))?;
        if self.state.active == Some(fingerprint) {
            self.is_active(None).await;
        }
        Some((contents, fingerprint))
    }

    async fn load(&mut self, contents: Arc<Contents>) -> Option<Result<(), Arc<Problems>>> {
        let copy_in_use = self.state.copy_in_use.take();
        let outcome = self.loader.load(&contents, None).await;
        let latest = self.latest.as_ref().map(|latest| latest.fingerprint);
        match outcome {
            Some(Ok(())) => {
                (self.state.active, self.state.spare) = (latest, None);
                self.is_active(copy_in_use).await;
                outcome
            }
            Some(Err(_)) => {
                match self.state.spare.take_if(|(document, _)| latest != Some(document.fingerprint)) {
                    Some(spare) => self.load_spare(spare, &contents).await,
                    None => outcome,
                }
            }
            None => None,
        }
    }

    fn recovered(&mut self) {
        self.loader.recover(None);
    }
}

/// Logs that a copy cannot be used, and what became of the file if it is damaged.
fn log_unusable(path: &Path, error: &CopyError, aside: Option<io::Result<PathBuf>>) {
    let path = path.display();
    match aside {
        None => warn!(%path, %error, "the copy of the rules is not used"),
        Some(Ok(aside)) => {
            error!(%path, %error, aside = %aside.display(), "set the unusable copy of the rules aside");
        }
        Some(Err(aside_error)) => {
            error!(%path, %error, %aside_error, "cannot set the unusable copy of the rules aside");
        }
    }
}

/// What is counted of the rules from a URL.
#[derive(Debug, Default)]
pub struct UrlStats {
    /// Answers with other contents than the one before.
    pub changed: MetricCounter,
    /// Answers that the contents have not changed.
    pub unchanged: MetricCounter,
    /// Requests without a whole answer.
    pub failed: MetricCounter,
    /// Copies that could not be read or written.
    pub copy_errors: MetricCounter,
    // Nanoseconds; 0 before the first rules.
    confirmed_at: AtomicU64,
    is_from_copy: AtomicBool,
}

impl UrlStats {
    /// When the server last had the active rules; the epoch before the first.
    pub fn confirmed_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed_at.load(Relaxed))
    }

    /// Whether the active rules are those of the copy, and the server has not confirmed them since the start.
    pub fn is_from_copy(&self) -> bool {
        self.is_from_copy.load(Relaxed)
    }

    /// The server has the active rules.
    fn confirmed(&self, now: Timestamp) {
        self.confirmed_at.store(now.as_nanos(), Relaxed);
        self.is_from_copy.store(false, Relaxed);
    }

    /// The active rules are those of the copy that was written at `kept_at`.
    fn loaded_copy(&self, kept_at: Timestamp) {
        self.confirmed_at.store(kept_at.as_nanos(), Relaxed);
        self.is_from_copy.store(true, Relaxed);
    }
}
