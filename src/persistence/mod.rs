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
use tollgate_limiter::{
    descriptor::Secret,
    store::{Epoch, Memory, OnFull, Slot, SlotSource, StoredSlot},
    time::{Clock, Timestamp},
};
use tracing::{debug, error, info};

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod parallel;
mod snapshot;

pub use snapshot::SnapshotError;

use parallel::Priority;
use snapshot::Summary;

use crate::private_file;

/// An upper bound of the size of an empty snapshot.
const EMPTY_SNAPSHOT_BYTES: u64 = 1 << 20;

/// Settings of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
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
#[derive(Clone, Debug)]
pub struct Persistence {
    /// The counters.
    pub memory: Arc<Memory>,
    settings: Settings,
    sources: SlotSources,
    // Locked while a snapshot is written, because the temporary file is shared.
    writing: Arc<Mutex<()>>,
    // How many snapshots are to be written at once. A periodic one, which takes longer, makes way for them.
    urgent: Arc<AtomicUsize>,
}

/// Returns where a snapshot takes the counters of a slot from.
#[derive(Clone)]
pub struct SlotSources(Arc<dyn Fn(Slot) -> SlotSource + Send + Sync>);

impl SlotSources {
    /// Sources from a function.
    pub fn new(source: impl Fn(Slot) -> SlotSource + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }
}

impl Default for SlotSources {
    /// The memory for all slots, without a cluster.
    fn default() -> Self {
        Self::new(|_| SlotSource::Memory { epoch: Epoch::default() })
    }
}

impl std::fmt::Debug for SlotSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlotSources(..)")
    }
}

impl Persistence {
    /// Starts with the counters of the snapshot, or none, and returns the secret of their keys. An unusable snapshot is
    /// set aside and logged; it never prevents the start.
    pub fn start(settings: Settings, now: Timestamp) -> (Self, Option<Secret>) {
        let empty = || Memory::new(settings.memory_limit, settings.on_full);
        let memory = empty();
        let secret = Self::read(&settings, memory.slots(), now, |stored| memory.restore(stored.data, now));
        // An unusable snapshot may have been restored in part.
        let memory = if secret.is_some() { memory } else { empty() };
        (Self::with(memory, settings), secret)
    }

    /// Starts as part of a cluster: returns the store, the secret and the stored slots, for the cluster to select from. Counters
    /// that do not fit into memory, and slots of another number of slots, are left out.
    pub fn start_shared(settings: Settings, now: Timestamp) -> (Self, Option<Secret>, Vec<StoredSlot>) {
        let memory = Memory::new(settings.memory_limit, settings.on_full).shared();
        let all = Mutex::new(Vec::new());
        let secret = Self::read(&settings, memory.slots(), now, |stored| {
            let stored = StoredSlot { data: stored.data.without_idle(now), ..stored };
            if !stored.data.is_empty() {
                all.lock().unwrap_or_else(PoisonError::into_inner).push(stored);
            }
        });
        let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        // An unusable snapshot may have been read in part.
        all.retain(|_| secret.is_some());
        all.sort_unstable_by_key(|stored| stored.slot);
        let all = memory.fit(all, now);
        (Self::with(memory, settings), secret, all)
    }

    /// The same, with sources for its snapshots.
    pub fn with_sources(self, sources: SlotSources) -> Self {
        Self { sources, ..self }
    }

    fn with(memory: Memory, settings: Settings) -> Self {
        let (memory, sources) = (Arc::new(memory), SlotSources::default());
        Self { memory, settings, sources, writing: Arc::default(), urgent: Arc::default() }
    }

    fn read(
        settings: &Settings,
        slots: usize,
        now: Timestamp,
        put: impl Fn(StoredSlot) + Sync,
    ) -> Option<Secret> {
        let path = settings.snapshot.as_deref()?;
        // Twice the memory limit, because the limit may have been larger before.
        let bytes_max = settings.memory_limit.saturating_mul(2).saturating_add(EMPTY_SNAPSHOT_BYTES);
        match snapshot::read(path, bytes_max, slots, now, put) {
            Ok(summary) => {
                let Summary { secret, counters } = summary?;
                info!(path = %path.display(), counters, "restored a snapshot");
                Some(secret)
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
            self.write_with(Priority::Idle, &clock, secret()).await;
        }
    }

    /// The path of the snapshot, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.settings.snapshot.as_deref()
    }

    /// Writes the last snapshot, or gives it up at `deadline`; the previous one stays then.
    pub async fn write_until(&self, clock: &Clock, secret: Secret, deadline: Instant) {
        if let (Err(_), Some(path)) = (timeout_at(deadline, self.write(clock, secret)).await, self.path()) {
            error!(path = %path.display(), "the snapshot was not written in time; the previous one stays");
        }
    }

    /// Writes a snapshot of the counters, whose keys are hashed with `secret`, if there is a path. Errors are logged:
    /// the counters in memory are not affected.
    pub async fn write(&self, clock: &Clock, secret: Secret) {
        self.write_with(Priority::Normal, clock, secret).await;
    }

