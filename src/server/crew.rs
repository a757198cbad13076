//! Threads that look after connections, each with a runtime of its own: what a connection needs stays on one core,
//! and no core waits for another.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::RecvTimeoutError,
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tracing::warn;

use crate::time::Stopwatch;

/// The time that blocking calls of a worker may take when it ends.
const BLOCKING_MAX: Duration = Duration::from_millis(500);
/// The time that all workers may take to end.
const END_MAX: Duration = Duration::from_secs(1);

/// Threads that connections are handed out to. Whoever has none looks after connections where it is.
#[derive(Debug, Default)]
pub struct Crew {
    // Of gRPC connections.
    workers: Vec<Worker>,
    // Of connections with probes and JSON: what they do delays no gRPC call.
    http: Vec<Worker>,
    // Of connections with pages of operators and metrics: a long page delays no probe.
    pages: Vec<Worker>,
    // Nobody sends here; it closes with the last sender, so each worker's end is told by its own.
    ends: Vec<mpsc::Receiver<()>>,
}

/// Those who hand out connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Hands(Arc<[Hand]>);

/// One worker, as those who hand out connections see it.
#[derive(Clone, Debug)]
struct Hand {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Worker {
    hand: Hand,
    // Dropped to tell it to leave.
    stay: Option<oneshot::Sender<()>>,
    // Nothing is sent here; it closes when the thread ends.
    ended: std::sync::mpsc::Receiver<()>,
}

/// A connection that a worker looks after, for as long as this lives.
struct Held(Arc<AtomicUsize>);

impl Crew {
    /// So many threads for gRPC, one for probes and JSON, and one for pages.
    pub fn of(workers: usize) -> io::Result<Self> {
        let mut ends = Vec::new();
        let mut named = |name: String| Worker::start(name, &mut ends);
        let workers =
            (0..workers).map(|number| named(format!("worker-{number}"))).collect::<Result<_, _>>()?;
        let (http, pages) = (vec![named("http".to_owned())?], vec![named("pages".to_owned())?]);
        Ok(Self { workers, http, pages, ends })
    }

    /// One for each core that this process may use.
    pub fn for_each_core() -> io::Result<Self> {
        Self::of(thread::available_parallelism().map_or(1, usize::from))
    }

    /// For gRPC connections.
    pub(super) fn hands(&self) -> Hands {
        Hands::of(&self.workers)
    }

    /// For connections with probes and JSON.
    pub(super) fn http_hands(&self) -> Hands {
        Hands::of(&self.http)
    }

    /// For connections with pages of operators and metrics.
    pub(super) fn page_hands(&self) -> Hands {
        Hands::of(&self.pages)
    }

    /// Waits until one of the threads ends, which none should.
    pub(super) fn end(&mut self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut ends: JoinSet<_> = JoinSet::new();
        for mut end in self.ends.drain(..) {
            ends.spawn(async move { end.recv().await });
        }
        async move {
            if ends.join_next().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What is still looked after ends. A worker that does not, because something blocks it, is left to the end of the
/// process.
impl Drop for Crew {
    fn drop(&mut self) {
        let mut all: Vec<_> =
            [&mut self.workers, &mut self.http, &mut self.pages].into_iter().flatten().collect();
        all.iter_mut().for_each(|worker| worker.stay = None);
        let ending = Stopwatch::start();
        for Worker { ended, .. } in all {
            let left = END_MAX.saturating_sub(ending.elapsed());
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                warn!(time_max = ?END_MAX, "a worker is blocked; the process ends without it");
            }
        }
    }
}

impl Worker {
    /// Starts a thread. The receiver that joins `ends` closes when the thread ends.
    fn start(name: String, ends: &mut Vec<mpsc::Receiver<()>>) -> io::Result<Self> {
        // Blocking threads do the long work of JSON and pages: more of them would leave less of the cores to gRPC.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
        let hand = Hand { runtime: runtime.handle().clone(), connections: Arc::default() };
        let (stay, leave) = oneshot::channel();
        let (alive, end) = mpsc::channel(1);
        let (running, ended) = std::sync::mpsc::channel();
        thread::Builder::new().name(name).spawn(move || {
            let (_alive, _running) = (alive, running);
            // An error says that the sender is gone, which is what is waited for.
            runtime.block_on(leave).unwrap_or_default();
            runtime.shutdown_timeout(BLOCKING_MAX);
        })?;
        ends.push(end);
        Ok(Self { hand, stay: Some(stay), ended })
    }
}

impl Hands {
    fn of(workers: &[Worker]) -> Self {
        Self(workers.iter().map(|worker| worker.hand.clone()).collect())
    }

    /// Has `care`, the care for one connection, done by the worker with the fewest of them.
    pub(super) fn hand_out(&self, open: &mut JoinSet<()>, care: impl Future<Output = ()> + Send + 'static) {
        let Some(Hand { runtime, connections }) =
            self.0.iter().min_by_key(|hand| hand.connections.load(Relaxed))
        else {
            open.spawn(care);
            return;
        };
        connections.fetch_add(1, Relaxed);
        let (held, care) = (Held(connections.clone()), Box::pin(care));
        let care = async move {
            let _held = held;
            care.await;
        };
        open.spawn_on(care, runtime);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn each_connection_goes_to_the_worker_that_has_the_fewest() {
        let crew = Crew::of(3).unwrap();
        let hands = crew.hands();
        let (mut open, (tell, mut told)) = (JoinSet::new(), mpsc::channel(9));
        for _ in 0..9 {
            let tell = tell.clone();
            hands.hand_out(&mut open, async move {
                tell.send(thread::current().id()).await.unwrap();
                std::future::pending().await
            });
        }
        let mut each = BTreeMap::new();
        for _ in 0..9 {
            *each.entry(format!("{:?}", told.recv().await.unwrap())).or_insert(0) += 1;
        }
        assert_eq!(each.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_makes_room() {
        let crew = Crew::of(2).unwrap();
        let hands = crew.hands();
        let mut open = JoinSet::new();
        for _ in 0..10 {
            hands.hand_out(&mut open, async {});
            open.join_next().await.unwrap().unwrap();
            assert!(hands.0.iter().all(|hand| hand.connections.load(Relaxed) == 0));
        }
    }

    #[tokio::test]
    async fn a_connection_that_panics_leaves_its_worker_alive() {
        let mut crew = Crew::of(1).unwrap();
        let (hands, end) = (crew.hands(), crew.end());
        let mut open = JoinSet::new();
        hands.hand_out(&mut open, async { panic!("a test") });
        assert!(open.join_next().await.unwrap().is_err());
        hands.hand_out(&mut open, async {});
        assert!(open.join_next().await.unwrap().is_ok());
        drop(crew);
        end.await;
    }

    #[test]
    fn blocked_worker_does_not_hold_the_end() {
        let crew = Crew::of(2).unwrap();
        let (begin, begun) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut open = JoinSet::new();
        crew.hands().hand_out(&mut open, async move {
            begin.send(()).unwrap();
            // Blocks the thread, not the task.
            released.recv().unwrap_err();
        });
        begun.recv().unwrap();
        let (end, ended) = std::sync::mpsc::channel();
        let ending = thread::spawn(move || {
            drop(crew);
            end.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
        drop(release);
        ending.join().unwrap();
    }

    #[tokio::test]
    async fn without_workers_connections_are_looked_after_where_they_come() {
        let mut open = JoinSet::new();
        let here = thread::current().id();
        Hands::default().hand_out(&mut open, async move { assert_eq!(thread::current().id(), here) });
        assert!(open.join_next().await.unwrap().is_ok());
    }
}
