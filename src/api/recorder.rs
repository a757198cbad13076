//! Records the requests that are decided, for `tollgate simulate`, while an operator asks for them.

use std::{
    borrow::Cow,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;
use tollgate_limiter::{
    algorithm::Operation,
    descriptor::{Entry, KeyText, Secret},
    limiter::{ActiveView, Descriptor, Request},
    rules::{KeyedDomain, MatchKind},
    time::Timestamp,
};

/// The maximum size of lines that are not sent yet, in bytes. Beyond it requests are left out.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// The maximum number of further hashes that are tried if one matches a pattern that the value does not match.
const ATTEMPTS_MAX: u8 = 63;

/// What a recording shows of the values of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedValues {
    /// Hashes, under a secret of the recording, of all values that no rule names.
    Hashed,
    /// The values.
    Plain,
}

/// Records requests as lines of JSON; one recording at a time.
#[derive(Debug)]
pub struct Recorder {
    allowed: RecordedValues,
    // Whether there is a recording, so that a request without one costs a load.
    is_recording: AtomicBool,
    recording: Mutex<Option<Lines>>,
    is_stopped: AtomicBool,
    // A line, or the stop.
    arrived: Notify,
}

#[derive(Debug)]
struct Lines {
    // `None` if values are plain.
    secret: Option<Secret>,
    /// Later requests are not recorded, also if the client has not noticed the end yet.
    until: Timestamp,
    unsent: Vec<u8>,
    requests: u64,
    left_out: u64,
}

/// A recording; it ends when this is dropped.
#[derive(Debug)]
pub struct Recording {
    recorder: Arc<Recorder>,
    values: RecordedValues,
}

/// Why there is no recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The setting does not allow plain values.
    #[error("values are recorded as hashes only, unless admin.record is `plain`")]
    PlainNotAllowed,
    /// Another recording.
    #[error("another recording is running: try again when it has ended")]
    Busy,
}

/// A request in the form that `tollgate simulate` reads.
#[derive(Serialize)]
struct RecordedRequest<'r> {
    /// In nanoseconds since 1970.
    time: u64,
    domain: &'r str,
    descriptors: Vec<RecordedDescriptor<'r>>,
}

#[derive(Serialize)]
struct RecordedDescriptor<'r> {
    entries: Vec<RecordedEntry<'r>>,
    #[serde(rename = "hitsAddend")]
    hits: u64,
}

#[derive(Serialize)]
struct RecordedEntry<'r> {
    key: &'r str,
    value: Cow<'r, str>,
}

impl Recorder {
    /// A recorder that shows at most these values.
    pub fn new(allowed: RecordedValues) -> Self {
        Self {
            allowed,
            is_recording: AtomicBool::new(false),
            recording: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            arrived: Notify::new(),
        }
    }

    /// Starts a recording of the requests before `until`.
    pub fn start(
        self: &Arc<Self>,
        values: RecordedValues,
        until: Timestamp,
    ) -> Result<Recording, RecordError> {
        if values > self.allowed {
            return Err(RecordError::PlainNotAllowed);
        }
        let mut recording = self.lock();
        if recording.is_some() {
            return Err(RecordError::Busy);
        }
        let secret = (values == RecordedValues::Hashed).then(Secret::random);
        *recording = Some(Lines { secret, until, unsent: Vec::new(), requests: 0, left_out: 0 });
        self.is_recording.store(true, Relaxed);
        Ok(Recording { recorder: self.clone(), values })
    }

