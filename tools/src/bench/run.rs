//! One run of the benchmark: callers, requests and measurements.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use tokio::{sync::Semaphore, task::JoinSet, time::timeout};
use tollgate_counter::{lock::lock, time::Stopwatch};
use tonic::Code;

use crate::bench::{
    client::{BenchClient, Route},
    frame::{AnswerKind, BenchCall, FrameTemplate},
    keys::{HitDistribution, Keys},
    schedule::{MeasuredSpan, Schedule},
    stats::{BenchStats, LATE},
};

/// Permits for every caller to find that the run has ended.
const PERMITS_AT_END: usize = Semaphore::MAX_PERMITS / 2;

/// The number of callers; each has one open request at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerCount {
    pub connections: usize,
    /// The callers on each connection.
    pub streams: usize,
}

/// The content of requests.
pub(super) enum BenchTraffic {
    /// Requests for decisions.
    Decisions { template: FrameTemplate, keys: Keys, hits: HitDistribution },
    /// Calls in turn, at least one; `next` is the index of the next one.
    Calls { calls: Vec<BenchCall>, next: usize },
}

impl BenchTraffic {
    fn next(&mut self) -> BenchCall {
        match self {
            Self::Decisions { template, keys, hits } => {
                BenchCall { path: None, body: template.fill(keys.next(), hits.next()) }
            }
            Self::Calls { calls, next } => {
                let call = calls[*next].clone();
                *next = (*next + 1) % calls.len();
                call
            }
        }
    }
}

/// A run that has not started.
pub(super) struct Run {
    pub callers: CallerCount,
    pub span: MeasuredSpan,
    /// The timeout of a request, from when it was due (open loop) or sent (closed loop).
    pub request_timeout: Duration,
    /// When requests of an open loop are sent, regardless of answers; `None` for a closed loop, in which a caller sends
    /// its next request after the answer to the previous one.
    pub schedule: Option<Schedule>,
    pub traffic: BenchTraffic,
}

/// The state that callers share.
pub(super) struct RunState {
    /// How many callers there are.
    pub(super) callers: CallerCount,
    /// Requests a second of an open loop.
    pub(super) rate: Option<u64>,
    stopwatch: Stopwatch,
    span: MeasuredSpan,
    request_timeout: Duration,
    progress: Mutex<RunProgress>,
    // Open loop: the number of requests due and not sent; `PERMITS_AT_END` after the last one.
    due: Semaphore,
}

/// What determines the next request, and what was measured.
struct RunProgress {
    traffic: BenchTraffic,
    // What is left of the schedule of an open loop.
    schedule: Option<Schedule>,
    stats: BenchStats,
}

/// A request to send.
struct BenchRequest {
    content: BenchCall,
    /// The instant from which the latency of the request is measured.
    from: Duration,
    measured: bool,
}

/// A run in progress. Dropping it ends the run.
pub(super) struct Running {
    pub(super) state: Arc<RunState>,
    tasks: JoinSet<()>,
    // Dropping it ends the thread that releases requests; `None` in a closed loop.
    _pacer: Option<mpsc::Sender<()>>,
}

impl Run {
    /// Opens all connections, then starts.
    pub(super) async fn start(self, route: Route) -> Result<Running, String> {
        let route = Arc::new(route);
        let mut clients = Vec::new();
        for _ in 0..self.callers.connections {
            clients.push(BenchClient::connect(route.clone()).await?);
        }
        let state = Arc::new(RunState {
            callers: self.callers,
            rate: self.schedule.as_ref().map(|schedule| schedule.rate),
            stopwatch: Stopwatch::start(),
            span: self.span,
            request_timeout: self.request_timeout,
            progress: Mutex::new(RunProgress {
                traffic: self.traffic,
                schedule: self.schedule.clone(),
                stats: BenchStats::new(),
            }),
            due: Semaphore::new(0),
        });
        let mut tasks = JoinSet::new();
        // Interleaves connections, because the caller that has waited longest sends next.
        for _ in 0..self.callers.streams {
            for client in &clients {
                tasks.spawn(state.clone().call(client.clone()));
            }
        }
        let pacer = self.schedule.map(|schedule| start_pacer(state.clone(), schedule));
        Ok(Running { state, tasks, _pacer: pacer })
    }
}

