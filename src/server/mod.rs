//! Builds all components of the service in order, and runs them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytesize::ByteSize;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use tollgate_cluster::link;
use tollgate_counter::time::{Clock, ClockOutOfRange};
use tollgate_rules::ActiveRules;
use tollgate_shared_store::PasswordError;
use tollgate_telemetry::{logs::LogControl, traces::Traces};
use tracing::info;

use crate::{
    api::admin,
    settings::{self, ListenAddress, Sections, Settings},
};

mod acceptor;
mod body;
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
mod shutdown;
mod stats;
mod stream;
mod tls;
mod wake_filter;
mod workers;

pub use lifecycle::Phase;
pub use metrics::all_metrics;
pub use stats::{ListenerStats, ServerStats};
pub use workers::WorkerPool;

#[cfg(any(test, fuzzing))]
pub(crate) use acceptor::fuzz;
use acceptor::{ListenerAcceptor, ListenerTerms, Protocols};
use components::Components;
use listen::{BoundListener, Listener};
use reply_bytes::ReplyBytes;
use request_bytes::RequestBytes;
use services::Services;
use shutdown::Shutdown;
use tls::ListenerCertificates;

/// Maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest time after the start for which the gRPC port refuses connections, and other calls wait, until the first
/// rules are active and the owners of the counters are known.
const OPEN_AFTER_MAX: Duration = Duration::from_secs(5);

/// Memory budgets for data that clients make the process hold.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    requests: Arc<RequestBytes>,
    replies: Arc<ReplyBytes>,
}

impl Budgets {
    fn new(memory: &settings::Memory) -> Self {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            requests: Arc::new(RequestBytes::new(bytes(memory.requests))),
            replies: Arc::new(ReplyBytes::new(bytes(memory.replies))),
        }
    }
}

/// A request to end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// From a supervisor, which has other instances asked meanwhile.
    Terminate,
    /// From a terminal.
    Interrupt,
}

/// Why the service cannot start, or has stopped, as a text for the operator.
pub type ServiceError = Box<dyn std::error::Error + Send + Sync>;

/// The service with bound listeners, before it accepts connections.
#[derive(Debug)]
pub struct Server {
    // Its port refuses connections until calls can be decided, so that clients ask another replica.
    grpc: ListenerAcceptor<BoundListener>,
    http: ListenerAcceptor<Listener>,
    admin: ListenerAcceptor<Listener>,
    metrics: ListenerAcceptor<Listener>,
    traces: Option<Traces>,
    settings: Settings,
    clock: Clock,
    stats: ServerStats,
    workers: WorkerPool,
    logs: LogControl,
}

