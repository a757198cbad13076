use std::{fs, path::Path};

use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, QuotaTerms, Window, laws::every_limit},
    descriptor::KeyText,
    time::SECOND,
};
use tollgate_store::{
    Check, Checks, HOLD_TTL_DEFAULT, HoldId, HoldTerms, LimitOrigin, OnExpiry, OnRefusal, SettleOutcome,
    SlotData, SubscriberId, UnknownId,
    divider::{Assignment, DividerReport, SubscriberReport, SubscriberUsage},
};

use super::*;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const HOUR: u64 = 3_600 * SECOND;
const SECRET: Secret = Secret::from_bytes([5; 16]);

fn settings(path: &Path) -> PersistenceSettings {
    PersistenceSettings {
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
    let check = Check { key, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule };
    persistence.memory.apply_single(&check, now).unwrap().decision.remaining
}

fn checks(limit: &Limit, hits: u64) -> Checks<'_> {
    let key = KeyText::new("test").key(&limit.kind().bytes(), &SECRET);
    let operation = Operation::Charge(hits);
    let on_refusal = OnRefusal::TakeBack;
    Checks::from_slice(&[Check { key, limit, operation, on_refusal, origin: LimitOrigin::Rule }])
}

/// What is left three hours after four of ten hits: a tenth of the day has refilled what refills over time.
fn refilled(limit: &Limit, now: Timestamp) -> u64 {
    let mut counter = limit.fresh();
    limit.decide(&mut counter, NOW, Operation::Charge(4));
    let left = limit.decide(&mut counter, now, Operation::Peek).remaining;
    assert!((6..=7).contains(&left), "{limit:?}");
    left
}

/// Writes a snapshot at once.
async fn write(persistence: &Persistence, clock: &Clock) {
    persistence.write_with(BackgroundPriority::Normal, clock, SECRET, None).await;
}

/// Charges four of ten hits of every limit and writes a snapshot.
async fn written(path: &Path) -> Persistence {
    let persistence = Persistence::start(settings(path), NOW).0;
    for limit in limits() {
        assert_eq!(left(&persistence, &limit, Operation::Charge(4), NOW), 6);
    }
    write(&persistence, &Clock::manual(NOW)).await;
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
async fn divisions_go_on_in_the_next_process_and_in_no_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let window = Window::from_nanos(24 * HOUR).unwrap();
    let limit = Limit::FixedWindow(FixedWindow { limit: 500, window, excess: Excess::Refuse });
    let report = |dividers: &Dividers, stream, now| {
        let usage = SubscriberUsage { denied: 1, ..SubscriberUsage::default() };
        let report = SubscriberReport {
            key: KeyText::new("test").key(&limit.kind().bytes(), &SECRET),
            limit: limit.clone(),
            id: SubscriberId { replica: 0, stream, bucket: 0 },
            terms: QuotaTerms::default(),
            report: DividerReport::Usage(usage),
        };
        dividers.report(&report, now)
    };
    let start = |now| {
        let (persistence, _) = Persistence::start(settings(&path), now);
        let dividers = persistence.start_dividers(now);
        (persistence, dividers)
    };
    let state = |persistence: &Persistence, dividers: &Dividers, now| {
        (dividers.granted().hits, left(persistence, &limit, Operation::Peek, now))
    };
    let (first, dividers) = start(NOW);
    let now = NOW.plus(20 * SECOND);
    assert!(matches!(report(&dividers, 1, now)[..], [(_, Assignment::Slice(20))]));
    let (clock, deadline) = (Clock::manual(now), Instant::now() + Duration::from_secs(60));
    first.write_last(&clock, SECRET, Some(dividers), deadline).await;

    let now = now.plus(SECOND);
    let (next, dividers) = start(now);
    assert_eq!(state(&next, &dividers, now), (20, 480));
    assert!(matches!(report(&dividers, 2, now)[..], [(_, Assignment::Slice(20))]), "it learns nothing");
    // The next one ends without a snapshot.
    let (later, dividers) = start(now);
    assert_eq!(state(&later, &dividers, now), (0, 480));
    assert!(report(&dividers, 3, now).is_empty(), "it learns");
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
        assert!(before.memory.reserve(&checks(limit, 4), &terms, NOW, |_| false).unwrap().unwrap().is_held);
    }
    write(&before, &Clock::manual(NOW)).await;

    for now in [NOW.plus(59 * SECOND), NOW.minus(1_000 * 24 * HOUR)] {
        let (after, _) = Persistence::start(settings(&path), now);
        assert_eq!(after.memory.stats().holds_open, limits().len());
        for limit in &limits() {
            let settled = after.memory.settle(&checks(limit, 1), &id, UnknownId::Remember, now).unwrap()[0];
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
    write(&persistence, &Clock::manual(NOW)).await;
    assert!(path.exists());
}

#[tokio::test]
async fn periodic_snapshot_makes_way_for_an_urgent_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let persistence = written(&path).await;
    let before = fs::read(&path).unwrap();
    let (earlier, later) = (Clock::manual(NOW.plus(SECOND)), Clock::manual(NOW.plus(2 * SECOND)));
    let periodic = || persistence.write_with(BackgroundPriority::Idle, &earlier, SECRET, None);

    persistence.urgent.fetch_add(1, Relaxed);
    periodic().await;
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(!folder.path().join("counters.new").exists());

    persistence.urgent.fetch_sub(1, Relaxed);
    periodic().await;
    assert_ne!(fs::read(&path).unwrap(), before);

    // Whatever their order is, the file is a whole snapshot at the end, and later periodic ones are written again.
    tokio::join!(periodic(), write(&persistence, &later), periodic());
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
    let memory = before.memory.clone();
    let before = before.with_copies(move |slot| memory.copy(slot, Epoch(7 + u64::from(slot.0))));
    before.memory.each_slot().for_each(|slot| before.memory.acquire(slot, SlotData::default(), NOW));
    for limit in limits() {
        assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 8);
        assert_eq!(left(&before, &limit, Operation::Charge(2), NOW), 6);
    }
    write(&before, &Clock::manual(NOW)).await;

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