    /// Ends recordings, because the process stops.
    pub fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        self.arrived.notify_one();
    }

    /// Records a request that `view` has decided, if there is a recording and the request charges.
    #[inline]
    pub(super) fn record(&self, request: &Request<'_>, view: &ActiveView<'_>) {
        if self.is_recording.load(Relaxed) {
            self.add(request, view);
        }
    }

    #[cold]
    fn add(&self, request: &Request<'_>, view: &ActiveView<'_>) {
        let secret = match &*self.lock() {
            Some(lines) if view.now() < lines.until => lines.secret.clone(),
            Some(_) | None => return,
        };
        let Some(mut line) = line(request, view, secret.as_ref()) else { return };
        line.push(b'\n');
        if let Some(lines) = &mut *self.lock() {
            if lines.unsent.len() + line.len() > UNSENT_BYTES_MAX {
                lines.left_out += 1;
                return;
            }
            lines.unsent.append(&mut line);
            lines.requests += 1;
        }
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lines>> {
        // Lines are appended whole or not at all.
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording {
    /// The lines since the last call; waits until there are some. `None` if the process stops.
    pub async fn next(&self) -> Option<Vec<u8>> {
        while !self.recorder.is_stopped.load(Relaxed) {
            let lines = self.recorder.lock().as_mut().map(|lines| mem::take(&mut lines.unsent));
            match lines {
                Some(lines) if !lines.is_empty() => return Some(lines),
                Some(_) | None => self.recorder.arrived.notified().await,
            }
        }
        None
    }

    /// Ends the recording: the lines that are left, and one that says how complete it is.
    pub fn end(self) -> Vec<u8> {
        // Only the drop of `self` makes room for another recording, which it would end otherwise.
        let mut recording = self.recorder.lock();
        let Some(Lines { unsent, requests, left_out, .. }) = &mut *recording else { return Vec::new() };
        let mut lines = mem::take(unsent);
        let summary =
            json!({"recording": {"requests": requests, "left_out": left_out, "values": self.values}});
        lines.extend_from_slice(format!("{summary}\n").as_bytes());
        lines
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorder.is_recording.store(false, Relaxed);
        *self.recorder.lock() = None;
    }
}

/// The request as JSON; `None` if no descriptor is charged.
fn line(request: &Request<'_>, view: &ActiveView<'_>, secret: Option<&Secret>) -> Option<Vec<u8>> {
    let domain = view.rules().domain(request.domain());
    let charged = request.descriptors().iter().filter_map(|Descriptor { entries, operation, .. }| {
        let Operation::Charge(hits) = *operation else { return None };
        Some(RecordedDescriptor { entries: recorded(entries, request.domain(), domain, secret), hits })
    });
    let descriptors: Vec<_> = charged.collect();
    if descriptors.is_empty() {
        return None;
    }
    let request = RecordedRequest { time: view.now().as_nanos(), domain: request.domain(), descriptors };
    // Infallible: it has only texts and numbers.
    serde_json::to_vec(&request).ok()
}

/// The entries, with their values or such that match the same rules.
fn recorded<'r>(
    entries: &[Entry<'r>],
    name: &str,
    domain: Option<KeyedDomain<'r>>,
    secret: Option<&Secret>,
) -> Vec<RecordedEntry<'r>> {
    let Some(secret) = secret else {
        return entries
            .iter()
            .map(|entry| RecordedEntry { key: entry.key, value: entry.value.into() })
            .collect();
    };
    let matches = |entries: &[Entry<'_>]| domain.map(|domain| domain.matches(entries)).unwrap_or_default();
    let wanted = matches(entries);
    let mut attempt = 0;
    loop {
        let hashed: Vec<_> = entries
            .iter()
            .enumerate()
            .map(|(index, entry)| RecordedEntry {
                key: entry.key,
                value: hashed(*entry, wanted.get(index).copied(), || hash(name, *entry, attempt, secret)),
            })
            .collect();
        let read: Vec<_> = hashed.iter().map(|RecordedEntry { key, value }| Entry { key, value }).collect();
        // A pattern such as `4*` also matches hashes.
        let matches_alike = matches(&read) == wanted;
        if matches_alike || attempt == ATTEMPTS_MAX {
            return hashed;
        }
        attempt += 1;
    }
}

/// The value of an entry that matches in this way, with what no rule names replaced by `hash`.
fn hashed<'r>(
    entry: Entry<'r>,
    matched: Option<(&str, MatchKind)>,
    hash: impl Fn() -> String,
) -> Cow<'r, str> {
    match matched {
        Some((_, MatchKind::Exact)) => entry.value.into(),
        Some((pattern, MatchKind::Pattern)) if pattern.contains('*') => pattern.replace('*', &hash()).into(),
        Some((_, MatchKind::Pattern | MatchKind::KeyOnly)) | None => hash().into(),
    }
}

/// The same text for the same entry and attempt, as long as the secret is the same.
fn hash(domain: &str, entry: Entry<'_>, attempt: u8, secret: &Secret) -> String {
    let mut text = KeyText::new(domain);
    text.entry(entry);
    format!("{:016x}", text.key(&[attempt], secret).high())
}
