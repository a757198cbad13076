//! Logs when checks begin to be decided without the owners of their counters, and when that ends: two lines for each
//! outage, whatever the number of checks.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::replica::Cluster;

/// How often the number of degraded checks is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// An outage ends after this many samples without a degraded check.
const QUIET_SAMPLES: u32 = 10;

/// Detects outages in samples of the number of degraded checks.
#[derive(Debug, Default)]
struct Outage {
    seen: u64,
    // The number before the outage began, and the number of quiet samples since the last degraded check.
    open: Option<(u64, u32)>,
}

const STARTED: &str = "owners are unreachable: checks are decided without them";
const ENDED: &str = "checks are decided by their owners again";

impl Cluster {
    pub(super) async fn log_degraded(self) {
        let mut outage = Outage::default();
        loop {
            sleep(self.0.clock.now().until_tick(SAMPLE_INTERVAL)).await;
            let degraded = self.0.local_share.lock().decided();
            if let Some((what, checks)) = outage.observe(degraded) {
                warn!(checks, "{what}");
            }
        }
    }
}

impl Outage {
    /// Evaluates one sample: the number of degraded checks since the process started. Returns what to log, with the number
    /// of checks, if an outage has begun or ended.
    fn observe(&mut self, degraded: u64) -> Option<(&'static str, u64)> {
        let before = std::mem::replace(&mut self.seen, degraded);
        let is_quiet = degraded == before;
        match &mut self.open {
            None if is_quiet => None,
            None => {
                self.open = Some((before, 0));
                Some((STARTED, degraded - before))
            }
            Some((started, quiet)) => {
                *quiet = if is_quiet { *quiet + 1 } else { 0 };
                let ended = (*quiet >= QUIET_SAMPLES).then(|| (ENDED, degraded - *started));
                if ended.is_some() {
                    self.open = None;
                }
                ended
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_is_logged_once_at_its_start_and_once_at_its_end() {
        let mut outage = Outage::default();
        let quiet = |outage: &mut Outage, degraded| {
            (1..QUIET_SAMPLES).for_each(|_| assert_eq!(outage.observe(degraded), None));
        };
        assert_eq!(outage.observe(0), None);
        assert_eq!(outage.observe(3), Some((STARTED, 3)));
        assert_eq!(outage.observe(7), None);
        quiet(&mut outage, 7);
        // A new degraded check continues the outage.
        assert_eq!(outage.observe(8), None);
        quiet(&mut outage, 8);
        assert_eq!(outage.observe(8), Some((ENDED, 8)));
        quiet(&mut outage, 8);
        assert_eq!(outage.observe(8), None);
        assert_eq!(outage.observe(9), Some((STARTED, 1)));
    }
}
