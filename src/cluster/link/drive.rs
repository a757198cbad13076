//! A connection, what it needs done, and the talk over it: all in one task.
//!
//! HTTP/2 wants a task for each stream. As tasks they would wake each other across threads at every batch; here
//! they wake only the one that they are all part of. And when that one ends, nothing is left of any.

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

/// Futures that a connection wants to be looked after.
#[derive(Clone, Default)]
pub(super) struct Chores(Arc<Mutex<Vec<Chore>>>);

type Chore = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future + Send + 'static> Executor<F> for Chores {
    fn execute(&self, chore: F) {
        let chore = Box::pin(async move {
            chore.await;
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(chore);
    }
}

impl Chores {
    fn take(&self) -> Vec<Chore> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Drives `connection` and its chores until `talk` has ended. `None` if it has vanished, which it does not.
pub(super) async fn drive<T: Send>(
    chores: Chores,
    connection: impl Future + Send,
    talk: impl Future<Output = T> + Send,
) -> Option<T> {
    let (tell, mut told) = oneshot::channel();
    let mut set: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = FuturesUnordered::new();
    set.push(Box::pin(async move {
        connection.await;
    }));
    set.push(Box::pin(async move {
        tell.send(talk.await).ok();
    }));
    poll_fn(move |cx| {
        loop {
            set.extend(
                chores.take().into_iter().map(|chore| chore as Pin<Box<dyn Future<Output = ()> + Send>>),
            );
            match Pin::new(&mut set).poll_next(cx) {
                Poll::Pending => {
                    // Polling may have brought new ones, which nobody has polled yet.
                    let chores = chores.take();
                    if chores.is_empty() {
                        return Poll::Pending;
                    }
                    set.extend(chores);
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(())) => match told.try_recv() {
                    Ok(output) => return Poll::Ready(Some(output)),
                    Err(oneshot::error::TryRecvError::Empty) => {}
                    Err(oneshot::error::TryRecvError::Closed) => return Poll::Ready(None),
                },
            }
        }
    })
    .await
}
