//! Builds all components of the service in order, and runs them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytesize::ByteSize;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::interval,
};
use tonic::service::Routes;
use tracing::{info, warn};

use crate::{
    api::{Api, admin, http, proto::DESCRIPTORS, reader::RequestReader, recorder::Recorder, top},
    cluster::{Cluster, link},
    limiter::{self, Limiter, RemoteDecider},
    rules::{self, ActiveRules, RuleStatsRegistry},
    settings::{self, ListenAddress, Settings},
    shared_store::{PasswordError, SharedStore},
    store::{self, Lead, Memory},
    telemetry::{
        logs::LogControl,
        traces::{self, Traces},
    },
    time::{Clock, Step},
};

mod acceptor;
mod body;
mod connection;
mod corked_io;
mod idle;
mod lifecycle;
mod listen;
mod message;
mod message_queue;
mod metrics;
mod replica;
mod reply_bytes;
mod request_bytes;
mod services;
mod shutdown;
mod stats;
mod stream;
mod tls;
mod wake_filter;
mod workers;

pub use lifecycle::Phase;
pub use metrics::{cluster_metrics, replica_metrics, shared_store_metrics, xds_metrics};
pub use stats::{ListenerStats, ServerStats};
pub use tls::CertificateFileError;
pub use workers::WorkerPool;

#[cfg(any(test, fuzzing))]
pub(crate) use acceptor::fuzz;
use acceptor::{Acceptor, Protocols, WhenFull};
use listen::Listener;
use replica::Replica;
use reply_bytes::ReplyBytes;
use request_bytes::RequestBytes;
use services::Services;
use shutdown::Shutdown;
use tls::Certificates;

/// Interval of comparisons with the system clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Memory budgets for data that clients make the process hold.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    requests: Arc<RequestBytes>,
    replies: Arc<ReplyBytes>,
}

impl Budgets {
    fn new(memory: settings::Memory) -> Self {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            requests: Arc::new(RequestBytes::new(bytes(memory.requests))),
            replies: Arc::new(ReplyBytes::new(bytes(memory.replies))),
        }
    }
}

/// Maximum size of a reflection message, in bytes.
const REFLECTION_BYTES_MAX: usize = 64 * 1024;

/// Memory budget for large JSON bodies, in bytes.
const JSON_BODIES_BYTES_MAX: usize = 8 * 1024 * 1024;

/// One of this many connections of the HTTP listener is reserved for probes: calls of `/json` cannot use it.
const PROBE_SHARE: usize = 10;

