//! Runs this process as a replica of a cluster.

use std::{sync::Arc, time::Duration};

use tollgate_cluster::{Cluster, ClusterSettings};
use tollgate_counter::{descriptor::Secret, time::Clock};
use tollgate_rules::ActiveRules;
use tracing::{info, warn};

use crate::{
    persistence::{Persistence, PersistenceSettings},
    server::tasks::{ServiceError, Tasks},
};

/// Time for goodbyes to be sent.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Restores stored counters with their secret and, if there are cluster settings, listens for other replicas, with a task
/// for the links to them.
pub(super) async fn start(
    settings: Option<ClusterSettings>,
    store: PersistenceSettings,
    clock: &Clock,
    active_rules: &Arc<ActiveRules>,
    tasks: &mut Tasks,
) -> Result<(Persistence, Option<Cluster>), ServiceError> {
    let set_secret =
        |secret: Option<Secret>| secret.into_iter().for_each(|secret| active_rules.set_secret(secret));
    let Some(settings) = settings else {
        let (persistence, secret) = Persistence::start(store, clock.now());
        set_secret(secret);
        return Ok((persistence, None));
    };
    let (persistence, secret, stored) = Persistence::start_shared(store, clock.now());
    set_secret(secret);
    let memory = persistence.memory.clone();
    let rules = active_rules.clone();
    let (cluster, listening) = Cluster::bind(settings, memory, stored, rules, clock.clone()).await?;
    info!(listener = "cluster", address = %listening.address(), member = %cluster.local_id(), "listening");
    let slots = cluster.clone();
    let memory = persistence.memory.clone();
    let persistence = persistence.with_copies(move |slot| slots.copy(&memory, slot));
    let linked = cluster.clone();
    tasks.links.spawn(async move { linked.run(listening).await });
    Ok((persistence, Some(cluster)))
}

/// Announces the hash of the active rules to other replicas, for as long as it is polled.
pub(super) async fn announce_rules(cluster: Cluster, active_rules: Arc<ActiveRules>) {
    loop {
        let changed = active_rules.changed();
        let hash = active_rules.status().hash.unwrap_or_default();
        // Other replicas compare it for equality only.
        let digits = hash.get(..16).unwrap_or_default();
        cluster.rules_changed(u64::from_str_radix(digits, 16).unwrap_or_default());
        changed.await;
    }
}

/// Leaves the cluster and logs slots that were not handed off.
pub(super) async fn leave(cluster: &Cluster) {
    let is_last = cluster.is_last_member();
    match cluster.leave(LEAVE_TIMEOUT).await {
        0 => info!("left the cluster"),
        slots if is_last => info!(slots, "left the cluster as its last member"),
        slots => warn!(slots, "left the cluster with slots that were not handed off"),
    }
}
