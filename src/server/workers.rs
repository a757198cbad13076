//! Worker threads with a single-threaded runtime each: a connection stays on one core, and no core waits for another.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

/// Time for blocking calls of a worker to finish at shutdown.
const BLOCKING_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for all workers to exit at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads that run connections. Without workers, connections run on the current runtime.
#[derive(Debug, Default)]
pub struct WorkerPool {
    /// Workers for gRPC connections.
    pub(super) grpc: WorkerHandles,
    /// Workers for probes and JSON, which must not delay gRPC calls.
    pub(super) http: WorkerHandles,
    /// Workers for admin and metrics connections: a long page must not delay a probe.
    pub(super) pages: WorkerHandles,
    // Dropped to stop the threads.
    stop: Option<DropGuard>,
    // Cancelled when the first thread exits.
    exit: CancellationToken,
    // Nothing is sent: the channel closes when the last thread exits.
    running: Option<mpsc::Receiver<()>>,
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

impl WorkerPool {
    /// Starts `workers` threads for gRPC, one for probes and JSON, and one for admin and metrics pages.
    pub fn with_workers(workers: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let stop_guard = stop.clone().drop_guard();
        let exit = CancellationToken::new();
        let (alive, running) = mpsc::channel::<()>();
        let start = |name: String| {
            // One blocking thread for JSON and pages: more would take CPU time from gRPC.
            let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
            let handle = WorkerHandle { runtime: runtime.handle().clone(), connections: Arc::default() };
            let stop = stop.clone();
            let exit = exit.clone().drop_guard();
            let alive = alive.clone();
            thread::Builder::new().name(name).spawn(move || {
                let _ended = (exit, alive);
                runtime.block_on(stop.cancelled());
                runtime.shutdown_timeout(BLOCKING_TIMEOUT);
            })?;
            Ok(handle)
        };
        let started = |names: Vec<String>| names.into_iter().map(&start).collect::<io::Result<_>>();
        Ok(Self {
            grpc: WorkerHandles(started((0..workers).map(|number| format!("worker-{number}")).collect())?),
            http: WorkerHandles(started(vec!["http".to_owned()])?),
            pages: WorkerHandles(started(vec!["pages".to_owned()])?),
            stop: Some(stop_guard),
            exit,
            running: Some(running),
        })
    }

    /// One gRPC worker per core that is available to this process.
    pub fn per_core() -> io::Result<Self> {
        Self::with_workers(thread::available_parallelism().map_or(1, usize::from))
    }

    /// Completes when a worker thread exits, which does not happen in normal operation.
    pub(super) fn worker_exit(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.exit.clone().cancelled_owned()
    }
}

/// Cancels the remaining connections. If a worker is blocked, the process exits without waiting for it.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.running.take().map(|running| running.recv_timeout(SHUTDOWN_TIMEOUT));
        if ended == Some(Err(RecvTimeoutError::Timeout)) {
            warn!(time_max = ?SHUTDOWN_TIMEOUT, "worker thread is blocked, exiting without it");
        }
    }
}

impl WorkerHandles {
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
        let handles = pool.grpc.clone();
        let mut open = JoinSet::new();
        let (sender, mut receiver) = tokio::sync::mpsc::channel(9);
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
        let handles = pool.grpc.clone();
        let mut open = JoinSet::new();
        for _ in 0..10 {
            handles.spawn(&mut open, async {});
            open.join_next().await.unwrap().unwrap();
            assert!(handles.0.iter().all(|handle| Arc::strong_count(&handle.connections) == 1));
        }
    }

    #[tokio::test]
    async fn panic_of_connection_keeps_worker_running() {
        let pool = WorkerPool::with_workers(1).unwrap();
        let handles = pool.grpc.clone();
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
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut open = JoinSet::new();
        pool.grpc.clone().spawn(&mut open, async move {
            begin.send(()).unwrap();
            // Blocks the thread, not the task.
            released.recv().unwrap_err();
        });
        begun.recv().unwrap();
        let (exit, exited) = mpsc::channel();
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
