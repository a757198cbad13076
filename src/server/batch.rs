//! Answers of one connection that leave together.
//!
//! Spawned as tasks, the calls of a connection would each wake it when they are answered, and it would write each
//! answer by itself. So they are only noted, and asked once, in turn, in the task of their connection: those that
//! are answered at once, which is nearly all, are then written together. Only those that have to wait become tasks.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use hyper::rt::Executor;

/// The most calls that are asked before what is answered is written.
const CALLS_MAX: usize = 64;
/// How often in a row a connection is looked after before others have their turn.
const ROUNDS_MAX: usize = 8;

/// Calls of one connection that have not been asked yet.
#[derive(Clone, Default)]
pub(super) struct Batch(Arc<Mutex<Vec<Call>>>);

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Batch {
    fn execute(&self, call: F) {
        self.calls().push(Box::pin(call));
    }
}

impl Batch {
    /// Looks after `connection`, whose calls are noted here, until it ends.
    pub(super) async fn drive<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|cx| self.look_after(connection.as_mut(), cx)).await
    }

    fn look_after<C: Future>(&self, mut connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        for _ in 0..ROUNDS_MAX {
            // It reads what has come, and writes what has been answered.
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            let calls = self.some();
            if calls.is_empty() {
                return Poll::Pending;
            }
            for mut call in calls {
                if call.as_mut().poll(cx).is_pending() {
                    tokio::spawn(call);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The first of them, as many as are asked together.
    fn some(&self) -> Vec<Call> {
        let mut calls = self.calls();
        if calls.len() <= CALLS_MAX { mem::take(&mut *calls) } else { calls.drain(..CALLS_MAX).collect() }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use tokio::sync::oneshot;

    use super::*;

    /// A connection that notes `calls` answered at once and one that waits, and ends when it comes to write.
    fn connection(
        batch: Batch,
        calls: usize,
        answered: Arc<AtomicUsize>,
        wait: oneshot::Receiver<()>,
    ) -> impl Future<Output = usize> {
        let mut wait = Some(wait);
        poll_fn(move |_| {
            let Some(wait) = wait.take() else { return Poll::Ready(answered.load(Relaxed)) };
            for _ in 0..calls {
                let answered = answered.clone();
                batch.execute(async move {
                    answered.fetch_add(1, Relaxed);
                });
            }
            let answered = answered.clone();
            batch.execute(async move {
                wait.await.ok();
                answered.fetch_add(1_000, Relaxed);
            });
            Poll::Pending
        })
    }

    #[tokio::test]
    async fn calls_that_are_answered_at_once_are_written_together_and_others_become_tasks() {
        let (batch, answered) = (Batch::default(), Arc::new(AtomicUsize::new(0)));
        let (tell, wait) = oneshot::channel();
        let connection = pin!(connection(batch.clone(), 50, answered.clone(), wait));
        assert_eq!(batch.drive(connection).await, 50, "all but one before anything is written");
        tell.send(()).unwrap();
        while answered.load(Relaxed) < 1_050 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn no_more_than_so_many_calls_hold_a_write_up() {
        let (batch, answered) = (Batch::default(), Arc::new(AtomicUsize::new(0)));
        let (_tell, wait) = oneshot::channel();
        let connection = pin!(connection(batch.clone(), 1_000, answered, wait));
        assert_eq!(batch.drive(connection).await, CALLS_MAX);
    }
}
