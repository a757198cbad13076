//! Persistence of counters: the store, its secret and its snapshot file.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::sleep};
use tracing::{error, info};

use crate::{
    descriptor::{Secret, SharedSecret},
    store::{
        Memory, OnFull, Slot, SnapshotError, StoredSlot,
        snapshot::{self, Snapshot},
    },
    time::{Clock, Timestamp},
};

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

/// The counters with the secret of their keys, and their snapshot file.
#[derive(Clone, Debug)]
pub struct Persistence {
    /// The counters.
    pub memory: Arc<Memory>,
    /// The secret of the key hash.
    pub secret: SharedSecret,
    settings: Settings,
    epochs: Epochs,
    // Locked while a snapshot is written, because the temporary file is shared.
    writing: Arc<Mutex<()>>,
}

/// Returns how often the owner of a slot has changed.
#[derive(Clone)]
pub struct Epochs(Arc<dyn Fn(Slot) -> u64 + Send + Sync>);

impl Epochs {
    /// Epochs from a function.
    pub fn new(epoch: impl Fn(Slot) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(epoch))
    }
}

impl Default for Epochs {
    /// Zero for all slots.
    fn default() -> Self {
        Self::new(|_| 0)
    }
}

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Epochs(..)")
    }
}

impl Persistence {
    /// Starts with the counters of the snapshot, or none. An unusable snapshot is set aside and logged; it never
    /// prevents the start.
    pub fn start(settings: Settings, now: Timestamp) -> Self {
        let memory = Memory::new(settings.memory_limit, settings.on_full);
        let snapshot = Self::read(&settings, now);
        let secret = snapshot.map(|snapshot| {
            snapshot.stored.into_iter().for_each(|stored| memory.restore(stored.data, now));
            snapshot.secret
        });
        Self::with(memory, secret, settings)
    }

    /// Starts as part of a cluster: returns the store and the stored slots, for the cluster to select from. Slots that
    /// do not fit into memory, or are of another number of slots, are left out.
    pub fn start_shared(settings: Settings, now: Timestamp) -> (Self, Vec<StoredSlot>) {
        let memory = Memory::new(settings.memory_limit, settings.on_full).shared();
        let (mut all, mut secret) = (Vec::new(), None);
        if let Some(snapshot) = Self::read(&settings, now) {
            secret = Some(snapshot.secret);
            let of_these_slots = snapshot.slots == memory.slots();
            for StoredSlot { slot, epoch, seq, data } in snapshot.stored {
                let data = memory.within_limit(data.without_idle(now));
                let data = data.filter(|data| of_these_slots && !data.is_empty());
                all.extend(data.map(|data| StoredSlot { slot, epoch, seq, data }));
            }
        }
        (Self::with(memory, secret, settings), all)
    }

    /// The same, with epochs for its snapshots.
    pub fn with_epochs(self, epochs: Epochs) -> Self {
        Self { epochs, ..self }
    }

    fn with(memory: Memory, secret: Option<Secret>, settings: Settings) -> Self {
        let secret = secret.unwrap_or_else(Secret::random);
        Self {
            memory: Arc::new(memory),
            secret: secret.into(),
            settings,
            epochs: Epochs::default(),
            writing: Arc::default(),
        }
    }

    fn read(settings: &Settings, now: Timestamp) -> Option<Snapshot> {
        let path = settings.snapshot.as_deref()?;
        // Twice the memory limit, because the limit may have been larger before.
        let bytes_max = settings.memory_limit.saturating_mul(2).saturating_add(EMPTY_SNAPSHOT_BYTES);
        match snapshot::read(path, bytes_max, now) {
            Ok(snapshot) => {
                let snapshot = snapshot?;
                let counters: usize = snapshot.stored.iter().map(|stored| stored.data.len()).sum();
                info!(path = %path.display(), counters, "restored a snapshot");
                Some(snapshot)
            }
            Err(problem) => {
                let aside = match snapshot::set_aside(path) {
                    Ok(aside) => format!("moved to {}", aside.display()),
                    Err(error) => format!("left where it is: {error}"),
                };
                error!(path = %path.display(), %problem, aside, "unusable snapshot: counters start empty");
                None
            }
        }
    }

    /// Writes snapshots periodically, for as long as it is polled. Without a path it never writes.
    pub async fn write_periodically(self, clock: Clock) {
        loop {
            sleep(self.settings.snapshot_every).await;
            self.write(&clock).await;
        }
    }

