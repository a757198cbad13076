//! After an outage: charges to the store what local shares admitted meanwhile.

use std::time::Duration;

use crate::{
    descriptor::Key,
    remote::{COUNTER_ONLY, CounterCheck, CounterChecks, Mode, lock},
    shared_store::SharedStore,
    store::{Admitted, CounterOperation, OnRefusal},
    time::Timestamp,
};

/// How often this is tried while something is to be charged.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counters that are charged at once, so that callers need not wait for all.
const KEYS_AT_ONCE: usize = 256;

impl SharedStore {
    /// Charges what was admitted, until it is cancelled.
    pub(super) async fn charge_admitted(self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let keys: Vec<Key> = lock(&self.0.share).admitted_keys().collect();
            for keys in keys.chunks(KEYS_AT_ONCE) {
                let charged = futures_util::future::join_all(keys.iter().map(|key| self.charge(*key))).await;
                if !charged.contains(&true) {
                    break;
                }
            }
        }
    }

    /// Charges what was admitted of one key. Returns whether the store took it. If only the answer is lost, it is
    /// charged twice.
    async fn charge(&self, key: Key) -> bool {
        let shared = &self.0;
        let Some(Admitted { limit, counter }) = lock(&shared.share).take_admitted(key) else { return true };
        let operation = CounterOperation::Absorb(counter.clone());
        let check = CounterCheck {
            key,
            limit: limit.clone(),
            operation,
            on_refusal: OnRefusal::Keep,
            policy: COUNTER_ONLY,
        };
        let checks = CounterChecks::from_iter([check]);
        // The lane answers every part, so there is no other bound on the wait.
        if shared.decide_part(checks, Mode::Each, Timestamp::MAX, None).await.is_ok() {
            return true;
        }
        lock(&shared.share).put_back(key, Admitted { limit, counter }, shared.degraded_now());
        false
    }
}
