//! Worker threads with a single-threaded runtime each: a connection stays on one core, and no core waits for another.

use std::{
    future::Future,
    io,
    sync::{Arc, mpsc::RecvTimeoutError},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tollgate_counter::time::Stopwatch;
use tracing::warn;

/// Time for blocking calls of a worker to finish at shutdown.
const BLOCKING_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for all workers to exit at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that run connections. Without workers, connections run on the current runtime.
#[derive(Debug, Default)]
pub struct WorkerPool {
    // gRPC connections.
    grpc: Vec<Worker>,
    // Probes and JSON, which must not delay gRPC calls.
    http: Vec<Worker>,
    // Admin and metrics connections: a long page must not delay a probe.
    pages: Vec<Worker>,
    // Nothing is sent: each channel closes when its thread exits.
    exits: Vec<mpsc::Receiver<()>>,
}

/// Handles that assign connections to workers.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerHandles(Arc<[WorkerHandle]>);

/// Handle of one worker.
#[derive(Clone, Debug)]
struct WorkerHandle {
    runtime: Handle,
    // Each connection has a clone.
    connections: Arc<()>,
}

#[derive(Debug)]
struct Worker {
    handle: WorkerHandle,
    // Dropped to stop the worker.
    keep_running: Option<oneshot::Sender<()>>,
    // Nothing is sent: the channel closes when the thread exits.
    exited: std::sync::mpsc::Receiver<()>,
}

impl WorkerPool {
    /// Starts `workers` threads for gRPC, one for probes and JSON, and one for admin and metrics pages.
    pub fn with_workers(workers: usize) -> io::Result<Self> {
        let mut exits = Vec::new();
        let mut named = |name: String| Worker::start(name, &mut exits);
        let workers =
            (0..workers).map(|number| named(format!("worker-{number}"))).collect::<Result<_, _>>()?;
        let http = vec![named("http".to_owned())?];
        let pages = vec![named("pages".to_owned())?];
        Ok(Self { grpc: workers, http, pages, exits })
    }

    /// One gRPC worker per core that is available to this process.
    pub fn per_core() -> io::Result<Self> {
        Self::with_workers(thread::available_parallelism().map_or(1, usize::from))
    }

    /// Handles for gRPC connections.
    pub(super) fn grpc_handles(&self) -> WorkerHandles {
        WorkerHandles::new(&self.grpc)
    }

    /// Handles for probe and JSON connections.
    pub(super) fn http_handles(&self) -> WorkerHandles {
        WorkerHandles::new(&self.http)
    }

    /// Handles for admin and metrics connections.
    pub(super) fn page_handles(&self) -> WorkerHandles {
        WorkerHandles::new(&self.pages)
    }

    /// Completes when a worker thread exits, which does not happen in normal operation.
    pub(super) fn worker_exit(&mut self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut exits: JoinSet<_> = JoinSet::new();
        for mut exit in self.exits.drain(..) {
            exits.spawn(async move { exit.recv().await });
        }
        async move {
            if exits.join_next().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Cancels the remaining connections. If a worker is blocked, the process exits without waiting for it.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut all: Vec<_> =
            [&mut self.grpc, &mut self.http, &mut self.pages].into_iter().flatten().collect();
        all.iter_mut().for_each(|worker| worker.keep_running = None);
        let stopwatch = Stopwatch::start();
        for Worker { exited, .. } in all {
            let left = SHUTDOWN_TIMEOUT.saturating_sub(stopwatch.elapsed());
            if exited.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                warn!(time_max = ?SHUTDOWN_TIMEOUT, "worker thread is blocked, exiting without it");
            }
        }
    }
}

impl Worker {
    /// Starts a worker thread. The receiver that is added to `exits` closes when the thread exits.
    fn start(name: String, exits: &mut Vec<mpsc::Receiver<()>>) -> io::Result<Self> {
        // One blocking thread for JSON and pages: more would take CPU time from gRPC.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
        let handle = WorkerHandle { runtime: runtime.handle().clone(), connections: Arc::default() };
        let (keep_running, stopped) = oneshot::channel();
        let (alive, exit) = mpsc::channel(1);
        let (running, exited) = std::sync::mpsc::channel();
        thread::Builder::new().name(name).spawn(move || {
            let _alive = alive;
            let _running = running;
            // An error means that the sender was dropped, which is the signal to stop.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(BLOCKING_TIMEOUT);
        })?;
        exits.push(exit);
        Ok(Self { handle, keep_running: Some(keep_running), exited })
    }
}

impl WorkerHandles {
    fn new(workers: &[Worker]) -> Self {
        Self(workers.iter().map(|worker| worker.handle.clone()).collect())
    }

    /// Runs `task`, which drives one connection, on the worker with the fewest connections.
    pub(super) fn spawn(&self, open: &mut JoinSet<()>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(WorkerHandle { runtime, connections }) =
            self.0.iter().min_by_key(|handle| Arc::strong_count(&handle.connections))
        else {
            open.spawn(task);
            return;
        };
        let connections = connections.clone();
        let task = Box::pin(task);
        let task = async move {
            let _counted = connections;
            task.await;
        };
        open.spawn_on(task, runtime);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn connection_goes_to_worker_with_fewest_connections() {
        let pool = WorkerPool::with_workers(3).unwrap();
        let handles = pool.grpc_handles();
        let mut open = JoinSet::new();
        let (sender, mut receiver) = mpsc::channel(9);
        for _ in 0..9 {
            let sender = sender.clone();
            handles.spawn(&mut open, async move {
                sender.send(thread::current().id()).await.unwrap();
                std::future::pending().await
            });
        }
        let mut each = BTreeMap::new();
        for _ in 0..9 {
            *each.entry(format!("{:?}", receiver.recv().await.unwrap())).or_insert(0) += 1;
        }
        assert_eq!(each.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    }

    #[tokio::test]
    async fn closed_connection_is_not_counted() {
        let pool = WorkerPool::with_workers(2).unwrap();
        let handles = pool.grpc_handles();
        let mut open = JoinSet::new();
        for _ in 0..10 {
            handles.spawn(&mut open, async {});
            open.join_next().await.unwrap().unwrap();
            // Those of the pool and of the handles.
            assert!(handles.0.iter().all(|handle| Arc::strong_count(&handle.connections) == 2));
        }
    }

    #[tokio::test]
    async fn panic_of_connection_keeps_worker_running() {
        let mut pool = WorkerPool::with_workers(1).unwrap();
        let handles = pool.grpc_handles();
        let exit = pool.worker_exit();
        let mut open = JoinSet::new();
        handles.spawn(&mut open, async { panic!("test panic") });
        assert!(open.join_next().await.unwrap().is_err());
        handles.spawn(&mut open, async {});
        assert!(open.join_next().await.unwrap().is_ok());
        drop(pool);
        exit.await;
    }

    #[test]
    fn blocked_worker_does_not_delay_shutdown() {
        let pool = WorkerPool::with_workers(2).unwrap();
        let (begin, begun) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut open = JoinSet::new();
        pool.grpc_handles().spawn(&mut open, async move {
            begin.send(()).unwrap();
            // Blocks the thread, not the task.
            released.recv().unwrap_err();
        });
        begun.recv().unwrap();
        let (exit, exited) = std::sync::mpsc::channel();
        let dropping = thread::spawn(move || {
            drop(pool);
            exit.send(()).unwrap();
        });
        exited.recv_timeout(Duration::from_secs(20)).unwrap();
        drop(release);
        dropping.join().unwrap();
    }

    #[tokio::test]
    async fn connection_without_workers_runs_on_current_runtime() {
        let mut open = JoinSet::new();
        let here = thread::current().id();
        WorkerHandles::default().spawn(&mut open, async move { assert_eq!(thread::current().id(), here) });
        assert!(open.join_next().await.unwrap().is_ok());
    }
}
