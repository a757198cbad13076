//! Tells when answers begin to be given without the replicas that hold their counters, and when that is over: two
//! lines in the log, however many answers there are.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::cluster::Cluster;

/// How often it is looked at.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// It is over after so many looks without any.
const QUIET_LOOKS: u32 = 10;

/// Whether answers are degraded, as far as looks tell.
#[derive(Debug, Default)]
struct Outage {
    seen: u64,
    // How many there were before it began, and how many looks it has been quiet for.
    open: Option<(u64, u32)>,
}

/// What is to be told, and how many checks there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Begun(u64),
    Over(u64),
}

impl Cluster {
    pub(super) async fn tell_of_degraded(self) {
        let mut outage = Outage::default();
        let mut looks = interval(LOOKED_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let degraded = self.0.lock().node.figures().degraded;
            match outage.look(degraded) {
                Some(Told::Begun(checks)) => {
                    warn!(checks, "decides without replicas that hold counters, for they cannot be reached");
                }
                Some(Told::Over(checks)) => {
                    warn!(checks, "decides again with the replicas that hold counters");
                }
                None => {}
            }
        }
    }
}

impl Outage {
    /// What a look tells at which there have been so many degraded checks since the start.
    fn look(&mut self, degraded: u64) -> Option<Told> {
        let before = std::mem::replace(&mut self.seen, degraded);
        let is_quiet = degraded == before;
        match &mut self.open {
            None if is_quiet => None,
            None => {
                self.open = Some((before, 0));
                Some(Told::Begun(degraded - before))
            }
            Some((began, quiet)) => {
                *quiet = if is_quiet { *quiet + 1 } else { 0 };
                let over = (QUIET_LOOKS <= *quiet).then(|| Told::Over(degraded - *began));
                if over.is_some() {
                    self.open = None;
                }
                over
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
            (1..QUIET_LOOKS).for_each(|_| assert_eq!(outage.look(degraded), None));
        };
        assert_eq!(outage.look(0), None);
        assert_eq!(outage.look(3), Some(Told::Begun(3)));
        assert_eq!(outage.look(7), None);
        quiet(&mut outage, 7);
        // Not over: there is another one.
        assert_eq!(outage.look(8), None);
        quiet(&mut outage, 8);
        assert_eq!(outage.look(8), Some(Told::Over(8)));
        quiet(&mut outage, 8);
        assert_eq!(outage.look(8), None);
        assert_eq!(outage.look(9), Some(Told::Begun(1)));
    }
}
