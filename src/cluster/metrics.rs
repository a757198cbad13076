//! What sharing keys has cost, for the page of metrics.

use std::time::Duration;

use crate::cluster::{Cluster, State, link, node};

/// Figures of this replica's place in the cluster.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What its part has counted.
    pub(crate) part: node::Figures,
    /// What became of links.
    pub links: link::Stats,
    /// What this replica is doing.
    pub state: State,
    /// Members that are heard and serve, this one included.
    pub members: usize,
    /// Slots that are held here.
    pub holding: usize,
    /// Slots whose holder is not the wanted one, or unknown.
    pub moving: usize,
    /// Members that decide by other rules.
    pub of_other_rules: usize,
    /// Whether too few others are heard.
    pub isolated: bool,
    /// How long ago a backup of what is held here last arrived, or this replica began.
    pub backup_age: Duration,
}

impl Cluster {
    /// What sharing keys has cost so far.
    pub fn figures(&self) -> Figures {
        let links = self.0.links.stats();
        self.0.with(|node, now| Figures {
            part: node.figures(),
            links,
            state: node.state(),
            members: node.serving(),
            holding: node.slots_held().count(),
            moving: node.moving(),
            of_other_rules: node.of_other_rules(),
            isolated: node.is_isolated(),
            // Before the first one arrives it began no earlier than this replica.
            backup_age: node.backup_age(now).min(self.0.began.elapsed()),
        })
    }
}
