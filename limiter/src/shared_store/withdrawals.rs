//! Withdrawals: take back what one attempt of a caller holds, as soon as the store answers.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use crate::{
    remote::CounterChecks,
    shared_store::{clocks::Clocks, lanes::Lanes},
};

/// For so long a withdrawal is repeated while the store does not answer. Then the expiry ends what is held.
const WITHDRAWAL_MAX: Duration = Duration::from_secs(30);
/// How often it is repeated.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The most withdrawals that are open. The expiry ends what others would take back.
const WITHDRAWALS_MAX: usize = 1_024;

/// The withdrawals that are open. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Withdrawals {
    clocks: Clocks,
    /// How long one attempt waits.
    timeout: Duration,
    free: Arc<Semaphore>,
}

impl Withdrawals {
    pub(super) fn new(clocks: Clocks, timeout: Duration) -> Self {
        Self { clocks, timeout, free: Arc::new(Semaphore::new(WITHDRAWALS_MAX)) }
    }

    /// Starts a withdrawal, unless too many are open.
    pub(super) fn start(&self, checks: CounterChecks, lanes: Arc<Lanes>) {
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            let all = self.clone();
            tokio::spawn(async move {
                all.withdraw(checks, &lanes).await;
                drop(permit);
            });
        }
    }

    async fn withdraw(&self, checks: CounterChecks, lanes: &Arc<Lanes>) {
        let last = self.clocks.local().after(WITHDRAWAL_MAX);
        let mut left = checks;
        while self.clocks.local() < last {
            let deadline = self.clocks.local().after(self.timeout);
            let mut outcomes = lanes.apply_by_lane(&left, deadline, None).await.into_iter();
            left.retain(|_| outcomes.next().flatten().is_none());
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(WITHDRAWAL_INTERVAL).await;
        }
    }
}
