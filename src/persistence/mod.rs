//! Persistence of counters: the memory and its snapshot file.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};
use tollgate_counter::{
    descriptor::Secret,
    lock::lock,
    time::{Clock, Timestamp},
};
use tollgate_rules::BackgroundPriority;
use tollgate_store::{Epoch, Memory, OnFull, Slot, SlotCopy, StoredSlot, divider::Dividers};
use tracing::{debug, error, info};

mod divisions;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod parallel;
mod snapshot;

pub use snapshot::SnapshotError;

use snapshot::SnapshotSummary;
use tollgate_net::private_file;

/// An upper bound of the size of an empty snapshot.
const EMPTY_SNAPSHOT_BYTES: u64 = 1 << 20;

/// Settings of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistenceSettings {
    /// The memory limit, in bytes.
    pub memory_limit: u64,
    /// What happens to new keys at the memory limit.
    pub on_full: OnFull,
    /// The path of the snapshot, if there is one.
    pub snapshot: Option<PathBuf>,
    /// The interval between snapshots.
    pub snapshot_every: Duration,
}

/// The counters and their snapshot file, which also contains the secret of their keys.
#[derive(Clone)]
pub struct Persistence {
    /// The counters.
    pub memory: Arc<Memory>,
    settings: PersistenceSettings,
    copies: SlotCopies,
    // The instant of the snapshot whose counters are in memory.
    restored: Option<Timestamp>,
    // Locked while a snapshot is written, because the temporary file is shared.
    writing: Arc<Mutex<()>>,
    // How many snapshots are to be written at once. A periodic one, which takes longer, makes way for them.
    urgent: Arc<AtomicUsize>,
}

/// Copies a slot for a snapshot.
type SlotCopies = Arc<dyn Fn(Slot) -> SlotCopy + Send + Sync>;

impl Persistence {
    /// Starts with the counters of the snapshot, or none, and returns the secret of their keys. An unusable snapshot is
    /// set aside and logged; it never prevents the start.
    pub fn start(settings: PersistenceSettings, now: Timestamp) -> (Self, Option<Secret>) {
        let empty = || Memory::new(settings.memory_limit, settings.on_full);
        let memory = empty();
        let read = Self::read(&settings, memory.slots(), now, |stored| memory.restore(stored.data, now));
        // An unusable snapshot may have been restored in part.
        let memory = if read.is_some() { memory } else { empty() };
        let restored = read.as_ref().and_then(|summary| summary.taken_at);
        (Self { restored, ..Self::with(memory, settings) }, read.map(|summary| summary.secret))
    }

    /// Starts as part of a cluster: returns the store, the secret and the stored slots, for the cluster to select from.
    /// Counters that do not fit into memory, and slots of another number of slots, are left out.
    pub fn start_shared(
        settings: PersistenceSettings,
        now: Timestamp,
    ) -> (Self, Option<Secret>, Vec<StoredSlot>) {
        let memory = Memory::new(settings.memory_limit, settings.on_full).shared();
        let all = Mutex::new(Vec::new());
        let read = Self::read(&settings, memory.slots(), now, |stored| {
            let stored = StoredSlot { data: stored.data.without_idle(now), ..stored };
            if !stored.data.is_empty() {
                lock(&all).push(stored);
            }
        });
        let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        // An unusable snapshot may have been read in part.
        all.retain(|_| read.is_some());
        all.sort_unstable_by_key(|stored| stored.slot);
        let all = memory.fit(all, now);
        (Self::with(memory, settings), read.map(|summary| summary.secret), all)
    }

    /// Sets what copies each slot for a snapshot.
    pub fn with_copies(self, copy: impl Fn(Slot) -> SlotCopy + Send + Sync + 'static) -> Self {
        Self { copies: Arc::new(copy), ..self }
    }

    fn with(memory: Memory, settings: PersistenceSettings) -> Self {
        let memory = Arc::new(memory);
        let copied = memory.clone();
        let copies = Arc::new(move |slot| copied.copy(slot, Epoch::default()));
        let (restored, writing, urgent) = Default::default();
        Self { memory, settings, copies, restored, writing, urgent }
    }

