//! Runs a connection, the futures that it spawns, and the exchange over it in one task.
//!
//! HTTP/2 spawns a future for each stream. Separate tasks would wake each other across threads at every batch; here
//! they share one task, which also ends all of them.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;
use tokio::sync::oneshot;

/// An executor that collects the futures that a connection spawns.
#[derive(Clone, Default)]
pub(super) struct SpawnedTasks(Arc<Mutex<Vec<Task>>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future + Send + 'static> Executor<F> for SpawnedTasks {
    fn execute(&self, task: F) {
        let task = Box::pin(async move {
            task.await;
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }
}

impl SpawnedTasks {
    fn take(&self) -> Vec<Task> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Drives `connection` and the futures that it spawns until `exchange` ends. `None` if `exchange` was dropped, which
/// does not happen.
pub(super) async fn drive<T: Send>(
    spawned: SpawnedTasks,
    connection: impl Future + Send,
    exchange: impl Future<Output = T> + Send,
) -> Option<T> {
    let (sender, mut receiver) = oneshot::channel();
    let mut set: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = FuturesUnordered::new();
    set.push(Box::pin(async move {
        connection.await;
    }));
    set.push(Box::pin(async move {
        let _ = sender.send(exchange.await);
    }));
    poll_fn(move |cx| {
        loop {
            set.extend(
                spawned.take().into_iter().map(|task| task as Pin<Box<dyn Future<Output = ()> + Send>>),
            );
            match Pin::new(&mut set).poll_next(cx) {
                Poll::Pending => {
                    // Polling may have spawned more futures, which have not been polled yet.
                    let spawned = spawned.take();
                    if spawned.is_empty() {
                        return Poll::Pending;
                    }
                    set.extend(spawned);
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(())) => match receiver.try_recv() {
                    Ok(output) => return Poll::Ready(Some(output)),
                    Err(oneshot::error::TryRecvError::Empty) => {}
                    Err(oneshot::error::TryRecvError::Closed) => return Poll::Ready(None),
                },
            }
        }
    })
    .await
}
