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
        frame::{Outcome, Template},
        keys::{Hits, Keys},
        link::{self, Link, Route},
        schedule::{Schedule, Span},
        tally::{LATE, Tally},
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
pub(super) enum Pace {
    /// A caller sends its next request when it has the answer to the last one.
    Closed,
    /// Requests are sent when they are due, whatever becomes of the others.
    Open(Schedule),
}

/// A run that has not begun.
pub(super) struct Run {
    pub callers: Callers,
    pub span: Span,
    /// How long a request may take, from when it was due (open loop) or sent (closed loop).
    pub patience: Duration,
    pub pace: Pace,
    pub traffic: Traffic,
}

/// What callers share.
struct Shared {
    stopwatch: Stopwatch,
    span: Span,
    patience: Duration,
    next: Mutex<Next>,
    tally: Mutex<Tally>,
    // Of an open loop: how many requests are due and not sent; more than enough after the last one.
    due: Semaphore,
}

/// What the next request will be.
struct Next {
    traffic: Traffic,
    pace: Pace,
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
    _keepers: JoinSet<()>,
    pacer: Option<Pacer>,
}

impl Run {
    /// Makes all connections, then begins.
    pub(super) async fn start(self, route: Route) -> Result<Running, String> {
        let route = Arc::new(route);
        let (mut links, mut keepers) = (Vec::new(), JoinSet::new());
        for _ in 0..self.callers.connections {
            let (link, keeper) = link::open(route.clone()).await?;
            links.push(link);
            keepers.spawn(keeper.run());
        }
        let shared = Arc::new(Shared {
            stopwatch: Stopwatch::start(),
            span: self.span,
            patience: self.patience,
            next: Mutex::new(Next { traffic: self.traffic, pace: self.pace.clone(), measured: 0 }),
            tally: Mutex::new(Tally::new()),
            due: Semaphore::new(0),
        });
        let mut callers = JoinSet::new();
        // Connections by turns, since whoever has waited longest sends next.
        for _ in 0..self.callers.streams {
            for link in &links {
                callers.spawn(shared.clone().call(link.clone()));
            }
        }
        let pacer = match self.pace {
            Pace::Closed => None,
            Pace::Open(schedule) => Some(Pacer::start(shared.clone(), schedule)),
        };
        Ok(Running { shared, callers, _keepers: keepers, pacer })
    }
}

impl Running {
    /// Waits until every request has ended.
    pub(super) async fn ended(&mut self) {
        while self.callers.join_next().await.is_some() {}
    }

    /// What has been measured so far.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.shared.tally()
    }

    /// The time since the measured part began; zero before.
    pub(super) fn measured(&self) -> Duration {
        self.shared.stopwatch.elapsed().saturating_sub(self.shared.span.warmup)
    }

    /// Of an open loop: how many measured requests were due by now, sent or not.
    pub(super) fn due(&self) -> Option<u64> {
        self.pacer.as_ref()?;
        let now = self.shared.stopwatch.elapsed();
        let waiting = match &lock(&self.shared.next).pace {
            Pace::Closed => 0,
            Pace::Open(rest) => {
                let due = rest.clone().take_while(|instant| *instant <= now);
                due.filter(|instant| self.shared.span.warmup <= *instant).count()
            }
        };
        Some(self.tally().sent + waiting as u64)
    }
}

impl Shared {
    async fn call(self: Arc<Self>, mut link: Link) {
        while let Some(request) = self.next().await {
            let left = self.patience.saturating_sub(self.stopwatch.elapsed().saturating_sub(request.from));
            // Nobody would wait for what is too late before it is sent.
            let outcome =
                if left.is_zero() { None } else { timeout(left, link.call(request.body)).await.ok() };
            if request.measured {
                let outcome = outcome.unwrap_or(Outcome::Failed(Code::DeadlineExceeded));
                self.tally().end(outcome, self.stopwatch.elapsed().saturating_sub(request.from));
            }
        }
    }

    /// The next request, when it is to be sent; `None` at the end of the run.
    async fn next(&self) -> Option<Request> {
        if matches!(lock(&self.next).pace, Pace::Open(_)) {
            self.due.acquire().await.ok()?.forget();
        }
        let now = self.stopwatch.elapsed();
        let request = lock(&self.next).request(&self.span, now)?;
        let mut tally = self.tally();
        if request.measured {
            tally.sent += 1;
            tally.late += u64::from(LATE < now.saturating_sub(request.from));
        } else {
            tally.warmup += 1;
        }
        Some(request)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }
}

impl Next {
    fn request(&mut self, span: &Span, now: Duration) -> Option<Request> {
        let end = span.end().unwrap_or(Duration::MAX);
        let from = match &mut self.pace {
            Pace::Closed if end <= now => return None,
            Pace::Closed => now,
            // What was due last may be sent a moment after the end; what has piled up may not.
            Pace::Open(_) if end.saturating_add(LATE) <= now => return None,
            Pace::Open(schedule) => schedule.next()?,
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
