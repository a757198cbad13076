use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Wake, Waker},
};

use axum::{Router, body::Body, http::Request, routing::post};
use futures_util::task::AtomicWaker;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use tokio::io::{DuplexStream, ReadBuf};

use super::*;
use crate::{
    api::{
        self, Api,
        proto::envoy::{
            extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
            service::ratelimit::v3::RateLimitRequest,
        },
    },
    descriptor::Secret,
    limiter::Limiter,
    rules::{ActiveRules, Rules},
    store::{Memory, OnFull},
    time::{Clock, Timestamp},
};

/// A wire that counts how often it is written to.
struct Counted {
    wire: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.get_mut().wire).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.get_mut().wire).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

fn host(router: Router) -> Host {
    let now = Timestamp::from_nanos(1_790_000_000_000_000_000);
    let rules =
        "domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";
    let active_rules = Arc::new(ActiveRules::of(Rules::parse("test", rules).unwrap(), now));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    let limiter = Limiter::new(active_rules, memory, Clock::manual(now), Secret::from_bytes([7; 16]));
    let long = Duration::from_secs(3_600);
    Host {
        name: "test",
        certificates: None,
        protocols: Protocols {
            http1: None,
            http2: Http2 { max_concurrent_streams: 1_000, keepalive_interval: long, keepalive_timeout: long },
        },
        limits: Limits { connections: 1, handshake: long, age: long, grace: long },
        counters: Arc::default(),
        budgets: Budgets::new(settings::Memory { requests: 1 << 24, replies: 1 << 24 }),
        when_full: WhenFull::CloseNew,
        service: Routed::grpc(router, Api::new(limiter, api::Settings::default())),
    }
}

fn question() -> Vec<u8> {
    let entries = vec![Entry { key: "user".into(), value: "a".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

/// Counts how often a task is woken.
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

/// A client of a server that counts how often it writes, and is woken.
struct Talking {
    woken: Arc<Woken>,
    client: http2::SendRequest<Body>,
    writes: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
    _phase: watch::Sender<Phase>,
}

impl Talking {
    async fn to(router: Router) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let writes = Arc::new(AtomicUsize::new(0));
        let (host, wire) = (host(router), Counted { wire: ours, writes: writes.clone() });
        let (phase, phases) = watch::channel(Phase::Serving);
        let service = host.service.of(None, None);
        let mut tasks = JoinSet::new();
        let woken = Arc::new(Woken::default());
        let counts = woken.clone();
        tasks.spawn(async move {
            let mut speaking = pin!(host.speak(wire, service, Agreed::Nothing, phases));
            let waker = Waker::from(counts.clone());
            poll_fn(|cx| {
                counts.task.register(cx.waker());
                speaking.as_mut().poll(&mut Context::from_waker(&waker))
            })
            .await;
        });
        let (client, connection) =
            http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(theirs)).await.unwrap();
        tasks.spawn(async move { connection.await.unwrap() });
        Self { woken, client, writes, tasks, _phase: phase }
    }

    /// A hundred calls at a time. Each says whether it was answered.
    fn call(&self, path: &str) -> JoinSet<bool> {
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let request = Request::post(format!("http://x{path}"))
                .header("content-type", "application/grpc")
                .body(question().into())
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
async fn of_a_hundred_calls_under_way_twenty_are_answered_in_a_write_at_least() {
    const ROUNDS: usize = 20;
    let talking = Talking::to(Router::new()).await;
    for _ in 0..ROUNDS {
        let calls = talking.call("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        assert_eq!(calls.join_all().await, [true; CALLS]);
    }
    assert!(talking.writes() <= ROUNDS * CALLS / 20, "{} writes", talking.writes());
    talking.end().await;
}

#[tokio::test]
async fn calls_that_wait_for_the_same_wake_their_connection_once_and_are_answered_together() {
    let tell = watch::Sender::new(false);
    let told = tell.subscribe();
    let waits = move || async move { told.clone().wait_for(|told| *told).await.is_ok().to_string() };
    let talking = Talking::to(Router::new().route("/wait", post(waits))).await;
    let (calls, before) = (talking.call("/wait"), tell.receiver_count());
    let mut woken = 0;
    // Until all wait, and the connection is at rest.
    while tell.receiver_count() < before + CALLS || woken < talking.woken() {
        woken = talking.woken();
        for _ in 0..CALLS {
            tokio::task::yield_now().await;
        }
    }
    let before = talking.writes();
    tell.send_replace(true);
    assert_eq!(talking.woken() - woken, 1);
    assert_eq!(calls.join_all().await, [true; CALLS]);
    assert!(talking.writes() - before <= CALLS / 20, "{} writes", talking.writes() - before);
    talking.end().await;
}

#[test]
fn ages_differ_by_a_fifth_either_way() {
    let age = Duration::from_secs(100);
    for (dice, expected) in [(0.0, 80), (0.5, 100), (1.0, 120)] {
        assert_eq!(jittered(age, dice).as_secs_f64().round(), f64::from(expected));
    }
}
