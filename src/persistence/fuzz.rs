//! The fuzz target of snapshots.

use std::{fs, hash::Hasher, path::Path, time::Duration};

use siphasher::sip::SipHasher13;
use tollgate_counter::{
    files::fuzz::temporary,
    time::{SECOND, Timestamp},
};
use tollgate_store::OnFull;

use crate::persistence::{Persistence, PersistenceSettings};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const MEMORY_LIMIT: usize = 1 << 24;

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

fn settings(path: &Path) -> PersistenceSettings {
    PersistenceSettings {
        memory_limit: MEMORY_LIMIT as u64,
        on_full: OnFull::Deny,
        snapshot: Some(path.to_owned()),
        snapshot_every: Duration::from_secs(10),
    }
}
