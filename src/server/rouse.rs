//! Who has woken a task: a task that waits for several things is woken for one, and asks only that one.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU8,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::{Context, Poll, Wake, Waker},
};

// What a bell is doing.
const QUIET: u8 = 0;
const HEARD: u8 = 1;
const RUNG: u8 = 2;

/// What is rung instead of waking a task, which it then wakes.
pub(super) struct Bell {
    ringing: Arc<Ringing>,
    waker: Waker,
    task: Option<Waker>,
}

struct Ringing {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Wake for Ringing {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, AcqRel) == QUIET {
            self.task().as_ref().inspect(|task| task.wake_by_ref());
        }
    }
}

impl Ringing {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bell {
    /// A bell that has been rung.
    pub(super) fn rung() -> Self {
        let ringing = Arc::new(Ringing { state: AtomicU8::new(RUNG), task: Mutex::default() });
        Self { waker: ringing.clone().into(), ringing, task: None }
    }

    /// Rings it when woken.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether it has been rung since [`Bell::rest`], for the task of `cx`, which it wakes from now on.
    pub(super) fn has_rung(&mut self, cx: &Context<'_>) -> bool {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *self.ringing.task() = Some(cx.waker().clone());
            self.task = Some(cx.waker().clone());
        }
        self.ringing.state.load(Acquire) == RUNG
    }

    /// Forgets that it has been rung. Until it rests the task is awake, and not to be woken.
    pub(super) fn hear(&self) {
        self.ringing.state.swap(HEARD, AcqRel);
    }

    /// Wakes the task from now on; unless it has been rung since [`Bell::hear`].
    pub(super) fn rest(&self) -> bool {
        self.ringing.state.compare_exchange(HEARD, QUIET, AcqRel, Acquire).is_ok()
    }
}

/// A future that is asked only when something has woken it, and not whenever its task is awake.
pub(super) struct Roused<F> {
    bell: Bell,
    future: F,
}

impl<F> Roused<F> {
    pub(super) fn new(future: F) -> Self {
        Self { bell: Bell::rung(), future }
    }
}

impl<F: Future + Unpin> Future for Roused<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { bell, future } = self.get_mut();
        if !bell.has_rung(cx) {
            return Poll::Pending;
        }
        bell.hear();
        let polled = Pin::new(future).poll(&mut Context::from_waker(bell.waker()));
        if polled.is_pending() && !bell.rest() {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_future_is_asked_when_it_is_woken_and_not_when_its_task_is() {
        let (woken, asked) = (Arc::new(Woken::default()), AtomicUsize::new(0));
        let mut inner = None;
        let mut roused = Roused::new(poll_fn(|cx| {
            inner = Some(cx.waker().clone());
            if asked.fetch_add(1, Relaxed) == 0 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(Pin::new(&mut roused).poll(&mut cx).is_pending());
        }
        assert_eq!((asked.load(Relaxed), woken.0.load(Relaxed)), (1, 0));
    }

    #[test]
    fn a_bell_wakes_its_task_once_and_not_while_it_is_heard() {
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let cx = Context::from_waker(&waker);
        let mut bell = Bell::rung();
        assert!(bell.has_rung(&cx));
        bell.hear();
        bell.waker().wake_by_ref();
        assert!(!bell.rest(), "it has rung meanwhile");
        bell.hear();
        assert!(bell.rest());
        assert_eq!(woken.0.load(Relaxed), 0);
        assert!(!bell.has_rung(&cx));
        bell.waker().wake_by_ref();
        bell.waker().wake_by_ref();
        assert!(bell.has_rung(&cx));
        assert_eq!(woken.0.load(Relaxed), 1);
        bell.hear();
        assert!(bell.rest());
        bell.waker().wake_by_ref();
        assert_eq!(woken.0.load(Relaxed), 2, "and again the next time");
    }
}
