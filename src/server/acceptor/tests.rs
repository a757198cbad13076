use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::post};
use futures_util::task::AtomicWaker;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio_rustls::server::TlsStream;
use tollgate_counter::{
    resilience::CallerRegistry,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull};

use super::*;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};

use crate::{
    api::service::Api,
    server::{budgets::Budgets, listen::Socket},
    settings::Settings,
};

/// A socket that counts writes.
struct Counted {
    io: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

fn context(router: Router) -> ConnectionContext {
    let now = Timestamp::from_nanos(1_790_000_000_000_000_000);
    let rules =
        "domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";
    let active_rules = Arc::new(ActiveRules::from_rules(Rules::parse("test", rules).unwrap(), now));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    let clock = Clock::manual(now);
    let limiter = Limiter::new(active_rules, memory, clock.clone());
    // No timer fires while a test counts wakes.
    let settings =
        Settings::with(&[("grpc.handshake_timeout", "1h"), ("grpc.keepalive_interval", "1h")]).sections;
    ConnectionContext {
        terms: ListenerTerms {
            name: "test",
            certificates: None,
            protocols: Protocols::grpc(&settings.grpc),
            limits: Limits::grpc(&settings.grpc),
            stats: Arc::default(),
            budgets: Budgets::new(&settings.memory),
            idle: None,
        },
        service: Services::new(router, Api::new(limiter, settings.api), None, CallerRegistry::new(clock)),
    }
}

fn request_frame() -> Vec<u8> {
    let entries = vec![Entry { key: "user".into(), value: "a".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

/// Counts wakes of a task.
#[derive(Default)]
struct Woken {
    times: AtomicUsize,
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Relaxed);
        self.task.wake();
    }
}

/// A client of a server that counts writes and wakes.
struct TestClient {
    woken: Arc<Woken>,
    client: http2::SendRequest<Body>,
    writes: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
    _phase: watch::Sender<Phase>,
}

impl TestClient {
    async fn to(router: Router) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let writes = Arc::new(AtomicUsize::new(0));
        let context = context(router);
        let io = Counted { io: ours, writes: writes.clone() };
        let (phase, phases) = watch::channel(Phase::Serving);
        let service = context.service.for_connection(None, None, None);
        let mut tasks = JoinSet::new();
        let woken = Arc::new(Woken::default());
        let counts = woken.clone();
        tasks.spawn(async move {
            let mut serving = pin!(context.serve_protocol(io, service, Alpn::Other, phases));
            let waker = Waker::from(counts.clone());
            poll_fn(|cx| {
                counts.task.register(cx.waker());
                serving.as_mut().poll(&mut Context::from_waker(&waker))
            })
            .await;
        });
        let (client, connection) =
            http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(theirs)).await.unwrap();
        tasks.spawn(async move { connection.await.unwrap() });
        Self { woken, client, writes, tasks, _phase: phase }
    }

    /// Starts a hundred concurrent calls. Each result tells whether the call succeeded.
    fn call(&self, path: &str) -> JoinSet<bool> {
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let request = Request::post(format!("http://x{path}"))
                .header("content-type", "application/grpc")
                .body(request_frame().into())
                .unwrap();
            let mut client = self.client.clone();
            calls.spawn(async move { client.send_request(request).await.unwrap().status().is_success() });
        }
        calls
    }

    fn writes(&self) -> usize {
        self.writes.load(Relaxed)
    }

    fn woken(&self) -> usize {
        self.woken.times.load(Relaxed)
    }

    async fn end(self) {
        let Self { client, mut tasks, .. } = self;
        drop(client);
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }
}

const CALLS: usize = 100;

#[tokio::test]
async fn concurrent_calls_share_writes_of_at_least_twenty_replies() {
    const ROUNDS: usize = 20;
    let client = TestClient::to(Router::new()).await;
    for _ in 0..ROUNDS {
        let calls = client.call("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        assert_eq!(calls.join_all().await, [true; CALLS]);
    }
    assert!(client.writes() <= ROUNDS * CALLS / 20, "{} writes", client.writes());
    client.end().await;
}

#[tokio::test]
async fn calls_completed_together_wake_connection_once_and_share_a_write() {
    let notify = watch::Sender::new(false);
    let changed = notify.subscribe();
    let waits = move || async move { changed.clone().wait_for(|changed| *changed).await.is_ok().to_string() };
    let client = TestClient::to(Router::new().route("/wait", post(waits))).await;
    let calls = client.call("/wait");
    let before = notify.receiver_count();
    let mut woken = 0;
    // Until all calls wait and the connection is idle.
    while notify.receiver_count() < before + CALLS || woken < client.woken() {
        woken = client.woken();
        for _ in 0..CALLS {
            tokio::task::yield_now().await;
        }
    }
    let before = client.writes();
    notify.send_replace(true);
    assert_eq!(client.woken() - woken, 1);
    assert_eq!(calls.join_all().await, [true; CALLS]);
    assert!(client.writes() - before <= CALLS / 20, "{} writes", client.writes() - before);
    client.end().await;
}

#[test]
fn connection_ages_have_jitter_of_a_fifth() {
    let age = Duration::from_secs(100);
    for (random, expected) in [(0.0, 80), (0.5, 100), (1.0, 120)] {
        assert_eq!(jittered(age, random).as_secs_f64().round(), f64::from(expected));
    }
}

/// The size of what a function returns.
fn returned_bytes<A, B, C, D, E, R>(_: impl Fn(A, B, C, D, E) -> R) -> usize {
    size_of::<R>()
}

#[test]
fn task_of_a_connection_has_no_room_for_a_tls_session() {
    assert!(returned_bytes(ConnectionContext::handle) < size_of::<TlsStream<Socket>>());
}