    async fn write_with(&self, priority: Priority, clock: &Clock, secret: Secret) {
        let Some(path) = self.settings.snapshot.clone() else { return };
        let (persistence, clock, shown) = (self.clone(), clock.clone(), path.display().to_string());
        let is_urgent = priority == Priority::Normal;
        if is_urgent {
            self.urgent.fetch_add(1, Relaxed);
        }
        let written = spawn_blocking(move || {
            let _one_at_a_time = persistence.writing.lock().unwrap_or_else(PoisonError::into_inner);
            if is_urgent {
                persistence.urgent.fetch_sub(1, Relaxed);
            }
            let (sources, now) = (&*persistence.sources.0, clock.now());
            let is_superseded = || !is_urgent && persistence.urgent.load(Relaxed) > 0;
            snapshot::write(&persistence.memory, &secret, sources, (now, priority), is_superseded, &path)
        })
        .await;
        let written = written.map_err(|panic| SnapshotError::Io(std::io::Error::other(panic)));
        match written.flatten() {
            Ok(()) => {}
            Err(SnapshotError::Superseded) => {
                debug!(path = shown, "a snapshot was given up for the next one")
            }
            Err(problem) => error!(path = shown, %problem, "cannot write the snapshot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tollgate_limiter::{
        algorithm::{Limit, Operation, laws::every_limit},
        descriptor::KeyText,
        store::{
            Check, Checks, HOLD_TTL_DEFAULT, HoldId, HoldTerms, OnExpiry, OnRefusal, SettleOutcome, SlotData,
            UnknownId,
        },
        time::SECOND,
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
    const HOUR: u64 = 3_600 * SECOND;
    const SECRET: Secret = Secret::from_bytes([5; 16]);

    fn settings(path: &Path) -> Settings {
        Settings {
            memory_limit: 1 << 24,
            on_full: OnFull::Deny,
            snapshot: Some(path.to_owned()),
            snapshot_every: Duration::from_secs(1),
        }
    }

    /// A limit of ten a day for each algorithm.
    fn limits() -> Vec<Limit> {
        every_limit(10, 24 * HOUR)
    }

    fn left(persistence: &Persistence, limit: &Limit, operation: Operation, now: Timestamp) -> u64 {
        let key = KeyText::new("test").key(&limit.kind().bytes(), &SECRET);
        let check = Check { key, limit, operation, on_refusal: OnRefusal::TakeBack };
        persistence.memory.apply_single(&check, now).unwrap().decision.remaining
    }

    fn checks(limit: &Limit, hits: u64) -> Checks<'_> {
        let key = KeyText::new("test").key(&limit.kind().bytes(), &SECRET);
        let (operation, on_refusal) = (Operation::Charge(hits), OnRefusal::TakeBack);
        Checks::from_slice(&[Check { key, limit, operation, on_refusal }])
    }

    /// What is left three hours after four of ten hits: a tenth of the day has refilled what refills over time.
    fn refilled(limit: &Limit, now: Timestamp) -> u64 {
        let mut counter = limit.fresh();
        limit.decide(&mut counter, NOW, Operation::Charge(4));
        let left = limit.decide(&mut counter, now, Operation::Peek).remaining;
        assert!((6..=7).contains(&left), "{limit:?}");
        left
    }

    /// Charges four of ten hits of every limit and writes a snapshot.
    async fn written(path: &Path) -> Persistence {
        let persistence = Persistence::start(settings(path), NOW).0;
        for limit in limits() {
            assert_eq!(left(&persistence, &limit, Operation::Charge(4), NOW), 6);
        }
        persistence.write(&Clock::manual(NOW), SECRET).await;
        persistence
    }

    #[tokio::test]
    async fn counts_survive_restart_and_age_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        written(&path).await;
        let now = NOW.plus(3 * HOUR);
        let (after, secret) = Persistence::start(settings(&path), now);
        assert!(secret == Some(SECRET));
        for limit in limits() {
            assert_eq!(left(&after, &limit, Operation::Peek, now), refilled(&limit, now), "{limit:?}");
        }
    }

    #[tokio::test]
    async fn clock_behind_snapshot_locks_no_key_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        written(&path).await;
        let earlier = NOW.minus(1_000 * 24 * HOUR);
        let (after, _) = Persistence::start(settings(&path), earlier);
        for limit in limits() {
            assert_eq!(left(&after, &limit, Operation::Peek, earlier), 6, "{limit:?}");
            assert_eq!(left(&after, &limit, Operation::Peek, earlier.plus(72 * HOUR)), 10, "{limit:?}");
        }
    }

    #[tokio::test]
    async fn reservations_survive_restart_also_with_clock_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let (before, _) = Persistence::start(settings(&path), NOW);
        let id = HoldId::new(b"a").unwrap();
        let terms = HoldTerms::new(id.clone(), HOLD_TTL_DEFAULT, OnExpiry::Release).unwrap();
        for limit in &limits() {
            assert!(before.memory.reserve(&checks(limit, 4), &terms, NOW, |_| false).unwrap().is_held);
        }
        before.write(&Clock::manual(NOW), SECRET).await;

