//! One run: who sends what when, and what is noted of it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use prost::bytes::Bytes;
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};
use tonic::Code;

use crate::{
    cli::bench::{
        client::{self, Client, Route},
        frame::{Outcome, Template},
        keys::{Hits, Keys},
        schedule::{MeasuredSpan, Schedule},
        stats::{LATE, Stats},
    },
    time::Stopwatch,
};

/// Permits for every caller to find that the run is over.
const ENOUGH: usize = Semaphore::MAX_PERMITS / 2;

/// How many callers there are: each has one request open at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callers {
    pub connections: usize,
    /// On each connection.
    pub streams: usize,
}

/// What requests say.
pub(super) struct Traffic {
    pub template: Template,
    pub keys: Keys,
    pub hits: Hits,
}

/// What decides when a request is sent.
#[derive(Clone)]
pub(super) enum LoadModel {
    /// A caller sends its next request when it has the answer to the last one.
    Closed,
    /// Requests are sent when they are due, whatever becomes of the others.
    Open(Schedule),
}

/// A run that has not begun.
pub(super) struct Run {
    pub callers: Callers,
    pub span: MeasuredSpan,
    /// How long a request may take, from when it was due (open loop) or sent (closed loop).
    pub request_timeout: Duration,
    pub load_model: LoadModel,
    pub traffic: Traffic,
}

/// What callers share.
struct Shared {
    stopwatch: Stopwatch,
    span: MeasuredSpan,
    request_timeout: Duration,
    next: Mutex<NextRequest>,
    stats: Mutex<Stats>,
    // Of an open loop: how many requests are due and not sent; more than enough after the last one.
    due: Semaphore,
}

/// What the next request will be.
struct NextRequest {
    traffic: Traffic,
    load_model: LoadModel,
    measured: u64,
}

/// One request to be sent.
struct Request {
    body: Bytes,
    /// The instant from which its time counts.
    from: Duration,
    measured: bool,
}

/// A run that is going on. Dropping it ends it.
pub(super) struct Running {
    shared: Arc<Shared>,
    callers: JoinSet<()>,
    // Owned here, so that connections end with the run.
    _reconnectors: JoinSet<()>,
    pacer: Option<Pacer>,
}

impl Run {
    /// Makes all connections, then begins.
    pub(super) async fn start(self, route: Route) -> Result<Running, String> {
        let route = Arc::new(route);
        let (mut clients, mut reconnectors) = (Vec::new(), JoinSet::new());
        for _ in 0..self.callers.connections {
            let (client, reconnector) = client::open(route.clone()).await?;
            clients.push(client);
            reconnectors.spawn(reconnector.run());
        }
        let shared = Arc::new(Shared {
            stopwatch: Stopwatch::start(),
            span: self.span,
            request_timeout: self.request_timeout,
            next: Mutex::new(NextRequest {
                traffic: self.traffic,
                load_model: self.load_model.clone(),
                measured: 0,
            }),
            stats: Mutex::new(Stats::new()),
            due: Semaphore::new(0),
        });
        let mut callers = JoinSet::new();
        // Connections by turns, since whoever has waited longest sends next.
        for _ in 0..self.callers.streams {
            for client in &clients {
                callers.spawn(shared.clone().call(client.clone()));
            }
        }
        let pacer = match self.load_model {
            LoadModel::Closed => None,
            LoadModel::Open(schedule) => Some(Pacer::start(shared.clone(), schedule)),
        };
        Ok(Running { shared, callers, _reconnectors: reconnectors, pacer })
    }
}

impl Running {
    /// Waits until every request has ended.
    pub(super) async fn ended(&mut self) {
        while self.callers.join_next().await.is_some() {}
    }

    /// What has been measured so far.
    pub(super) fn stats(&self) -> MutexGuard<'_, Stats> {
        self.shared.stats()
    }

    /// The time since the measured part began; zero before.
    pub(super) fn measured(&self) -> Duration {
        self.shared.stopwatch.elapsed().saturating_sub(self.shared.span.warmup)
    }

    /// Of an open loop: how many measured requests were due by now, sent or not.
    pub(super) fn due(&self) -> Option<u64> {
        self.pacer.as_ref()?;
        let now = self.shared.stopwatch.elapsed();
        let waiting = match &lock(&self.shared.next).load_model {
            LoadModel::Closed => 0,
            LoadModel::Open(rest) => {
                let due = rest.clone().take_while(|instant| *instant <= now);
                due.filter(|instant| self.shared.span.warmup <= *instant).count()
            }
        };
        Some(self.stats().sent + waiting as u64)
    }
}

impl Shared {
    async fn call(self: Arc<Self>, mut client: Client) {
        while let Some(request) = self.next().await {
            let left =
                self.request_timeout.saturating_sub(self.stopwatch.elapsed().saturating_sub(request.from));
            // Nobody would wait for what is too late before it is sent.
            let outcome =
                if left.is_zero() { None } else { timeout(left, client.call(request.body)).await.ok() };
            if request.measured {
                let outcome = outcome.unwrap_or(Outcome::Failed(Code::DeadlineExceeded));
                self.stats().end(outcome, self.stopwatch.elapsed().saturating_sub(request.from));
            }
        }
    }

    /// The next request, when it is to be sent; `None` at the end of the run.
    async fn next(&self) -> Option<Request> {
        if matches!(lock(&self.next).load_model, LoadModel::Open(_)) {
            self.due.acquire().await.ok()?.forget();
        }
        let now = self.stopwatch.elapsed();
        let request = lock(&self.next).request(&self.span, now)?;
        let mut stats = self.stats();
        if request.measured {
            stats.sent += 1;
            stats.late += u64::from(LATE < now.saturating_sub(request.from));
        } else {
            stats.warmup += 1;
        }
        Some(request)
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        lock(&self.stats)
    }
}

impl NextRequest {
    fn request(&mut self, span: &MeasuredSpan, now: Duration) -> Option<Request> {
        let end = span.end().unwrap_or(Duration::MAX);
        let from = match &mut self.load_model {
            LoadModel::Closed if end <= now => return None,
            LoadModel::Closed => now,
            // What was due last may be sent a moment after the end; what has piled up may not.
            LoadModel::Open(_) if end.saturating_add(LATE) <= now => return None,
            LoadModel::Open(schedule) => schedule.next()?,
        };
        let measured = span.warmup <= from;
        if measured {
            if span.requests.is_some_and(|requests| requests <= self.measured) {
                return None;
            }
            self.measured += 1;
        }
        let (key, hits) = (self.traffic.keys.next(), self.traffic.hits.next());
        Some(Request { body: self.traffic.template.fill(key, hits), from, measured })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked has left counts, which are whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says when requests are due. A thread, because the runtime's timers know milliseconds only.
struct Pacer {
    // Dropped to end the thread.
    _stop: mpsc::Sender<()>,
}

impl Pacer {
    fn start(shared: Arc<Shared>, schedule: Schedule) -> Self {
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            for instant in schedule {
                loop {
                    let wait = instant.saturating_sub(shared.stopwatch.elapsed());
                    if wait.is_zero() {
                        break;
                    }
                    if stopped.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
                shared.due.add_permits(1);
            }
            // Whoever waits now finds that nothing is left.
            shared.due.add_permits(ENOUGH);
        });
        Self { _stop: stop }
    }
}
