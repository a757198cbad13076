//! Binds the listeners.

use std::{io, net::SocketAddr, sync::Arc};

use bytesize::ByteSize;
use tollgate_counter::time::Clock;
use tollgate_telemetry::{logs::LogControl, traces::Traces};
use tracing::info;

use crate::{
    api::admin,
    server::{
        acceptor::{self, ListenerAcceptor, ListenerTerms, Protocols},
        budgets::Budgets,
        listen::{BoundListener, Listener},
        stats::ServerStats,
        tasks::ServiceError,
        tls::ListenerCertificates,
        workers::WorkerPool,
    },
    settings::{self, Sections, Settings, listeners::ListenAddress},
};

/// The service with bound listeners, before it accepts connections.
#[derive(Debug)]
pub struct Server {
    // Its port refuses connections until calls can be decided, so that clients ask another replica.
    pub(super) grpc: ListenerAcceptor<BoundListener>,
    pub(super) http: ListenerAcceptor<Listener>,
    pub(super) admin: ListenerAcceptor<Listener>,
    pub(super) metrics: ListenerAcceptor<Listener>,
    pub(super) traces: Option<Traces>,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) stats: ServerStats,
    pub(super) workers: WorkerPool,
    pub(super) logs: LogControl,
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

    pub(super) fn log_bounds(&self) {
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
}

async fn listen(listener: &'static str, address: ListenAddress) -> Result<Listener, ServiceError> {
    let listening = BoundListener::bind(&address, 0).await.and_then(BoundListener::listen);
    Ok(listening.map_err(listen_error(listener, &address))?)
}

/// Says which listener cannot listen on its address.
pub(super) fn listen_error(listener: &str, address: &ListenAddress) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{listener}.listen: cannot listen on {address}: {error}")
}