        for now in [NOW.plus(59 * SECOND), NOW.minus(1_000 * 24 * HOUR)] {
            let (after, _) = Persistence::start(settings(&path), now);
            assert_eq!(after.memory.stats().holds_open, limits().len());
            for limit in &limits() {
                let settled =
                    after.memory.settle(&checks(limit, 1), &id, UnknownId::Remember, now).unwrap()[0];
                assert_eq!(settled.outcome, SettleOutcome::Open, "{limit:?}");
                assert_eq!(left(&after, limit, Operation::Peek, now), 9, "{limit:?}");
            }
        }
        let expired = NOW.plus(60 * SECOND);
        let (after, _) = Persistence::start(settings(&path), expired);
        for limit in &limits() {
            assert_eq!(left(&after, limit, Operation::Peek, expired), 10, "{limit:?}");
        }
    }

    #[tokio::test]
    async fn truncated_or_modified_snapshot_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        written(&path).await;
        let whole = fs::read(&path).unwrap();
        let torn = (0..whole.len()).map(|length| whole[..length].to_vec());
        let changed = (0..whole.len()).map(|index| {
            let mut bytes = whole.clone();
            bytes[index] ^= 1;
            bytes
        });
        for bad in torn.chain(changed).chain([b"something else".to_vec()]) {
            fs::write(&path, &bad).unwrap();
            assert_eq!(Persistence::start(settings(&path), NOW).0.memory.stats().live, 0);
            assert!(!path.exists());
            assert_eq!(fs::read(folder.path().join("counters.bad")).unwrap(), bad);
        }
    }

    #[tokio::test]
    async fn snapshot_is_private_and_failed_write_keeps_old_one() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let persistence = written(&path).await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::create_dir(folder.path().join("counters.new")).unwrap();
        persistence.write(&Clock::manual(NOW), SECRET).await;
        assert!(path.exists());
    }

    #[tokio::test]
    async fn periodic_snapshot_makes_way_for_an_urgent_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let persistence = written(&path).await;
        let before = fs::read(&path).unwrap();
        let (earlier, later) = (Clock::manual(NOW.plus(SECOND)), Clock::manual(NOW.plus(2 * SECOND)));
        let periodic = || persistence.write_with(Priority::Idle, &earlier, SECRET);

        persistence.urgent.fetch_add(1, Relaxed);
        periodic().await;
        assert_eq!(fs::read(&path).unwrap(), before);
        assert!(!folder.path().join("counters.new").exists());

        persistence.urgent.fetch_sub(1, Relaxed);
        periodic().await;
        assert_ne!(fs::read(&path).unwrap(), before);

        // Whatever their order is, the file is a whole snapshot at the end, and later periodic ones are written again.
        tokio::join!(periodic(), persistence.write(&later, SECRET), periodic());
        assert_eq!(persistence.urgent.load(Relaxed), 0);
        assert_eq!(
            Persistence::start(settings(&path), NOW.plus(2 * SECOND)).0.memory.stats().live,
            limits().len()
        );
    }

    #[tokio::test]
    async fn stored_slots_survive_restart_with_their_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let (before, secret, none) = Persistence::start_shared(settings(&path), NOW);
        assert!(secret.is_none() && none.is_empty());
        let source = |slot: Slot| SlotSource::Memory { epoch: Epoch(7 + u64::from(slot.0)) };
        let before = before.with_sources(SlotSources::new(source));
        before.memory.each_slot().for_each(|slot| before.memory.acquire(slot, SlotData::default(), NOW));
        for limit in limits() {
            assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 8);
            assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 6);
        }
        before.write(&Clock::manual(NOW), SECRET).await;

        let now = NOW.plus(3 * HOUR);
        let (after, secret, stored) = Persistence::start_shared(settings(&path), now);
        assert!(secret == Some(SECRET));
        assert_eq!(stored.iter().map(|slot| slot.data.len()).sum::<usize>(), limits().len());
        assert!(after.memory.stats().backup_bytes > 0);
        for StoredSlot { slot, epoch, seq, data } in stored {
            // Two charges of each counter.
            assert_eq!((epoch, seq), (Epoch(7 + u64::from(slot.0)), 2 * data.len() as u64));
            after.memory.acquire(slot, data, now);
        }
        for limit in limits() {
            assert_eq!(left(&after, &limit, Operation::Peek, now), refilled(&limit, now), "{limit:?}");
        }
        // A store without a cluster reads the same file.
        let (standalone, _) = Persistence::start(settings(&path), now);
        assert_eq!(standalone.memory.stats().live, limits().len());
    }

    #[test]
    fn missing_snapshot_starts_with_no_counters() {
        let folder = tempfile::tempdir().unwrap();
        let (persistence, _) = Persistence::start(settings(&folder.path().join("none")), NOW);
        assert_eq!(persistence.memory.stats().live, 0);
    }
}
