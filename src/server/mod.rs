//! The running service: everything is made here, once, in order.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tonic::transport::server::TcpIncoming;
use tracing::{info, warn};

use crate::{
    api::{
        Api, admin, http,
        proto::{
            DESCRIPTORS, envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer,
        },
    },
    limiter::Limiter,
    rules::{Book, Watcher},
    settings::{Drain, Settings},
    store::{self, Keeping},
    telemetry::logs::Dial,
    time::Clock,
};

mod phase;

pub use phase::Phase;

/// How often the clock is compared with the wall's.
const CLOCK_CHECK: Duration = Duration::from_millis(100);

/// Why the service cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened on.
    #[error("{listener}.listen: cannot listen on {address}: {error}")]
    Listen {
        /// Which of the listeners.
        listener: &'static str,
        /// The address asked for.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// There is no token for the admin pages.
    #[error(transparent)]
    Token(#[from] admin::TokenError),
    /// A part of the service ended by itself.
    #[error("{part} has ended: {why}")]
    Ended {
        /// Which part.
        part: &'static str,
        /// Why.
        why: String,
    },
}

/// The service, listening but not answering yet.
#[derive(Debug)]
pub struct Server {
    grpc: TcpListener,
    http: TcpListener,
    admin: TcpListener,
    settings: Settings,
    clock: Clock,
    logs: Dial,
}

/// Where the service listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC service.
    pub grpc: SocketAddr,
    /// Probes and JSON.
    pub http: SocketAddr,
    /// The operator's side.
    pub admin: SocketAddr,
}

impl Server {
    /// Takes all addresses, or none.
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, Error> {
        if let Some(path) = &settings.admin.token_file {
            admin::Token::new(path.clone()).read()?;
        }
        Ok(Self {
            grpc: listen("grpc", settings.grpc.listen).await?,
            http: listen("http", settings.http.listen).await?,
            admin: listen("admin", settings.admin.listen).await?,
            settings,
            clock,
            logs: Dial::default(),
        })
    }

    /// The same, with the dial of its logs.
    pub fn with_logs(self, logs: Dial) -> Self {
        Self { logs, ..self }
    }

    /// Where it listens, with the ports that port 0 has become.
    pub fn addresses(&self) -> io::Result<Addresses> {
        Ok(Addresses {
            grpc: self.grpc.local_addr()?,
            http: self.http.local_addr()?,
            admin: self.admin.local_addr()?,
        })
    }

    /// Answers until the first message of `leave`, then drains; a second one, or the end of the drain's time,
    /// cuts that short.
    pub async fn run(self, mut leave: mpsc::Receiver<()>) -> Result<(), Error> {
        let Self { grpc, http, admin, settings, clock, logs } = self;
        let book = Arc::new(Book::default());
        let keeping = Keeping::start(settings.store, clock.now());
        let (memory, secret) = (keeping.memory.clone(), keeping.secret.clone());
        let limiter =
            Limiter::new(book.clone(), memory.clone(), clock.clone(), secret).with_modes(settings.limiter);
        let desk = admin::Desk {
            book: book.clone(),
            memory: memory.clone(),
            limiter: limiter.clone(),
            settings: settings.given.into(),
            logs,
        };
        let api = Api::new(limiter, settings.api).with_headers(settings.headers);
        let (phase, phases) = watch::channel(Phase::Starting);

        let mut chores = JoinSet::new();
        chores.spawn(Watcher::new(settings.rules, clock.clone(), book.clone()).run(std::future::pending()));
        chores.spawn(store::sweep(memory.clone(), clock.clone()));
        chores.spawn(keeping.clone().write_often(clock.clone()));
        chores.spawn(follow_wall(clock.clone()));
        let (reporter, health) = tonic_health::server::health_reporter();
        chores.spawn(phase::report_health(reporter, phases.clone()));

        let mut servers = JoinSet::new();
        let probe = phase::Probe { phase: phases.clone(), book: book.clone() };
        servers.spawn(serve_http("http", http, http::router(api.clone(), probe), phases.clone()));
        let operators = admin::router(desk, settings.admin.token_file, axum::Router::new());
        servers.spawn(serve_http("admin", admin, operators, phases.clone()));
        servers.spawn(serve_grpc(grpc, api, health, phases));

        let serve = async {
            book.loaded().await;
            phase.send_replace(Phase::Serving);
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            () = serve => Ok(()),
            _ = leave.recv() => {
                drain(&phase, &settings.drain, servers, leave).await;
                Ok(())
            }
            error = end_of(&mut servers) => Err(error),
            error = end_of_chore(&mut chores) => Err(error),
        };
        // Nobody is answered any more, so nothing is counted that it would miss.
        drop(chores);
        keeping.write(&clock).await;
        ended
    }
}

async fn listen(listener: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| Error::Listen { listener, address, error })
}

async fn follow_wall(clock: Clock) {
    let mut ticks = interval(CLOCK_CHECK);
    loop {
        ticks.tick().await;
        clock.follow_wall();
    }
}

/// Goes on answering for the delay, then finishes what has come, and leaves.
async fn drain(
    phase: &watch::Sender<Phase>,
    drain: &Drain,
    mut servers: JoinSet<Result<(), Error>>,
    mut leave: mpsc::Receiver<()>,
) {
    info!(delay = ?drain.delay, timeout = ?drain.timeout, "draining");
    phase.send_replace(Phase::Draining);
    let finish = async {
        sleep(drain.delay).await;
        phase.send_replace(Phase::Stopping);
        while servers.join_next().await.is_some() {}
    };
    tokio::select! {
        finished = timeout(drain.timeout, finish) => match finished {
            Ok(()) => info!("stopped"),
            Err(_) => warn!("stopped at the end of the drain's time, with calls still open"),
        },
        _ = leave.recv() => warn!("stopped at once, being told twice"),
    }
}

/// The end of the first server that ends; before the process leaves, none should.
async fn end_of(servers: &mut JoinSet<Result<(), Error>>) -> Error {
    let ended = |why: String| Error::Ended { part: "a server", why };
    match servers.join_next().await {
        None | Some(Ok(Ok(()))) => ended("nobody told it to".to_owned()),
        Some(Ok(Err(error))) => error,
        Some(Err(panic)) => ended(panic.to_string()),
    }
}

/// The end of the first chore that ends; none should, ever.
async fn end_of_chore(chores: &mut JoinSet<()>) -> Error {
    let why = match chores.join_next().await {
        None | Some(Ok(())) => "nobody told it to".to_owned(),
        Some(Err(panic)) => panic.to_string(),
    };
    Error::Ended { part: "a chore", why }
}

async fn serve_grpc<H>(
    listener: TcpListener,
    api: Api,
    health: tonic_health::pb::health_server::HealthServer<H>,
    phases: watch::Receiver<Phase>,
) -> Result<(), Error>
where
    H: tonic_health::pb::health_server::Health,
{
    let ended = |why: String| Error::Ended { part: "the gRPC server", why };
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| ended(error.to_string()))?;
    tonic::transport::Server::builder()
        .add_service(RateLimitServiceServer::new(api))
        .add_service(health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            phase::reached(phases, Phase::Stopping),
        )
        .await
        .map_err(|error| ended(error.to_string()))
}

async fn serve_http(
    part: &'static str,
    listener: TcpListener,
    router: axum::Router,
    phases: watch::Receiver<Phase>,
) -> Result<(), Error> {
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(phase::reached(phases, Phase::Stopping))
        .await
        .map_err(|error| Error::Ended { part, why: error.to_string() })
}