/// Why the service cannot start, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be bound.
    #[error("{listener}.listen: cannot listen on {address}: {error}")]
    Listen {
        /// The name of the listener.
        listener: &'static str,
        /// The configured address.
        address: ListenAddress,
        /// The cause.
        error: io::Error,
    },
    /// Certificates cannot be used.
    #[error(transparent)]
    Certificates(#[from] CertificateFileError),
    /// The trace exporter cannot start.
    #[error("cannot export traces: {0}")]
    Traces(#[from] traces::Error),
    /// The cluster links cannot start, or failed.
    #[error(transparent)]
    Cluster(#[from] link::Error),
    /// A password of the shared store cannot be read.
    #[error("store.redis.password_file: {0}")]
    Password(#[from] PasswordError),
    /// The admin token cannot be used.
    #[error(transparent)]
    Token(#[from] admin::TokenError),
    /// A task of the service exited.
    #[error("{task} failed: {reason}")]
    TaskFailed {
        /// The name of the task.
        task: &'static str,
        /// The cause.
        reason: String,
    },
}

/// The service with bound listeners, before it accepts connections.
#[derive(Debug)]
pub struct Server {
    grpc: Acceptor,
    http: Acceptor,
    admin: Acceptor,
    metrics: Acceptor,
    traces: Option<Traces>,
    settings: Settings,
    clock: Clock,
    stats: ServerStats,
    workers: WorkerPool,
    logs: LogControl,
}

/// The addresses of the listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC listener.
    pub grpc: ListenAddress,
    /// The HTTP listener: probes and JSON.
    pub http: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// The metrics listener.
    pub metrics: SocketAddr,
}

impl Server {
    /// Loads the certificates and binds all listeners. Fails if any of them is invalid.
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, Error> {
        if let Some(path) = &settings.admin.token_file {
            admin::Token::new(path.clone()).read()?;
        }
        let stats = ServerStats::default();
        let budgets = Budgets::new(settings.memory);
        let load = |listener, files: &Option<_>, protocols: &Protocols, stats: &Arc<_>| {
            let load = |files: &settings::Tls| {
                let (files, names) = (files.clone(), protocols.names());
                Certificates::load(listener, files, names, clock.clone(), Arc::clone(stats)).map(Arc::new)
            };
            files.as_ref().map(load).transpose()
        };
        let (grpc, http) = (Protocols::grpc(&settings.grpc), Protocols::http(&settings.http));
        let grpc_tls = load("grpc", &settings.grpc.tls, &grpc, &stats.grpc)?;
        let http_tls = load("http", &settings.http.tls, &http, &stats.http)?;
        let tcp = ListenAddress::Tcp;
        let grpc_at = listen("grpc", &settings.grpc.listen, settings.grpc.socket_mode).await?;
        let http_at = listen("http", &tcp(settings.http.listen), 0).await?;
        let admin_at = listen("admin", &tcp(settings.admin.listen), 0).await?;
        let metrics_at = listen("metrics", &tcp(settings.metrics.listen), 0).await?;
        let plain = |name, listener, max, stats: &Arc<_>| Acceptor {
            name,
            listener,
            certificates: None,
            protocols: http.clone(),
            limits: acceptor::Limits::http(max, settings.http.header_timeout),
            budgets: budgets.clone(),
            stats: Arc::clone(stats),
            when_full: WhenFull::CloseIdle(Arc::default()),
        };
        Ok(Self {
            grpc: Acceptor {
                name: "grpc",
                listener: grpc_at,
                certificates: grpc_tls,
                protocols: grpc,
                limits: acceptor::Limits::grpc(&settings.grpc),
                budgets: budgets.clone(),
                stats: stats.grpc.clone(),
                when_full: WhenFull::CloseNew,
            },
            http: Acceptor {
                certificates: http_tls,
                ..plain("http", http_at, settings.http.max_connections, &stats.http)
            },
            admin: plain("admin", admin_at, settings.admin.max_connections, &stats.admin),
            metrics: plain("metrics", metrics_at, settings.metrics.max_connections, &stats.metrics),
            traces: settings.traces.as_ref().map(Traces::start).transpose()?,
            settings,
            clock,
            stats,
            workers: WorkerPool::default(),
            logs: LogControl::default(),
        })
    }

    /// Sets the handle that changes the log level.
    pub fn with_logs(self, logs: LogControl) -> Self {
        Self { logs, ..self }
    }

    /// Sets the worker pool that runs connections.
    pub fn with_workers(self, workers: WorkerPool) -> Self {
        Self { workers, ..self }
    }

    /// The bound addresses, with the actual port if port 0 was requested.
    pub fn addresses(&self) -> io::Result<Addresses> {
        let tcp = |acceptor: &Acceptor| match acceptor.listener.address()? {
            ListenAddress::Tcp(address) => Ok(address),
            ListenAddress::Unix(_) => Err(io::Error::other("a TCP listener has a Unix address")),
        };
        Ok(Addresses {
            grpc: self.grpc.listener.address()?,
            http: tcp(&self.http)?,
            admin: tcp(&self.admin)?,
            metrics: tcp(&self.metrics)?,
        })
    }

    /// Statistics of the listeners.
    pub fn stats(&self) -> ServerStats {
        self.stats.clone()
    }

    fn log_bounds(&self) {
        let Settings { store, memory, grpc, http, .. } = &self.settings;
        info!(
            counters = %ByteSize(store.memory_limit),
            requests = %ByteSize(memory.requests),
            replies = %ByteSize(memory.replies),
            grpc_connections = grpc.max_connections,
            http_connections = http.max_connections,
            "memory limits"
        );
    }

    /// Serves until the first message of `shutdown`, then drains and writes the snapshot within the drain timeout. A
    /// second message ends this at once.
    pub async fn run(self, mut shutdown: mpsc::Receiver<()>) -> Result<(), Error> {
        self.log_bounds();
        let Self { grpc, http, admin, metrics, traces, settings, clock, stats, mut workers, logs } = self;
        let active_rules =
            Arc::new(ActiveRules::with_stats(RuleStatsRegistry::new(settings.metrics.names_per_rule)));
        let (persistence, replica) =
            Replica::start(settings.cluster, settings.store, &clock, &active_rules).await?;
        let cluster = replica.as_ref().map(Replica::cluster);
        let mut background = JoinSet::new();
        let unready_without_store =
            settings.shared_store.as_ref().is_some_and(|settings| settings.unready_without_store);
        let shared_store = settings
            .shared_store
            .map(|settings| {
                SharedStore::start(settings, clock.clone(), active_rules.clone(), &mut background)
            })
            .transpose()?;
        let remote = match (&cluster, &shared_store) {
            (Some(cluster), _) => Some(RemoteDecider::Cluster(cluster.clone())),
            (None, Some(store)) => Some(RemoteDecider::SharedStore(store.clone())),
            (None, None) => None,
        };
        let memory = persistence.memory.clone();
        let limiter_metrics = Arc::new(limiter::Metrics::new(settings.metrics.top_keys));
        let limiter = Limiter::new(active_rules.clone(), memory.clone(), clock.clone())
            .with_remote(remote)
            .with_modes(settings.limiter)
            .with_metrics(limiter_metrics.clone());
        let reader = RequestReader::new(settings.api.bounds(), JSON_BODIES_BYTES_MAX);
        let recorder = settings.admin.record.map(|values| Arc::new(Recorder::new(values)));
        let state = admin::AdminState {
            active_rules: active_rules.clone(),
            memory: memory.clone(),
            limiter: limiter.clone(),
            reader: reader.clone(),
            settings: settings.given.into(),
            logs: logs.clone(),
            live: Arc::default(),
            recorder: recorder.clone(),
        };
        let api = Api::new(limiter, settings.api)
            .with_headers(settings.headers)
            .with_denials(settings.log.denials)
            .with_recorder(recorder.clone())
            .with_traces(traces.clone())
            .with_admin_token(settings.admin.token_file.clone().map(admin::Token::new));
        let (phase, phases) = watch::channel(Phase::Starting);
        let page = admin::page::Sources {
            state: state.clone(),
            requests: api.metrics().clone(),
            certificates: Arc::new(stats.clone()),
        };
        let stopping = lifecycle::wait_for_phase(phases.clone(), Phase::Stopping);

        let xds_stats = match &settings.rules.source {
            rules::SourceSettings::Files(_) => None,
            rules::SourceSettings::Xds(..) => Some(Arc::<rules::xds::Stats>::default()),
        };
        background.spawn(settings.rules.source.run(
            clock.clone(),
            active_rules.clone(),
            xds_stats.clone().unwrap_or_default(),
        ));
        background.spawn(state.live.clone().run(page, stopping));
        if let Some(recorder) = recorder {
            let stopping = lifecycle::wait_for_phase(phases.clone(), Phase::Stopping);
            background.spawn(async move {
                stopping.await;
                recorder.stop();
            });
        }
        background.spawn(store::sweep(memory.clone(), clock.clone()));
        let secret_source = active_rules.clone();
        let secret = move || secret_source.secret();
        background.spawn(persistence.clone().write_periodically(clock.clone(), secret));
        background.spawn(follow_system_clock(clock.clone(), memory.clone(), cluster.clone()));
        if let Some(cluster) = cluster.clone() {
            background.spawn(replica::announce_rules(cluster, active_rules.clone()));
        }
        let mut links = JoinSet::new();
        if let Some(replica) = replica {
            links.spawn(replica.run());
        }
        let (reporter, health) = tonic_health::server::health_reporter();
        let probe = lifecycle::Probe {
            phase: phases.clone(),
            active_rules: active_rules.clone(),
            cluster: cluster.clone(),
            shared_store: shared_store.clone(),
            unready_without_store,
            rules_required: settings.rules.required,
        };
        background.spawn(lifecycle::report_health(reporter, probe.clone()));
        background.spawn(workers.worker_exit());

        for certificates in [&grpc.certificates, &http.certificates].into_iter().flatten() {
            background.spawn(certificates.clone().reload_on_change(settings.tls.poll_interval));
        }

        let mut listeners = JoinSet::new();
        let connections_max = settings.http.max_connections;
        let calls_max = connections_max - connections_max.div_ceil(PROBE_SHARE).min(connections_max - 1);
        let routes = Services::http(http::router(api.clone(), probe, reader, settings.check, calls_max));
        listeners.spawn(http.serve(routes, workers.http_handles(), phases.clone()));
        let doctor = admin::doctor::Sources {
            active_rules: active_rules.clone(),
            memory: memory.clone(),
            limiter: state.limiter.clone(),
            certificates: Arc::new(stats.clone()),
            clock: clock.clone(),
        };
        let sources = metrics::Sources {
            active_rules: active_rules.clone(),
            memory: memory.clone(),
            limiter: limiter_metrics.clone(),
            api: api.metrics().clone(),
            listeners: stats,
            budgets: grpc.budgets.clone(),
            logs,
            clock: clock.clone(),
        };
        let reference_names = settings.metrics.reference_names;
        let page =
            metrics::router(cluster.clone(), shared_store.clone(), xds_stats, sources, reference_names);
        listeners.spawn(metrics.serve(Services::http(page), workers.page_handles(), phases.clone()));
        let more = top::router(limiter_metrics).merge(admin::doctor::router(doctor));
        let admin_routes = admin::router(state, settings.admin.token_file, more);
        listeners.spawn(admin.serve(Services::http(admin_routes), workers.page_handles(), phases.clone()));
        let routes = Services::grpc(grpc_routes(health)?, api);
        listeners.spawn(grpc.serve(routes, workers.grpc_handles(), phases));

        let serve = async {
            if settings.rules.required {
                active_rules.loaded().await;
            }
            if let Some(cluster) = &cluster {
                cluster.joined().await;
            }
            if let Some(store) = &shared_store {
                store.until_known().await;
            }
            phase.send_replace(Phase::Serving);
            std::future::pending::<()>().await;
        };
        let result = tokio::select! {
            () = serve => Ok(()),
            _ = shutdown.recv() => Ok(()),
            error = replica::links_exit(&mut links) => Err(error),
            error = task_exit(&mut listeners, "listener") => Err(error),
            error = task_exit(&mut background, "background task") => Err(error),
        };
        let is_graceful = result.is_ok();
        let parts = Shutdown {
            drain: settings.drain,
            phase,
            listeners,
            background,
            cluster,
            active_rules,
            persistence,
            clock,
            traces,
        };
        parts.run(is_graceful, shutdown).await;
        result
    }
}

async fn listen(listener: &'static str, address: &ListenAddress, mode: u32) -> Result<Listener, Error> {
    let listening = Listener::bind(address, mode).await;
    listening.map_err(|error| Error::Listen { listener, address: address.clone(), error })
}

/// Keeps the clock of counters in step with the system clock, for as long as it is polled.
async fn follow_system_clock(clock: Clock, memory: Arc<Memory>, cluster: Option<Cluster>) {
    let mut ticks = interval(CLOCK_CHECK_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(comparison) = clock.compare_with_wall() else { continue };
        match comparison.long_step() {
            Some(Step::Back(lead)) => {
                let given_up = Lead { at: comparison.wall(), until: comparison.shown() };
                memory.give_up_lead(given_up);
                if let Some(cluster) = &cluster {
                    cluster.give_up_lead(given_up);
                }
                warn!(
                    ?lead,
                    "system clock jumped ahead and was corrected, cutting counters with times in the future"
                );
            }
            Some(Step::Forward(by)) => {
                warn!(?by, "system clock jumped ahead, counters follow it")
            }
            None => {}
        }
        clock.follow(&comparison);
    }
}

/// Waits until one of the tasks exits, which none of them does while the service runs.
async fn task_exit(tasks: &mut JoinSet<()>, task: &'static str) -> Error {
    let reason = match tasks.join_next().await {
        None | Some(Ok(())) => "task exited unexpectedly".to_owned(),
        Some(Err(panic)) => panic.to_string(),
    };
    Error::TaskFailed { task, reason }
}

/// The gRPC services other than the rate limit service.
fn grpc_routes<H>(health: tonic_health::pb::health_server::HealthServer<H>) -> Result<axum::Router, Error>
where
    H: tonic_health::pb::health_server::Health,
{
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| Error::TaskFailed { task: "gRPC reflection", reason: error.to_string() })?;
    // tonic allocates the announced length, so the size must be bounded.
    let reflection = reflection.max_decoding_message_size(REFLECTION_BYTES_MAX);
    let routes = Routes::new(health).add_service(reflection);
    Ok(routes.prepare().into_axum_router())
}
