//! Fuzz targets of slot data and snapshots.

use std::{fs, hash::Hasher, path::Path, time::Duration};

use siphasher::sip::SipHasher13;

use crate::{
    files::fuzz::temporary,
    store::{Memory, OnFull, Persistence, Settings, Slot, SlotData},
    time::{SECOND, Timestamp},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const MEMORY_LIMIT: usize = 1 << 24;

/// Slot data of another replica: what is decoded is encoded to the same, and a store accepts, copies and returns it.
pub fn slot_data(bytes: &[u8]) {
    let Ok(data) = SlotData::decode(bytes, NOW) else { return };
    let encoded = data.encode(NOW);
    let decoded = SlotData::decode(&encoded, NOW).expect("encoded slot data is valid");
    assert_eq!(decoded, SlotData::decode(&decoded.encode(NOW), NOW).expect("encoded slot data is valid"));
    let memory = Memory::new(MEMORY_LIMIT as u64, OnFull::Deny).with_slots(2).shared();
    memory.track_changes();
    let Some(data) = memory.within_limit(data) else { return };
    let mut copy = decoded;
    copy.merge(data.clone());
    memory.acquire(Slot(0), data, NOW);
    let later = NOW.plus(SECOND);
    memory.whole(Slot(0)).data.encode(later);
    let (released, _) = memory.release(Slot(0)).expect("the slot was acquired");
    memory.acquire(Slot(0), released, later);
    memory.acquire(Slot(1), copy.without_idle(later), later);
    assert!(memory.stats().bytes <= MEMORY_LIMIT, "{:?}", memory.stats());
}

/// A snapshot without its checksum: the process starts with its counters or without them, alone and in a cluster.
pub fn snapshot(bytes: &[u8]) {
    let mut hash = SipHasher13::new();
    hash.write(bytes);
    let bytes = [bytes, &hash.finish().to_le_bytes()].concat();
    let shared = |path: &Path| Persistence::start_shared(settings(path), NOW).0;
    let alone = |path: &Path| Persistence::start(settings(path), NOW).0;
    for start in [&alone as &dyn Fn(&Path) -> Persistence, &shared] {
        let path = temporary("snapshot", &bytes);
        let started = start(&path);
        assert!(started.memory.stats().bytes <= MEMORY_LIMIT, "{:?}", started.memory.stats());
        // Either the snapshot or what was set aside.
        let aside = path.with_file_name(format!("{}.bad", path.file_name().unwrap_or_default().display()));
        let removed = [path, aside].into_iter().filter(|path| fs::remove_file(path).is_ok());
        assert_eq!(removed.count(), 1);
    }
}

fn settings(path: &Path) -> Settings {
    Settings {
        memory_limit: MEMORY_LIMIT as u64,
        on_full: OnFull::Deny,
        snapshot: Some(path.to_owned()),
        snapshot_every: Duration::from_secs(10),
    }
}
