//! The end of the process: drain, hand-off, the last snapshot and the last spans, each within a bound.

use std::time::Duration;

use futures_util::future::join;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tollgate_cluster::Cluster;
use tollgate_telemetry::traces::Traces;
use tracing::{field::display, info, warn};

use crate::{
    api::admin::state::AdminState,
    server::{components::Components, lifecycle::Phase, replica},
    settings::Drain,
};

/// Maximum part of the drain timeout that is reserved for the last snapshot; at most a fifth of it is.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(5);

/// A request to end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// The request of a supervisor, which has other instances asked meanwhile.
    Terminate,
    /// The request of a terminal.
    Interrupt,
}

/// What a shutdown acts on.
pub(super) struct Shutdown {
    pub(super) drain: Drain,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) listeners: JoinSet<()>,
    pub(super) background: JoinSet<()>,
    pub(super) components: Components,
    pub(super) traces: Option<Traces>,
}

/// What a shutdown has not finished yet.
struct UnfinishedShutdown {
    calls: bool,
    snapshot: bool,
    spans: bool,
}

impl Shutdown {
    /// Finishes open calls if `is_graceful`, then writes the snapshot and the spans. A signal ends this at once.
    pub(super) async fn run(self, is_graceful: bool, mut second_signal: mpsc::Receiver<StopSignal>) {
        let cluster = self.components.admin.cluster.clone();
        let persistence = self.components.persistence.clone();
        let has_snapshot = persistence.path().is_some();
        let mut unfinished =
            UnfinishedShutdown { calls: true, snapshot: has_snapshot, spans: self.traces.is_some() };
        tokio::select! {
            () = self.finish(is_graceful, &mut unfinished) => {}
            _ = second_signal.recv() => {
                let UnfinishedShutdown { calls, snapshot, spans } = unfinished;
                let slots = cluster.map(|cluster| cluster.stats().slots_owned);
                let snapshot = persistence.path().filter(|_| snapshot).map(|path| display(path.display()));
                warn!(calls, slots, snapshot, spans, "second stop signal received, stopping without finishing these");
            }
        }
    }

    async fn finish(self, is_graceful: bool, unfinished: &mut UnfinishedShutdown) {
        let Self { drain, phase, listeners, background, components, traces } = self;
        let AdminState { cluster, active_rules, clock, .. } = &components.admin;
        let mut dividers = components.dividers;
        let end = Instant::now() + drain.timeout;
        // Calls that stay open must not prevent the snapshot.
        let reserved =
            if unfinished.snapshot { (drain.timeout / 5).min(SNAPSHOT_TIME_MAX) } else { Duration::ZERO };
        if is_graceful {
            info!(delay = ?drain.delay, timeout = ?drain.timeout, "draining");
            let finished =
                timeout_at(end - reserved, finish_calls(&phase, drain.delay, cluster.as_ref(), listeners));
            match finished.await {
                Ok(()) => info!("stopped"),
                Err(_) => {
                    warn!("drain timeout reached, stopping with open calls");
                    dividers = None;
                }
            }
        } else {
            dividers = None;
        }
        // No request is served from here on, so the background tasks are no longer needed.
        drop(background);
        unfinished.calls = false;
        if let Some(cluster) = cluster {
            replica::leave(cluster).await;
        }
        let write = async {
            components.persistence.write_last(clock, active_rules.secret(), dividers, end).await;
            unfinished.snapshot = false;
        };
        let send = async {
            if let Some(traces) = traces {
                traces.finish().await;
            }
            unfinished.spans = false;
        };
        join(write, send).await;
    }
}

/// Serves for the drain delay, then finishes open requests and hands off slots.
async fn finish_calls(
    phase: &watch::Sender<Phase>,
    delay: Duration,
    cluster: Option<&Cluster>,
    mut listeners: JoinSet<()>,
) {
    phase.send_replace(Phase::Draining);
    let hand_off = async {
        if let Some(cluster) = cluster {
            cluster.drain();
            cluster.drained().await;
        }
    };
    join(sleep(delay), hand_off).await;
    phase.send_replace(Phase::Stopping);
    while listeners.join_next().await.is_some() {}
}
