//! Phases of the process, and what readiness and health checks report in each.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::{info, warn};

use crate::{api::http::Readiness, cluster::Cluster, rules::ActiveRules};

/// How often the state of cluster links is checked.
const LINKS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Service names of the health service; the empty name is the whole server.
const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

/// Phases in their order. A process never returns to an earlier phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// LinkListener, but rules are not loaded or the cluster is not joined.
    Starting,
    /// Answering requests.
    Serving,
    /// Answering requests, but reporting not ready.
    Draining,
    /// Finishing open requests only.
    Stopping,
}

/// State that decides readiness.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) active_rules: Arc<ActiveRules>,
    pub(super) cluster: Option<Cluster>,
}

impl Probe {
    /// The peers that reject links, if all links are rejected. In this case each side would admit the whole limits.
    fn rejecting_peers(&self) -> Option<String> {
        self.cluster.as_ref().and_then(Cluster::rejected)
    }
}

impl Readiness for Probe {
    fn ready(&self) -> Result<(), String> {
        let phase = *self.phase.borrow();
        if let (Phase::Starting | Phase::Serving, Some(peers)) = (phase, self.rejecting_peers()) {
            return Err(format!("every link to another replica is rejected: {peers}\n"));
        }
        match phase {
            Phase::Starting if self.active_rules.current().is_some() => {
                Err("still joining the cluster\n".to_owned())
            }
            Phase::Starting => Err(match self.active_rules.status().last_error {
                Some(error) => format!("no valid rules are loaded yet:\n{}\n", error.problems),
                None => "no rules are loaded yet\n".to_owned(),
            }),
            Phase::Serving => Ok(()),
            Phase::Draining | Phase::Stopping => Err("leaving\n".to_owned()),
        }
    }
}

/// Waits until `phase` is reached or passed.
pub(super) async fn wait_for_phase(mut phases: watch::Receiver<Phase>, phase: Phase) {
    // An error means that the sender was dropped, which ends the wait too.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

/// Updates the health service for as long as it is polled.
pub(super) async fn report_health(reporter: HealthReporter, mut probe: Probe) {
    let mut reported = None;
    loop {
        let phase = *probe.phase.borrow_and_update();
        let rejected = probe.rejecting_peers();
        if reported != Some((phase, rejected.is_some())) {
            report(&reporter, phase, rejected.is_some()).await;
            match &rejected {
                Some(peers) => warn!(peers, "not ready: every link to another replica is rejected"),
                None if reported.is_some_and(|(_, rejected)| rejected) => {
                    info!("links to other replicas are no longer all rejected");
                }
                None => {}
            }
            reported = Some((phase, rejected.is_some()));
        }
        if let Ok(Err(_)) = timeout(LINKS_CHECK_INTERVAL, probe.phase.changed()).await {
            return;
        }
    }
}

async fn report(reporter: &HealthReporter, phase: Phase, rejected: bool) {
    for name in HEALTH_NAMES {
        match phase {
            Phase::Starting | Phase::Draining => {
                reporter.set_service_status(name, ServingStatus::NotServing).await;
            }
            Phase::Serving if rejected => {
                reporter.set_service_status(name, ServingStatus::NotServing).await;
            }
            Phase::Serving => reporter.set_service_status(name, ServingStatus::Serving).await,
            // Clearing the status ends watch streams, so that they do not delay the shutdown.
            Phase::Stopping => reporter.clone().clear_service_status(name).await,
        }
    }
}
