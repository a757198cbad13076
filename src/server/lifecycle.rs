//! Phases of the process, and what readiness and health checks report in each.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};
use tollgate_cluster::{Cluster, LinkTrust};
use tollgate_counter::time::Clock;
use tollgate_rules::ActiveRules;
use tollgate_shared_store::SharedStore;
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::{info, warn};

use crate::api::admin::state::Readiness;

/// How often the state of cluster links is checked.
const LINKS_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Why a replica is not ready, or what is wrong although it is.
const ALL_LINKS_REJECTED: &str = "every link to another replica is rejected";

/// Service names of the health service; the empty name is the whole server.
const HEALTH_NAMES: [&str; 4] =
    ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService", "tollgate.v1.RateLimiter"];

/// The name of the rate limit quota service.
const QUOTA_SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";

/// Phases in their order. A process never returns to an earlier phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Listening, but rules are not loaded, the cluster is not joined or the shared store was not reached yet.
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
    pub(super) shared_store: Option<SharedStore>,
    /// Whether a shared store that cannot be used makes this replica unready.
    pub(super) unready_without_store: bool,
    /// Whether this replica is ready only once rules are loaded.
    pub(super) rules_required: bool,
}

impl Probe {
    /// Why this replica must not be asked although it serves: all its links are rejected, so that each side would admit
    /// the whole limits, or the shared store cannot be used.
    fn isolation(&self) -> Option<String> {
        match self.link_trust() {
            LinkTrust::Unready(peers) => Some(format!("{ALL_LINKS_REJECTED}: {peers}")),
            LinkTrust::Trusted | LinkTrust::GoesOn(_) => {
                self.store_problem().filter(|_| self.unready_without_store)
            }
        }
    }

    fn link_trust(&self) -> LinkTrust {
        self.cluster.as_ref().map_or(LinkTrust::Trusted, Cluster::link_trust)
    }

    /// What an operator should repair although this replica serves.
    fn problem(&self) -> Option<String> {
        match self.link_trust() {
            LinkTrust::GoesOn(peers) => Some(format!("{ALL_LINKS_REJECTED}: {peers}")),
            LinkTrust::Trusted | LinkTrust::Unready(_) => self.store_problem(),
        }
    }

    /// Why the shared store cannot be used.
    fn store_problem(&self) -> Option<String> {
        match self.shared_store.as_ref()?.state() {
            tollgate_shared_store::SharedStoreState::Ready => None,
            tollgate_shared_store::SharedStoreState::Unavailable(reason) => {
                Some(format!("the shared store cannot be used: {reason}"))
            }
        }
    }
}

impl Readiness for Probe {
    fn ready(&self) -> Result<String, String> {
        let phase = *self.phase.borrow();
        if let (Phase::Starting | Phase::Serving, Some(reason)) = (phase, self.isolation()) {
            return Err(format!("{reason}\n"));
        }
        match phase {
            Phase::Starting if self.active_rules.current().rules().is_some() => {
                Err(self.store_problem().unwrap_or_else(|| "still joining the cluster".to_owned()) + "\n")
            }
            Phase::Starting => Err(match self.active_rules.status().last_error {
                Some(error) => format!("no valid rules are loaded yet:\n{}\n", error.problems),
                None => "no rules are loaded yet\n".to_owned(),
            }),
            Phase::Serving => Ok(match self.problem() {
                Some(problem) => format!("OK, but {problem}\n"),
                None => "OK".to_owned(),
            }),
            Phase::Draining | Phase::Stopping => Err("draining\n".to_owned()),
        }
    }

    fn healthy(&self) -> Result<String, String> {
        match *self.phase.borrow() {
            Phase::Starting | Phase::Serving if !self.rules_required => Ok("OK".to_owned()),
            Phase::Starting | Phase::Serving | Phase::Draining | Phase::Stopping => self.ready(),
        }
    }
}

/// Waits until `phase` is reached or passed.
pub(super) async fn wait_for_phase(mut phases: watch::Receiver<Phase>, phase: Phase) {
    // An error means that the sender was dropped, which ends the wait too.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

/// The names whose health is reported.
pub(super) fn health_names(has_quotas: bool) -> Vec<&'static str> {
    HEALTH_NAMES.into_iter().chain(has_quotas.then_some(QUOTA_SERVICE)).collect()
}

/// Updates the health service for as long as it is polled.
pub(super) async fn report_health(
    reporter: HealthReporter,
    names: Vec<&'static str>,
    mut probe: Probe,
    clock: Clock,
) {
    let mut reported = None;
    loop {
        let phase = *probe.phase.borrow_and_update();
        let isolation = probe.isolation();
        if reported != Some((phase, isolation.is_some())) {
            report(&reporter, &names, phase, isolation.is_some()).await;
            match &isolation {
                Some(reason) => warn!(reason, "not ready"),
                None if reported.is_some_and(|(_, isolated)| isolated) => info!("ready again"),
                None => {}
            }
            reported = Some((phase, isolation.is_some()));
        }
        let check_due = clock.now().until_tick(LINKS_CHECK_INTERVAL);
        if let Ok(Err(_)) = timeout(check_due, probe.phase.changed()).await {
            return;
        }
    }
}

async fn report(reporter: &HealthReporter, names: &[&'static str], phase: Phase, is_isolated: bool) {
    for name in names {
        match phase {
            Phase::Serving if !is_isolated => reporter.set_service_status(name, ServingStatus::Serving).await,
            Phase::Starting | Phase::Serving | Phase::Draining => {
                reporter.set_service_status(name, ServingStatus::NotServing).await;
            }
            // Clearing the status ends watch streams, so that they do not delay the shutdown.
            Phase::Stopping => reporter.clone().clear_service_status(name).await,
        }
    }
}