    /// Writes a snapshot if there is a path. Errors are logged: the counters in memory are not affected.
    pub async fn write(&self, clock: &Clock) {
        let Some(path) = self.settings.snapshot.clone() else { return };
        let (persistence, clock, shown) = (self.clone(), clock.clone(), path.display().to_string());
        let written = spawn_blocking(move || {
            let _one_at_a_time = persistence.writing.lock().unwrap_or_else(PoisonError::into_inner);
            snapshot::write(
                &persistence.memory,
                &persistence.secret.get(),
                &*persistence.epochs.0,
                clock.now(),
                &path,
            )
        })
        .await;
        let written = written.map_err(|panic| SnapshotError::Io(std::io::Error::other(panic)));
        if let Err(problem) = written.flatten() {
            error!(path = shown, %problem, "cannot write the snapshot");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, num::NonZeroU64, path::Path};

    use super::*;
    use crate::{
        algorithm::{
            Classic, Excess, Limit, Operation, Rate, SlidingLog, SlidingWindow, Span, SteppedBucket,
            TokenBucket, Window,
        },
        descriptor::KeyText,
        store::{Check, OnRefusal, SlotData},
        time::SECOND,
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
    const HOUR: u64 = 3_600 * SECOND;

    fn settings(path: &Path) -> Settings {
        Settings {
            memory_limit: 1 << 24,
            on_full: OnFull::Deny,
            snapshot: Some(path.to_owned()),
            snapshot_every: Duration::from_secs(1),
        }
    }

    fn limits() -> [Limit; 5] {
        let (span, excess) = (Span::of_nanos(24 * HOUR).unwrap(), Excess::Refuse);
        let [one, hour] = [1, HOUR].map(|number| NonZeroU64::new(number).unwrap());
        [
            Limit::Classic(Classic { limit: 10, window: Window::Aligned(span) }),
            Limit::SlidingWindow(SlidingWindow { limit: 10, span, excess }),
            Limit::SlidingLog(SlidingLog { limit: 10, span, grain: one, excess }),
            Limit::TokenBucket(TokenBucket { rate: Rate::new(one, hour), burst: 10, excess }),
            Limit::SteppedBucket(SteppedBucket { amount: one, interval: hour, burst: 10, excess }),
        ]
    }

    fn left(persistence: &Persistence, limit: &Limit, operation: Operation, now: Timestamp) -> u64 {
        let key = KeyText::new("test").key(&limit.kind().bytes(), &persistence.secret.get());
        let check = Check { key, limit, operation, on_refusal: OnRefusal::TakeBack };
        persistence.memory.apply(&[check], now, |_| false).unwrap()[0].remaining
    }

    /// Charges four of ten hits of every limit and writes a snapshot.
    async fn written(path: &Path) -> Persistence {
        let persistence = Persistence::start(settings(path), NOW);
        for limit in limits() {
            assert_eq!(left(&persistence, &limit, Operation::Charge(4), NOW), 6);
        }
        persistence.write(&Clock::manual(NOW)).await;
        persistence
    }

    #[tokio::test]
    async fn counts_survive_restart_and_age_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let before = written(&path).await;
        let after = Persistence::start(settings(&path), NOW.plus(HOUR));
        assert_eq!(after.secret.get().to_bytes(), before.secret.get().to_bytes());
        let lefts = limits().map(|limit| left(&after, &limit, Operation::Peek, NOW.plus(HOUR)));
        assert_eq!(lefts, [6, 6, 6, 7, 7]);
    }

    #[tokio::test]
    async fn clock_behind_snapshot_locks_no_key_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        written(&path).await;
        let earlier = NOW.minus(1_000 * 24 * HOUR);
        let after = Persistence::start(settings(&path), earlier);
        let [classic, _, log, bucket, steps] = limits();
        for limit in [log, bucket, steps] {
            assert_eq!(left(&after, &limit, Operation::Peek, earlier), 6);
            assert_eq!(left(&after, &limit, Operation::Peek, earlier.plus(24 * HOUR)), 10);
        }
        assert_eq!(left(&after, &classic, Operation::Peek, earlier.plus(48 * HOUR)), 10);
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
            assert_eq!(Persistence::start(settings(&path), NOW).memory.stats().live, 0);
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
        persistence.write(&Clock::manual(NOW)).await;
        assert!(path.exists());
    }

    #[tokio::test]
    async fn stored_slots_survive_restart_with_their_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counters");
        let (before, none) = Persistence::start_shared(settings(&path), NOW);
        assert_eq!(none, []);
        let before = before.with_epochs(Epochs::new(|slot| 7 + u64::from(slot.0)));
        before.memory.each_slot().for_each(|slot| before.memory.acquire(slot, SlotData::default(), NOW));
        for limit in limits() {
            assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 8);
            assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 6);
        }
        before.write(&Clock::manual(NOW)).await;

        let (after, stored) = Persistence::start_shared(settings(&path), NOW.plus(HOUR));
        assert_eq!(
            (after.secret.get().to_bytes(), stored.len()),
            (before.secret.get().to_bytes(), limits().len())
        );
        assert!(after.memory.stats().backup_bytes > 0);
        for StoredSlot { slot, epoch, seq, data } in stored {
            assert_eq!((epoch, seq), (7 + u64::from(slot.0), 2));
            after.memory.acquire(slot, data, NOW.plus(HOUR));
        }
        let lefts = limits().map(|limit| left(&after, &limit, Operation::Peek, NOW.plus(HOUR)));
        assert_eq!(lefts, [6, 6, 6, 7, 7]);
        // A store without a cluster reads the same file.
        let standalone = Persistence::start(settings(&path), NOW.plus(HOUR));
        assert_eq!(standalone.memory.stats().live, limits().len());
    }

    #[test]
    fn missing_snapshot_starts_with_no_counters() {
        let folder = tempfile::tempdir().unwrap();
        let persistence = Persistence::start(settings(&folder.path().join("none")), NOW);
        assert_eq!(persistence.memory.stats().live, 0);
    }
}
