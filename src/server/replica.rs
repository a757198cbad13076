//! This process as one of several that share keys.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::interval};
use tracing::{info, warn};

use crate::{
    cluster::{
        self, Cluster,
        link::{self, LinkListener},
    },
    rules::ActiveRules,
    server::Error,
    store::{self, Epochs, Persistence},
    time::Clock,
};

/// How long goodbyes may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How often the others are told of the rules in force, if these have changed.
const RULES_CHECK: Duration = Duration::from_millis(250);

/// A replica that listens to others.
#[derive(Debug)]
pub(super) struct Replica {
    cluster: Cluster,
    listening: LinkListener,
}

impl Replica {
    /// Reads what was kept, and listens to other replicas where keys are shared with any.
    pub(super) async fn start(
        settings: Option<cluster::Settings>,
        store: store::Settings,
        clock: &Clock,
    ) -> Result<(Persistence, Option<Self>), Error> {
        let Some(settings) = settings else { return Ok((Persistence::start(store, clock.now()), None)) };
        let (keeping, stored) = Persistence::start_shared(store, clock.now());
        let (memory, secret) = (keeping.memory.clone(), keeping.secret.clone());
        let (cluster, listening) = Cluster::bind(settings, memory, stored, secret, clock.clone()).await?;
        info!(listener = "cluster", address = %listening.address(), member = %cluster.local_id(), "listening");
        let told = cluster.clone();
        let keeping = keeping.with_epochs(Epochs::new(move |slot| told.epoch(slot)));
        Ok((keeping, Some(Self { cluster, listening })))
    }

    pub(super) fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    pub(super) async fn run(self) -> Result<(), link::Error> {
        self.cluster.run(self.listening).await
    }
}

/// Tells the others which rules are in force here, for as long as it is polled.
pub(super) async fn tell_rules(cluster: Cluster, active_rules: Arc<ActiveRules>) {
    let mut ticks = interval(RULES_CHECK);
    loop {
        ticks.tick().await;
        let hash = active_rules.status().hash.unwrap_or_default();
        // The others only compare it.
        let digits = hash.get(..16).unwrap_or_default();
        cluster.rules_changed(u64::from_str_radix(digits, 16).unwrap_or_default());
    }
}

/// The end of the links, which end before the process only when something is wrong; never without links.
pub(super) async fn end_of(links: &mut JoinSet<Result<(), link::Error>>) -> Error {
    match links.join_next().await {
        None => std::future::pending().await,
        Some(Ok(Ok(()))) => Error::Ended { part: "the links", why: "nobody told them to".to_owned() },
        Some(Ok(Err(error))) => error.into(),
        Some(Err(panic)) => Error::Ended { part: "the links", why: panic.to_string() },
    }
}

/// Says goodbye, and tells of what nobody has taken.
pub(super) async fn leave(cluster: &Cluster) {
    let takers = cluster.stats().members;
    match cluster.leave(GOODBYE).await {
        0 => info!("left the cluster"),
        slots if takers == 0 => info!(slots, "left the cluster as the last, so nobody took its slots"),
        slots => warn!(slots, "left the cluster with slots that were not handed on"),
    }
}
