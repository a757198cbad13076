//! Withdrawals: take back what one attempt of a caller holds, as soon as the store answers.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tollgate_counter::time::Stopwatch;
use tollgate_remote::{CounterChecks, LATE_MAX, SubmissionMode};

use crate::{lanes::Lanes, part::BatchPart};

/// How often it is repeated.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The most withdrawals that are open. The expiry ends what others would take back.
const WITHDRAWALS_MAX: usize = 1_024;

/// The withdrawals that may still be opened.
#[derive(Debug)]
pub(super) struct Withdrawals(Arc<Semaphore>);

impl Default for Withdrawals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WITHDRAWALS_MAX)))
    }
}

impl Withdrawals {
    /// Starts a withdrawal, unless too many are open. Each attempt waits for `timeout`.
    pub(super) fn start(&self, checks: CounterChecks, timeout: Duration, lanes: Arc<Lanes>) {
        if let Ok(permit) = self.0.clone().try_acquire_owned() {
            tokio::spawn(async move {
                withdraw(checks, timeout, &lanes).await;
                drop(permit);
            });
        }
    }
}

async fn withdraw(mut left: CounterChecks, timeout: Duration, lanes: &Arc<Lanes>) {
    let started = Stopwatch::start();
    // After that the expiry ends what is held.
    while started.elapsed() < LATE_MAX {
        let part = BatchPart::new(left.clone(), SubmissionMode::Each, lanes.deadline(timeout), None);
        let mut outcomes = lanes.apply_by_lane(part).await.into_iter();
        left.retain(|_| outcomes.next().flatten().is_none());
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(WITHDRAWAL_INTERVAL).await;
    }
}
