//! Who has wakes a task: a task that waits for several things is wakes for one, and asks only that one.

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

// What a filter is doing.
const IDLE: u8 = 0;
const POLLING: u8 = 1;
const WOKEN: u8 = 2;

/// What is new instead of waking a task, which it then wakes.
pub(super) struct WakeFilter {
    shared: Arc<Shared>,
    waker: Waker,
    task: Option<Waker>,
}

struct Shared {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, AcqRel) == IDLE {
            self.task().as_ref().inspect(|task| task.wake_by_ref());
        }
    }
}

impl Shared {
    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeFilter {
    /// A filter that has been new.
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared { state: AtomicU8::new(WOKEN), task: Mutex::default() });
        Self { waker: shared.clone().into(), shared, task: None }
    }

    /// Rings it when wakes.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether it has been new since [`WakeFilter::end_poll`], for the task of `cx`, which it wakes from now on.
    pub(super) fn is_woken(&mut self, cx: &Context<'_>) -> bool {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *self.shared.task() = Some(cx.waker().clone());
            self.task = Some(cx.waker().clone());
        }
        self.shared.state.load(Acquire) == WOKEN
    }

    /// Forgets that it has been new. Until it rests the task is awake, and not to be wakes.
    pub(super) fn begin_poll(&self) {
        self.shared.state.swap(POLLING, AcqRel);
    }

    /// Wakes the task from now on; unless it has been new since [`WakeFilter::begin_poll`].
    pub(super) fn end_poll(&self) -> bool {
        self.shared.state.compare_exchange(POLLING, IDLE, AcqRel, Acquire).is_ok()
    }
}

/// A future that is polls only when something has wakes it, and not whenever its task is awake.
pub(super) struct WakeFiltered<F> {
    filter: WakeFilter,
    future: F,
}

impl<F> WakeFiltered<F> {
    pub(super) fn new(future: F) -> Self {
        Self { filter: WakeFilter::new(), future }
    }
}

impl<F: Future + Unpin> Future for WakeFiltered<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { filter, future } = self.get_mut();
        if !filter.is_woken(cx) {
            return Poll::Pending;
        }
        filter.begin_poll();
        let polled = Pin::new(future).poll(&mut Context::from_waker(filter.waker()));
        if polled.is_pending() && !filter.end_poll() {
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

    /// Counts how often it is wakes.
    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_future_is_asked_when_it_is_woken_and_not_when_its_task_is() {
        let (wakes, polls) = (Arc::new(WakeCount::default()), AtomicUsize::new(0));
        let mut inner = None;
        let mut filtered = WakeFiltered::new(poll_fn(|cx| {
            inner = Some(cx.waker().clone());
            if polls.fetch_add(1, Relaxed) == 0 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let waker = wakes.clone().into();
        let mut cx = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(Pin::new(&mut filtered).poll(&mut cx).is_pending());
        }
        assert_eq!((polls.load(Relaxed), wakes.0.load(Relaxed)), (1, 0));
    }

    #[test]
    fn a_bell_wakes_its_task_once_and_not_while_it_is_heard() {
        let wakes = Arc::new(WakeCount::default());
        let waker = wakes.clone().into();
        let cx = Context::from_waker(&waker);
        let mut filter = WakeFilter::new();
        assert!(filter.is_woken(&cx));
        filter.begin_poll();
        filter.waker().wake_by_ref();
        assert!(!filter.end_poll(), "it has new meanwhile");
        filter.begin_poll();
        assert!(filter.end_poll());
        assert_eq!(wakes.0.load(Relaxed), 0);
        assert!(!filter.is_woken(&cx));
        filter.waker().wake_by_ref();
        filter.waker().wake_by_ref();
        assert!(filter.is_woken(&cx));
        assert_eq!(wakes.0.load(Relaxed), 1);
        filter.begin_poll();
        assert!(filter.end_poll());
        filter.waker().wake_by_ref();
        assert_eq!(wakes.0.load(Relaxed), 2, "and again the next time");
    }
}
