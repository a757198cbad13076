//! What sharing keys has cost, for the page of metrics.

use std::time::Duration;

use crate::cluster::{Cluster, MemberState, link, node};

/// Figures of this replica's place in the cluster.
#[derive(Clone, Debug)]
pub struct Stats {
    /// What its part has counted.
    pub(crate) node: node::Stats,
    /// What became of links.
    pub links: link::Figures,
    /// What this replica is doing.
    pub state: MemberState,
    /// Members that are heard and serve, this one included.
    pub members: usize,
    /// Slots that are held here.
    pub slots_owned: usize,
    /// Slots whose holder is not the wanted one, or unknown.
    pub slots_moving: usize,
    /// Members that decide by other rules.
    pub members_with_other_rules: usize,
    /// Whether too few others are heard.
    pub is_isolated: bool,
    /// How long ago a backup of what is held here last arrived, or this replica began.
    pub backup_age: Duration,
}

impl Cluster {
    /// What sharing keys has cost so far.
    pub fn stats(&self) -> Stats {
        let links = self.0.links.figures();
        self.0.with_node(|node, now| Stats {
            node: node.stats(),
            links,
            state: node.state(),
            members: node.serving(),
            slots_owned: node.owned_slots().count(),
            slots_moving: node.moving(),
            members_with_other_rules: node.with_other_rules(),
            is_isolated: node.is_isolated(),
            // Before the first one arrives it began no earlier than this replica.
            backup_age: node.backup_age(now).min(self.0.started.elapsed()),
        })
    }
}
