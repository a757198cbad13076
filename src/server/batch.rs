//! Answers of one connection that leave together.
//!
//! Spawned as tasks, the calls of a connection would each wake it when they are answered, and it would write each
//! answer by itself. So they are only noted, and asked in turn in the task of their connection: those that are answered
//! at once, which is nearly all, are then written together. Those that have to wait stay there, and when what they
//! wait for comes to many of them at a time, as the answers of another replica do, it wakes the connection once.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;

/// The most calls that are asked before what is answered is written.
const CALLS_MAX: usize = 64;
/// How often in a row a connection is looked after before others have their turn.
const ROUNDS_MAX: usize = 8;

/// Calls of one connection that have not been answered yet.
#[derive(Clone, Default)]
pub(super) struct Batch(Arc<Calls>);

#[derive(Default)]
struct Calls {
    noted: Mutex<Vec<Call>>,
    // Held only by whoever drives the connection.
    waiting: Mutex<FuturesUnordered<Call>>,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Batch {
    fn execute(&self, call: F) {
        self.noted().push(Box::pin(call));
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
            let is_idle = !self.ask_noted(cx) & !self.ask_waiting(cx);
            if is_idle {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Asks those that have come, as many as are asked together, for the first time. Says whether there were any.
    fn ask_noted(&self, cx: &mut Context<'_>) -> bool {
        let calls = self.some();
        let were_any = !calls.is_empty();
        for mut call in calls {
            if call.as_mut().poll(cx).is_pending() {
                self.waiting().push(call);
            }
        }
        were_any
    }

    /// Asks those again for which something has come. Says whether any was answered.
    fn ask_waiting(&self, cx: &mut Context<'_>) -> bool {
        let mut waiting = self.waiting();
        for answered in 0..CALLS_MAX {
            match Pin::new(&mut *waiting).poll_next(cx) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) | Poll::Pending => return 0 < answered,
            }
        }
        true
    }

    /// The first of those that have come, as many as are asked together.
    fn some(&self) -> Vec<Call> {
        let mut noted = self.noted();
        if noted.len() <= CALLS_MAX { mem::take(&mut *noted) } else { noted.drain(..CALLS_MAX).collect() }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Call>> {
        self.0.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, FuturesUnordered<Call>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    /// A connection of these calls, that notes how many are answered each time it comes to write.
    fn connection<F: Future<Output = ()> + Send + 'static>(
        batch: &Batch,
        calls: impl IntoIterator<Item = F>,
        written: Arc<Mutex<Vec<usize>>>,
    ) -> impl Future<Output = ()> {
        let (answered, mut all) = (Arc::new(AtomicUsize::new(0)), 0);
        for call in calls {
            let answered = answered.clone();
            all += 1;
            batch.execute(async move {
                call.await;
                answered.fetch_add(1, Relaxed);
            });
        }
        poll_fn(move |_| {
            let answered = answered.load(Relaxed);
            written.lock().unwrap().push(answered);
            if answered == all { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    #[tokio::test]
    async fn calls_that_are_answered_at_once_are_written_together() {
        let (batch, written) = (Batch::default(), Arc::default());
        let connection = connection(&batch, (0..50).map(|_| ready(())), Arc::clone(&written));
        batch.drive(pin!(connection)).await;
        assert_eq!(*written.lock().unwrap(), [0, 50]);
    }

    #[tokio::test]
    async fn calls_whose_answers_come_together_from_elsewhere_are_written_together() {
        let (batch, written) = (Batch::default(), Arc::default());
        let (tell, wait): (Vec<_>, Vec<_>) = (0..50).map(|_| oneshot::channel::<()>()).unzip();
        let calls = wait.into_iter().map(|wait| async { wait.await.unwrap() });
        let mut connection = pin!(connection(&batch, calls, Arc::clone(&written)));
        assert!(batch.drive(connection.as_mut()).now_or_never().is_none());
        tell.into_iter().for_each(|tell| tell.send(()).unwrap());
        // Whoever was waiting goes on to, also where the first to drive the connection has stopped.
        batch.drive(connection).await;
        assert_eq!(written.lock().unwrap().last_chunk(), Some(&[0, 50]));
    }

    #[tokio::test]
    async fn no_more_than_so_many_calls_hold_a_write_up() {
        let (batch, written) = (Batch::default(), Arc::default());
        let connection = connection(&batch, (0..1_000).map(|_| ready(())), Arc::clone(&written));
        batch.drive(pin!(connection)).await;
        let writes = written.lock().unwrap();
        assert!(writes.windows(2).all(|two| two[1] - two[0] <= CALLS_MAX), "{writes:?}");
    }
}
