//! Statistics of the cluster, for the metrics page.

use std::{sync::Arc, time::Duration};

use crate::{link, message::MemberState, node, replica::Cluster};

/// Statistics of this replica in the cluster.
#[derive(Clone, Debug)]
pub struct ClusterStats {
    /// The counts of the node.
    pub node: node::NodeStats,
    /// Checks decided without their owners.
    pub degraded: u64,
    /// Charges decided without their owners that had no memory for their key.
    pub local_share_full: u64,
    /// The counts of the links.
    pub links: Arc<link::LinkStats>,
    /// The state of this replica.
    pub state: MemberState,
    /// Members that are reachable and serve, this one included.
    pub members: usize,
    /// Slots owned by this replica.
    pub slots_owned: usize,
    /// Slots whose owner is unknown or differs from the placement.
    pub slots_moving: usize,
    /// Members whose rules differ from those of this replica.
    pub members_with_other_rules: usize,
    /// Whether fewer members are reachable than this replica needs to trust its counters.
    pub is_isolated: bool,
    /// The processes that reject every link, if there is no link and there are such processes.
    pub rejected_by: Option<String>,
    /// The time since the last acknowledged backup, or since this replica started.
    pub backup_age: Duration,
}

impl Cluster {
    /// The statistics so far.
    pub fn stats(&self) -> ClusterStats {
        let links = self.0.links.stats().clone();
        let rejected_by = self.0.links.strangers().map(|strangers| strangers.named);
        let (degraded, local_share_full) = {
            let local_share = self.0.local_share.lock();
            (local_share.decided(), local_share.full())
        };
        self.0.with_node(|node, now| ClusterStats {
            node: node.stats(),
            degraded,
            local_share_full,
            links,
            state: node.state(),
            members: node.serving(),
            slots_owned: node.owned_slots().count(),
            slots_moving: node.moving(),
            members_with_other_rules: node.with_other_rules(),
            is_isolated: node.is_isolated(),
            rejected_by,
            // Without any acknowledged backup, the age is that of this replica.
            backup_age: node.backup_age(now).min(self.0.started.elapsed()),
        })
    }
}
