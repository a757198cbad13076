//! Tells when answers begin to be given without the replicas that hold their counters, and when that is over: two
//! lines in the log, however many answers there are.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::cluster::Cluster;

/// How often it is looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// It is over after so many looks without any.
const QUIET_SAMPLES: u32 = 10;

/// Whether answers are degraded, as far as looks tell.
#[derive(Debug, Default)]
struct Outage {
    seen: u64,
    // How many there were before it began, and how many looks it has been quiet for.
    open: Option<(u64, u32)>,
}

/// What is to be told, and how many checks there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    Started(u64),
    Ended(u64),
}

impl Cluster {
    pub(super) async fn log_degraded(self) {
        let mut outage = Outage::default();
        let mut samples = interval(SAMPLE_INTERVAL);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            samples.tick().await;
            let degraded = self.0.lock().node.stats().degraded;
            match outage.observe(degraded) {
                Some(Transition::Started(checks)) => {
                    warn!(checks, "decides without replicas that hold counters, for they cannot be reached");
                }
                Some(Transition::Ended(checks)) => {
                    warn!(checks, "decides again with the replicas that hold counters");
                }
                None => {}
            }
        }
    }
}

impl Outage {
    /// What a look tells at which there have been so many degraded checks since the start.
    fn observe(&mut self, degraded: u64) -> Option<Transition> {
        let before = std::mem::replace(&mut self.seen, degraded);
        let is_quiet = degraded == before;
        match &mut self.open {
            None if is_quiet => None,
            None => {
                self.open = Some((before, 0));
                Some(Transition::Started(degraded - before))
            }
            Some((started, quiet)) => {
                *quiet = if is_quiet { *quiet + 1 } else { 0 };
                let ended = (QUIET_SAMPLES <= *quiet).then(|| Transition::Ended(degraded - *started));
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
    fn an_outage_is_told_of_once_when_it_begins_and_once_when_it_is_over() {
        let mut outage = Outage::default();
        let quiet = |outage: &mut Outage, degraded| {
            (1..QUIET_SAMPLES).for_each(|_| assert_eq!(outage.observe(degraded), None));
        };
        assert_eq!(outage.observe(0), None);
        assert_eq!(outage.observe(3), Some(Transition::Started(3)));
        assert_eq!(outage.observe(7), None);
        quiet(&mut outage, 7);
        // Not over: there is another one.
        assert_eq!(outage.observe(8), None);
        quiet(&mut outage, 8);
        assert_eq!(outage.observe(8), Some(Transition::Ended(8)));
        quiet(&mut outage, 8);
        assert_eq!(outage.observe(8), None);
        assert_eq!(outage.observe(9), Some(Transition::Started(1)));
    }
}
