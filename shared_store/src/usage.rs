//! Charges to the store what local shares have admitted, once the store answers again.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tollgate_counter::{descriptor::Key, lock::Lock, time::Timestamp};
use tollgate_remote::{Admitted, CounterCheck, CounterChecks, LocalShare, SubmissionMode};
use tollgate_store::CounterOperation;

use crate::{clocks::Clocks, lanes::Lanes, part::BatchPart};

/// How often charging is tried while something is to be charged.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counters that are charged at once, so that callers need not wait for all.
const KEYS_AT_ONCE: usize = 256;

/// Charges what was admitted, until it is cancelled.
pub(super) async fn charge_admitted(local_share: &Lock<LocalShare>, lanes: &Arc<Lanes>, clocks: &Clocks) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let keys: Vec<Key> = local_share.lock().admitted_keys().collect();
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let charges = keys.iter().map(|key| charge(*key, local_share, lanes, clocks));
            if !join_all(charges).await.contains(&true) {
                break;
            }
        }
    }
}

/// Charges what was admitted of one key. Returns whether the store took it. If only the answer is lost, it is charged
/// twice.
async fn charge(key: Key, local_share: &Lock<LocalShare>, lanes: &Arc<Lanes>, clocks: &Clocks) -> bool {
    let Some(Admitted { limit, counter }) = local_share.lock().take_admitted(key) else { return true };
    let operation = CounterOperation::Absorb(counter.clone());
    let checks = CounterChecks::from_iter([CounterCheck::by_counter(key, limit.clone(), operation)]);
    // The lane answers every part, so there is no other bound on the wait.
    if lanes.apply(BatchPart::new(checks, SubmissionMode::Each, Timestamp::MAX, None)).await.is_some() {
        return true;
    }
    local_share.lock().put_back(key, Admitted { limit, counter }, clocks.degraded());
    false
}