impl Running {
    /// Waits until all requests have ended.
    pub(super) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

impl RunState {
    /// The stats so far.
    pub(super) fn stats(&self) -> BenchStats {
        self.progress().stats.clone()
    }

    /// The time since the measured part began; zero before.
    pub(super) fn measured(&self) -> Duration {
        self.stopwatch.elapsed().saturating_sub(self.span.warmup)
    }

    /// Open loop: the number of measured requests due by now, sent or not.
    pub(super) fn due(&self) -> Option<u64> {
        let now = self.stopwatch.elapsed();
        let progress = self.progress();
        let rest = progress.schedule.clone()?;
        let waiting = rest.take_while(|instant| *instant <= now);
        let waiting = waiting.filter(|instant| self.span.warmup <= *instant).count();
        Some(progress.stats.sent + waiting as u64)
    }

    async fn call(self: Arc<Self>, mut client: BenchClient) {
        while let Some(request) = self.next().await {
            let left =
                self.request_timeout.saturating_sub(self.stopwatch.elapsed().saturating_sub(request.from));
            // A request that has timed out before it is sent is not sent.
            let outcome =
                if left.is_zero() { None } else { timeout(left, client.call(request.content)).await.ok() };
            if request.measured {
                let outcome = outcome.unwrap_or(AnswerKind::Failed(Code::DeadlineExceeded));
                let latency = self.stopwatch.elapsed().saturating_sub(request.from);
                self.progress().stats.end(outcome, latency);
            }
        }
    }

    /// The next request, when it is time to send it; `None` at the end of the run.
    async fn next(&self) -> Option<BenchRequest> {
        let is_open = self.progress().schedule.is_some();
        if is_open {
            self.due.acquire().await.ok()?.forget();
        }
        let now = self.stopwatch.elapsed();
        self.progress().request(&self.span, now)
    }

    fn progress(&self) -> MutexGuard<'_, RunProgress> {
        lock(&self.progress)
    }
}

impl RunProgress {
    /// The next request at `now`, which is counted as sent; `None` at the end of the run.
    fn request(&mut self, span: &MeasuredSpan, now: Duration) -> Option<BenchRequest> {
        let end = span.end().unwrap_or(Duration::MAX);
        let from = match &mut self.schedule {
            None if end <= now => return None,
            None => now,
            // The last request due may be sent slightly after the end; a backlog may not.
            Some(_) if end.saturating_add(LATE) <= now => return None,
            Some(schedule) => schedule.next()?,
        };
        let measured = span.warmup <= from;
        if measured {
            if span.requests.is_some_and(|requests| requests <= self.stats.sent) {
                return None;
            }
            self.stats.sent += 1;
            self.stats.late += u64::from(now.saturating_sub(from) > LATE);
        } else {
            self.stats.warmup += 1;
        }
        Some(BenchRequest { content: self.traffic.next(), from, measured })
    }
}

/// Releases requests when they are due, until the sender is dropped. On a thread, because the runtime's timers have
/// millisecond resolution.
fn start_pacer(state: Arc<RunState>, schedule: Schedule) -> mpsc::Sender<()> {
    let (stop, stopped) = mpsc::channel();
    thread::spawn(move || {
        for instant in schedule {
            loop {
                let wait = instant.saturating_sub(state.stopwatch.elapsed());
                if wait.is_zero() {
                    break;
                }
                if stopped.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
            state.due.add_permits(1);
        }
        // Wakes the waiting callers, which find that the run has ended.
        state.due.add_permits(PERMITS_AT_END);
    });
    stop
}