    /// The dividers of a process without a cluster: those of the last one, if it has ended with a snapshot of the counters
    /// in memory. Otherwise what that one has granted is not known, and may be in force.
    pub fn start_dividers(&self, now: Timestamp) -> Arc<Dividers> {
        let dividers = Dividers::new(self.memory.clone());
        let stored =
            self.path().and_then(|path| divisions::take(path, self.settings.memory_limit, self.restored));
        let Some(stored) = stored else { return Arc::new(dividers.after_restart(now)) };
        for (slot, divisions) in stored {
            dividers.restore(slot, divisions, now);
        }
        Arc::new(dividers)
    }

    fn read(
        settings: &PersistenceSettings,
        slots: usize,
        now: Timestamp,
        put: impl Fn(StoredSlot) + Sync,
    ) -> Option<SnapshotSummary> {
        let path = settings.snapshot.as_deref()?;
        // Twice the memory limit, because the limit may have been larger before.
        let bytes_max = settings.memory_limit.saturating_mul(2).saturating_add(EMPTY_SNAPSHOT_BYTES);
        match snapshot::read(path, bytes_max, slots, now, put) {
            Ok(summary) => {
                let summary = summary?;
                info!(path = %path.display(), counters = summary.counters, "restored a snapshot");
                Some(summary)
            }
            Err(problem) => {
                let aside = match private_file::set_aside(path) {
                    Ok(aside) => format!("moved to {}", aside.display()),
                    Err(error) => format!("left where it is: {error}"),
                };
                error!(path = %path.display(), %problem, aside, "unusable snapshot: counters start empty");
                None
            }
        }
    }

    /// Writes snapshots periodically with the current `secret`, for as long as it is polled. Without a path it never
    /// writes.
    pub async fn write_periodically(self, clock: Clock, secret: impl Fn() -> Secret) {
        loop {
            sleep(self.settings.snapshot_every).await;
            self.write_with(BackgroundPriority::Idle, &clock, secret(), None).await;
        }
    }

    /// The path of the snapshot, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.settings.snapshot.as_deref()
    }

    /// Writes the last snapshot, or gives it up at `deadline`; the previous one stays then. With it goes how `dividers`
    /// divide the limits, of which nothing is divided any more.
    pub async fn write_last(
        &self,
        clock: &Clock,
        secret: Secret,
        dividers: Option<Arc<Dividers>>,
        deadline: Instant,
    ) {
        let Some(path) = self.path() else { return };
        let write = self.write_with(BackgroundPriority::Normal, clock, secret, dividers);
        if timeout_at(deadline, write).await.is_err() {
            error!(path = %path.display(), "the snapshot was not written in time; the previous one stays");
        }
    }

    /// Writes a snapshot of the counters, whose keys are hashed with `secret`, if there is a path. Errors are logged:
    /// the counters in memory are not affected. Returns whether it was written.
    async fn write_with(
        &self,
        priority: BackgroundPriority,
        clock: &Clock,
        secret: Secret,
        dividers: Option<Arc<Dividers>>,
    ) -> bool {
        let Some(path) = self.settings.snapshot.clone() else { return false };
        let persistence = self.clone();
        let clock = clock.clone();
        let displayed = path.display().to_string();
        let is_urgent = priority == BackgroundPriority::Normal;
        if is_urgent {
            self.urgent.fetch_add(1, Relaxed);
        }
        let written = spawn_blocking(move || {
            let _one_at_a_time = lock(&persistence.writing);
            if is_urgent {
                persistence.urgent.fetch_sub(1, Relaxed);
            }
            let copies = &*persistence.copies;
            let now = clock.now();
            let is_superseded = || !is_urgent && persistence.urgent.load(Relaxed) > 0;
            // First, so that the counters have what is granted by these.
            let divisions = dividers.map(|dividers| dividers.take_all(now));
            snapshot::write(&persistence.memory, &secret, copies, (now, priority), is_superseded, &path)?;
            if let Some(divisions) = divisions {
                divisions::write(&path, now, divisions)?;
            }
            Ok(())
        })
        .await;
        let written = written.map_err(|panic| SnapshotError::Io(std::io::Error::other(panic)));
        let written = written.flatten();
        let is_written = written.is_ok();
        match written {
            Ok(()) => {}
            Err(SnapshotError::Superseded) => {
                debug!(path = displayed, "a snapshot was given up for the next one")
            }
            Err(problem) => error!(path = displayed, %problem, "cannot write the snapshot"),
        }
        is_written
    }
}

#[cfg(test)]
mod tests;