/// The addresses of the listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerAddresses {
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
    /// Loads the certificates and binds all listeners. Fails if any of them is invalid, or the clock is.
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, ServiceError> {
        clock.require_in_range()?;
        let sections = &settings.sections;
        if let Some(path) = settings.rules.missing_path() {
            let what = "does not exist; with rules.required false the service starts without it";
            return Err(format!("rules.path: {} {what}", path.display()).into());
        }
        if let Some(path) = &sections.admin.token_file {
            admin::Token::new(path.clone()).read()?;
        }
        let stats = ServerStats::default();
        let budgets = Budgets::new(&sections.memory);
        let load = |listener, files: &Option<_>, protocols: &Protocols, stats: &Arc<_>| {
            let load = |files: &settings::ListenerTlsFiles| {
                let files = files.clone();
                let names = protocols.names();
                ListenerCertificates::load(listener, files, names, clock.clone(), Arc::clone(stats))
                    .map(Arc::new)
            };
            files.as_ref().map(load).transpose()
        };
        let grpc = Protocols::grpc(&sections.grpc);
        let http = Protocols::http(&sections.http);
        let grpc_tls = load("grpc", &settings.grpc_tls, &grpc, &stats.grpc)?;
        let http_tls = load("http", &settings.http_tls, &http, &stats.http)?;
        let tcp = ListenAddress::Tcp;
        let grpc_at = BoundListener::bind(&sections.grpc.listen, sections.grpc.socket_mode).await;
        let grpc_at = grpc_at.map_err(listen_error("grpc", &sections.grpc.listen))?;
        let http_at = listen("http", tcp(sections.http.listen)).await?;
        let admin_at = listen("admin", tcp(sections.admin.listen)).await?;
        let metrics_at = listen("metrics", tcp(sections.metrics.listen)).await?;
        let with_http = |name, max, certificates, stats: &Arc<_>| ListenerTerms {
            name,
            certificates,
            protocols: http.clone(),
            limits: acceptor::Limits::http(max, sections.http.header_timeout),
            budgets: budgets.clone(),
            stats: Arc::clone(stats),
            idle: Some(Arc::default()),
        };
        let grpc = ListenerTerms {
            name: "grpc",
            certificates: grpc_tls,
            protocols: grpc,
            limits: acceptor::Limits::grpc(&sections.grpc),
            budgets: budgets.clone(),
            stats: stats.grpc.clone(),
            idle: None,
        };
        let http = with_http("http", sections.http.max_connections, http_tls, &stats.http);
        let admin = with_http("admin", sections.admin.max_connections, None, &stats.admin);
        let metrics = with_http("metrics", sections.metrics.max_connections, None, &stats.metrics);
        let traces = settings.traces.as_ref().map(Traces::start).transpose();
        Ok(Self {
            grpc: ListenerAcceptor { listener: grpc_at, terms: grpc },
            http: ListenerAcceptor { listener: http_at, terms: http },
            admin: ListenerAcceptor { listener: admin_at, terms: admin },
            metrics: ListenerAcceptor { listener: metrics_at, terms: metrics },
            traces: traces.map_err(|error| format!("cannot export traces: {error}"))?,
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
    pub fn addresses(&self) -> io::Result<ListenerAddresses> {
        let tcp = |acceptor: &ListenerAcceptor<Listener>| match acceptor.listener.address()? {
            ListenAddress::Tcp(address) => Ok(address),
            ListenAddress::Unix(_) => Err(io::Error::other("a TCP listener has a Unix address")),
        };
        Ok(ListenerAddresses {
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
        let Sections { store, memory, grpc, http, .. } = &self.settings.sections;
        info!(
            counters = %ByteSize(store.memory_limit),
            requests = %ByteSize(memory.requests),
            replies = %ByteSize(memory.replies),
            grpc_connections = grpc.max_connections,
            http_connections = http.max_connections,
            "memory limits"
        );
    }

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

/// The tasks of the service. None of them exits while it runs.
#[derive(Debug, Default)]
struct Tasks {
    listeners: JoinSet<()>,
    background: JoinSet<()>,
    /// What follows the system clock.
    clock: JoinSet<ClockOutOfRange>,
    /// The links to other replicas; empty without a cluster.
    links: JoinSet<Result<(), link::LinkError>>,
}

impl Tasks {
    /// Waits until one of the tasks exits.
    async fn exit(&mut self) -> ServiceError {
        let failed = |task, exit: Result<(), String>| -> ServiceError {
            let reason = exit.err().unwrap_or_else(|| "task exited unexpectedly".to_owned());
            format!("{task} failed: {reason}").into()
        };
        tokio::select! {
            exit = exit_of(&mut self.links) => match exit {
                Ok(Err(error)) => error.into(),
                Ok(Ok(())) => failed("cluster links", Ok(())),
                Err(panic) => failed("cluster links", Err(panic)),
            },
            exit = exit_of(&mut self.listeners) => failed("listener", exit),
            exit = exit_of(&mut self.background) => failed("background task", exit),
            exit = exit_of(&mut self.clock) => match exit {
                Ok(error) => error.into(),
                Err(panic) => failed("clock", Err(panic)),
            },
        }
    }
}

/// Waits until one of the tasks returns or panics. Never completes without tasks.
async fn exit_of<T: 'static>(tasks: &mut JoinSet<T>) -> Result<T, String> {
    match tasks.join_next().await {
        None => std::future::pending().await,
        Some(exit) => exit.map_err(|panic| panic.to_string()),
    }
}

async fn listen(listener: &'static str, address: ListenAddress) -> Result<Listener, ServiceError> {
    let listening = BoundListener::bind(&address, 0).await.and_then(BoundListener::listen);
    Ok(listening.map_err(listen_error(listener, &address))?)
}

/// Says which listener cannot listen on its address.
fn listen_error(listener: &str, address: &ListenAddress) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{listener}.listen: cannot listen on {address}: {error}")
}

/// Says which setting names the file of a password of the shared store that cannot be read.
fn password_error(error: PasswordError) -> String {
    format!("store.redis.password_file: {error}")
}
