//! Builds all components of the service in order, and runs them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tollgate_rules::ActiveRules;
use tracing::info;

mod acceptor;
pub(crate) mod bind;
mod body;
mod budgets;
mod components;
mod connection;
mod corked_io;
mod idle;
mod lifecycle;
mod limits;
mod listen;
mod message;
mod message_queue;
mod metrics;
mod replica;
mod reply_bytes;
mod request_bytes;
mod services;
pub(crate) mod shutdown;
mod stats;
mod stream;
pub(crate) mod tasks;
mod tls;
mod wake_filter;
pub(crate) mod workers;

pub use bind::{ListenerAddresses, Server};
pub use lifecycle::Phase;
pub use metrics::all_metrics;
pub use shutdown::StopSignal;
pub use stats::{ListenerStats, ServerStats};
pub use tasks::ServiceError;
pub use workers::WorkerPool;

use acceptor::ListenerAcceptor;
#[cfg(any(test, fuzzing))]
pub(crate) use acceptor::fuzz;
use bind::listen_error;
use components::Components;
use listen::Listener;
use shutdown::Shutdown;
use tasks::Tasks;

/// The longest time after the start for which the gRPC port refuses connections, and other calls wait, until the first
/// rules are active and the owners of the counters are known.
const OPEN_AFTER_MAX: Duration = Duration::from_secs(5);

impl Server {
    /// Serves until the first message of `shutdown`, then drains and writes the snapshot within the drain timeout. An
    /// interrupt has no drain delay if there is no cluster and no caller is connected. A second message ends this at
    /// once. Fails, with a snapshot, if the system clock leaves the range of the clock.
    pub async fn run(self, mut shutdown: mpsc::Receiver<StopSignal>) -> Result<(), ServiceError> {
        self.log_bounds();
        let (phase, phases) = watch::channel(Phase::Starting);
        let mut tasks = Tasks::default();
        let active_rules =
            Arc::new(ActiveRules::with_names_max(self.settings.sections.metrics.names_per_rule));
        let settings = self.settings.clone();
        let (persistence, cluster) =
            replica::start(settings.cluster, settings.store, &self.clock, &active_rules, &mut tasks).await?;
        let components =
            Components::new(&self, active_rules, persistence, cluster, phases.clone(), &mut tasks)?;
        let Self { grpc, http, admin, metrics, traces, settings, stats, workers, .. } = self;
        let mut drain = settings.sections.drain;
        let poll_interval = settings.sections.certificates.poll_interval;
        let grpc_address = settings.sections.grpc.listen;
        components.spawn_background(&mut tasks.background);
        tasks.clock.spawn(components.follow_system_clock());
        tasks.background.spawn(workers.worker_exit());
        for certificates in [&grpc.terms.certificates, &http.terms.certificates].into_iter().flatten() {
            tasks.background.spawn(certificates.clone().reload_on_change(poll_interval));
        }
        let (open, opened) = watch::channel(false);
        let services = components.http_services(opened);
        tasks.listeners.spawn(http.serve(services, workers.http.clone(), phases.clone()));
        let services = components.metrics_services();
        tasks.listeners.spawn(metrics.serve(services, workers.pages.clone(), phases.clone()));
        let services = components.admin_services();
        tasks.listeners.spawn(admin.serve(services, workers.pages.clone(), phases.clone()));
        let services = components.grpc_services(&mut tasks.background)?;
        let handles = workers.grpc.clone();
        let (start, started) = oneshot::channel::<ListenerAcceptor<Listener>>();
        tasks.listeners.spawn(async move {
            // Without it the process stops before it has begun.
            if let Ok(grpc) = started.await {
                grpc.serve(services, handles, phases).await;
            }
        });

        let serve = async {
            // Calls are answered, also with an error, after this time.
            let _ = timeout(OPEN_AFTER_MAX, components.answerable()).await;
            let grpc = grpc.listen().map_err(listen_error("grpc", &grpc_address))?;
            info!(listener = "grpc", "taking calls");
            // The task waits for it for as long as this process serves.
            let _ = start.send(grpc);
            open.send_replace(true);
            components.ready().await;
            phase.send_replace(Phase::Serving);
            std::future::pending().await
        };
        let result = tokio::select! {
            result = serve => result,
            signal = shutdown.recv() => {
                let has_callers = [stats.grpc, stats.http].iter().any(|callers| callers.open() > 0);
                let is_alone = components.admin.cluster.is_none() && !has_callers;
                if signal == Some(StopSignal::Interrupt) && is_alone {
                    drain.delay = Duration::ZERO;
                }
                Ok(())
            }
            error = tasks.exit() => Err(error),
        };
        let is_graceful = result.is_ok();
        // The links and the clock are needed until the end.
        let Tasks { listeners, background, clock: _clock, links: _links } = tasks;
        let parts = Shutdown { drain, phase, listeners, background, components, traces };
        parts.run(is_graceful, shutdown).await;
        result
    }
}
